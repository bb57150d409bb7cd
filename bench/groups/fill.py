"""Filling a fleet: how full each placement policy gets openb, beside the FGD authors' own results.

    make bench ARGS=fill        all given workloads, ten seeds: about ten CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import csv
import gzip
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import fmean

from bench.document import markdown
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.fleet.node import Node
from brimful.sim.fill import Workload, fill, gpu_types_of, workload_of
from brimful.sim.traces.read import read

TITLE = "Filling a fleet"
TABLES = ("openb-policies", "openb-workloads")
DATA = Path(os.environ.get("BRIMFUL_SHARED_DATA", ROOT.parent / "shared" / "data")) / "traces" / "openb"
WORKLOADS = (
    "default",
    "cpu050",
    "cpu200",
    "gpushare20",
    "gpushare60",
    "multigpu20",
    "multigpu40",
    "gpuspec10",
    "gpuspec20",
)
# Our name -> the name in the authors' files.
AUTHORS = {
    "random": "01-Random",
    "dot-product": "02-DotProd",
    "clustering": "03-GpuClustering",
    "packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
SEEDS = 10
POINTS = ("50", "80", "100", "130")

Means = dict[str, float]


def benchmarks() -> Iterator[Benchmark]:
    nodes, workload = load(ROOT / "examples" / "fill_nodes.csv", ROOT / "examples" / "fill_pods.csv")
    for policy in ("best-fit", "fgd", "brim"):
        yield Benchmark(
            name=f"{policy}, 24 nodes",
            subject=body(lambda policy=policy: fill(nodes, workload, policy=policy, seed=0)),  # type: ignore[misc]
            peer_name=CALIBRATION,
            peer=calibration,
        )


def tables() -> dict[str, str]:
    """openb-policies: every policy on the default workload. openb-workloads: the best ones on all."""
    if not DATA.is_dir():
        return {}
    wanted = [("default", policy) for policy in [*AUTHORS, "brim"]]
    wanted += [(name, policy) for name in WORKLOADS[1:] for policy in ("best-fit", "fgd", "brim")]
    jobs = [(name, policy, seed) for name, policy in wanted for seed in range(SEEDS)]
    with ProcessPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        done = list(pool.map(_one, *zip(*jobs, strict=True), chunksize=1))
    ours: dict[tuple[str, str], Means] = {}
    for key in wanted:
        mine = [at for (name, policy, _), at in zip(jobs, done, strict=True) if (name, policy) == key]
        ours[key] = {point: fmean(at[point] for at in mine) for point in [*POINTS, "cpu_s", "per_s"]}
    return {"openb-policies": _policies(ours), "openb-workloads": _workloads(ours)}


def load(nodes_path: Path, pods_path: Path) -> tuple[list[Node], Workload]:
    trace, _ = read([str(nodes_path), str(pods_path)])
    return trace.nodes, workload_of([a.job for a in trace.arrivals], gpu_types_of(trace.nodes))


@cache
def openb(workload: str) -> tuple[list[Node], Workload]:
    return load(DATA / "openb_node_list_gpu_node.csv.gz", DATA / f"openb_pod_list_{workload}.csv.gz")


def _one(workload: str, policy: str, seed: int) -> Means:
    nodes, tasks = openb(workload)
    began = time.process_time()
    filled = fill(nodes, tasks, policy=policy, seed=seed)
    cpu_s = time.process_time() - began
    at = {point: value or 0.0 for point, value in filled.allocation_at.items()}
    return {**at, "cpu_s": cpu_s, "per_s": filled.tasks / cpu_s}


@cache
def authors() -> dict[tuple[str, str], Means]:
    """Mean of the authors' ten seeds, by workload and policy."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    with gzip.open(DATA / "fgd_expected_allo_discrete.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["workload"].removeprefix("openb_pod_list_"), row["sc_policy"]
            found.setdefault(key, []).append(row)
    return {key: {p: fmean(float(row[p]) for row in rows) for p in POINTS} for key, rows in found.items()}


def _policies(ours: dict[tuple[str, str], Means]) -> str:
    header = ["policy", *[f"{p} %" for p in POINTS], "authors 100 %", "authors 130 %", "tasks per CPU s"]
    rows = []
    for policy in [*AUTHORS, "brim"]:
        mine = ours["default", policy]
        theirs = authors().get(("default", AUTHORS.get(policy, "")))
        rows.append(
            [
                policy,
                *[f"{mine[p]:.2f}" for p in POINTS],
                *[f"{theirs[p]:.2f}" if theirs else "" for p in ("100", "130")],
                f"{mine['per_s']:,.0f}",
            ]
        )
    return markdown(header, rows)


def _workloads(ours: dict[tuple[str, str], Means]) -> str:
    """Ours, and the difference from the authors' mean, at 100 and 130 % arrived."""
    header = ["workload"]
    for policy in ("best-fit", "fgd", "brim"):
        header += [f"{policy} {p} %" for p in ("100", "130")]
    rows = []
    for workload in WORKLOADS:
        cells = [workload]
        for policy in ("best-fit", "fgd", "brim"):
            theirs = authors().get((workload, AUTHORS.get(policy, "")))
            for p in ("100", "130"):
                mine = ours[workload, policy][p]
                cells.append(f"{mine:.2f} ({mine - theirs[p]:+.2f})" if theirs else f"{mine:.2f}")
        rows.append(cells)
    return markdown(header, rows)
