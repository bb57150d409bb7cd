"""Published totals: GPU time by end state of whole clusters (Acme, Helios), and shares of samples.

`cluster_summary.csv` of AcmeTrace (InternLM) and HeliosArtifact (S-Lab): one row per cluster, with
complete_gpu_time, cancel_gpu_time and fail_gpu_time in GPU-seconds. A row called total repeats the others. A
cancelled job may have saved its work: unknown. Acme's utilization distributions cover all cards and name no
job, so they can divide no leaf; their idle part is reported beside the tree.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator

from brimful.audit.readers.slurm import LAST_S
from brimful.audit.records import Records
from brimful.meter.idle import BUSY_FRAC, STARVED_FRAC
from brimful.sim.traces.reading import columns_of

LEAVES = {
    "complete_gpu_time": "allocated.kept.unknown",
    "cancel_gpu_time": "allocated.unknown.unknown",
    "fail_gpu_time": "allocated.lost.unknown",
}
CDF = {"cluster", "metric", "percent_of_samples", "value"}
# The most informative metric of each cluster, and its value for 100 %.
KINDS = {"SM_ACTIVE": 1.0, "GPU_UTIL": 100.0}


def is_summary(head: str) -> bool:
    return set(columns_of(head)) >= {"id", *LEAVES}


def is_cdf(head: str) -> bool:
    return set(columns_of(head)) >= CDF


def read(lines: Iterator[str], records: Records) -> None:
    for row in csv.DictReader(lines):
        times = {leaf: row.get(column) or "" for column, leaf in LEAVES.items()}
        if row["id"] == "total":
            continue
        if not all(times.values()):
            records.left_out["summary_without_times"] += 1
            continue
        for leaf, text in times.items():
            gpu_s = float(text)
            if not 0 <= gpu_s < LAST_S * 10**6:
                raise ValueError(text[:40])
            records.totals.append((leaf, row["id"], round(gpu_s)))


def read_cdf(lines: Iterator[str], records: Records) -> None:
    """The idle and starved shares of all samples, by cluster."""
    curves: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in csv.DictReader(lines):
        metric, _, unit = row["metric"].rpartition("_")
        if unit in ("pct", "frac") and metric in KINDS:
            scale = 100.0 if unit == "pct" else 1.0
            point = (float(row["percent_of_samples"]) / 100, float(row["value"]) / scale)
            curves[row["cluster"], metric].append(point)
    for cluster in sorted({cluster for cluster, _ in curves}):
        curve = next(curves[cluster, metric] for metric in KINDS if (cluster, metric) in curves)
        idle, starved = (
            max((share for share, value in curve if value < below), default=0.0)
            for below in (BUSY_FRAC, STARVED_FRAC)
        )
        records.card_shares[cluster] = (idle, starved - idle)
