"""Duty cycles of pods' cards, one row per minute: Alibaba's cluster-trace-v2026-GenAI.

Columns: value (percent), timestamp_anon (seconds), container_ip. We assume that a pod holds one card from its
first to its last sample; the outcome of its work is not recorded. Of several rows for one pod and time, the
busiest counts.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from datetime import UTC

from brimful.audit.readers.slurm import moment
from brimful.audit.records import Paid, Part, Records, Run
from brimful.audit.series import USUAL_STEP_S, Series
from brimful.sim.traces.reading import columns_of

COLUMNS = {"value", "timestamp_anon", "container_ip"}


def is_duty(head: str) -> bool:
    return set(columns_of(head)) >= COLUMNS


def read(lines: Iterator[str], records: Records) -> None:
    pods: dict[str, dict[int, float]] = {}
    for row in csv.DictReader(lines):
        try:
            at_s, percent = moment(row["timestamp_anon"] or "", UTC) or 0, float(row["value"])
        except (ValueError, TypeError, OverflowError):
            records.left_out["bad_sample"] += 1
            continue
        looks = pods.setdefault(row["container_ip"] or "", {})
        looks[at_s] = max(looks.get(at_s, 0.0), percent)
    for pod, looks in pods.items():
        series = records.series.setdefault((pod, pod, 0), Series())
        series.extend("busy", ((at, str(looks[at])) for at in sorted(looks)), 100.0)
        step_s = min((b - a for a, b in itertools.pairwise(sorted(looks))), default=USUAL_STEP_S)
        start_s, end_s = min(looks), max(looks) + step_s
        part = Part(place=pod, gpus=1, cards=(0,))
        records.runs.append(Run(job=pod, start_s=start_s, end_s=end_s, parts=(part,)))
        records.nodes.append(Paid(place=pod, gpu="", gpus=1, start_s=start_s, end_s=end_s))
