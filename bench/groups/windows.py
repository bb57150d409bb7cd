"""brim where it was not tuned: single virtual clusters of Philly and a crowded window of it, against FIFO.

    make bench ARGS=windows     nine cuts of the public trace: a CPU minute

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

from bench.document import markdown
from bench.groups.traces import DATA, known, run
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.scheduler.policies import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Other cuts of the traces"
TABLES = ("windows",)
CLUSTERS = ("b436b2", "11cb48", "ee9e8c", "ed69ec", "103959", "0e4a51", "7f04ca", "2869ce")
JOBS = 5_000
LOAD = 0.95  # of the fleet, over the time in which jobs arrive
CROWDED = (70_000, 74_000, 1.2)


def benchmarks() -> Iterator[Benchmark]:
    arrivals, nodes = read(["synthetic:philly?jobs=300&gpus=24&load=2"])[0].arrivals, parse_fleet("3x8")
    yield Benchmark(
        name="300 jobs on a crowded 24 GPUs, brim",
        subject=body(lambda: rehearse(arrivals, nodes, POLICIES["brim"])),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not DATA.is_dir():
        return {}
    rows = [_row(name, arrivals, load) for name, arrivals, load in _cuts()]
    header = [
        "jobs",
        "fleet",
        "FIFO, h",
        "brim hidden, h",
        "brim known, h",
        "p99: FIFO, h",
        "hidden, h",
        "known, h",
        "without turns: hidden, h",
        "known, h",
    ]
    return {"windows": markdown(header, rows)}


def _cuts() -> Iterator[tuple[str, list[Arrival], float]]:
    jobs = read([str(DATA / "philly" / "philly_jobs.csv.gz")])[0].arrivals
    for cluster in CLUSTERS:
        mine = [each for each in jobs if each.job.tenant == cluster][:JOBS]
        yield f"virtual cluster {cluster}, {len(mine):,}", mine, LOAD
    first, last, load = CROWDED
    yield f"jobs {first:,} to {last:,}", jobs[first:last], load


def _row(name: str, arrivals: list[Arrival], load: float) -> list[str]:
    start_s = arrivals[0].at_s
    some = [replace(each, at_s=each.at_s - start_s) for each in arrivals]
    asked = sum(each.work_s * each.job.gpus for each in some) / some[-1].at_s
    nodes = max(max(each.job.gpus for each in some) // 8 + 1, ceil(asked / load / 8))
    fleet = f"{nodes}x8"
    runs: list[dict[str, Any]] = [run(some, fleet, "fifo"), run(some, fleet, "brim")]
    runs.append(run(known(some), fleet, "brim"))
    without = replace(POLICIES["brim"], turns=0.0)
    runs += [run(some, fleet, "brim", without), run(known(some), fleet, "brim", without)]
    figures = [f"{each['mean_jct_h']:.1f}" for each in runs[:3]]
    figures += [f"{each['p99_jct_h']:.1f}" for each in runs]
    return [name, fleet, *figures]
