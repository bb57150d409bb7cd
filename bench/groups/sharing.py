"""Two jobs on one GPU: Gavel's 96 jobs with its table of measured pairs, shared and not, at several loads.

    make bench ARGS=sharing     under a CPU minute

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.document import markdown
from bench.groups.traces import CASES, DATA, known
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.fleet.job import Job
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Sharing a GPU"
TABLES = ("sharing",)
ALONE, SHARED = "brim", "brim?share=1"
FLEETS = {
    "48 GPUs": "2x4:v100+4x4:p100+6x4:k80",
    "36 GPUs": "2x4:v100+3x4:p100+4x4:k80",
    "24 GPUs": "1x4:v100+2x4:p100+3x4:k80",
    "16 V100": "4x4:v100",
    "24 P100": "6x4:p100",
}
RUNS = (
    ("48 GPUs", 1),
    ("48 GPUs", 2),
    ("48 GPUs", 4),
    ("36 GPUs", 1),
    ("24 GPUs", 1),
    ("24 GPUs", 2),
    ("16 V100", 1),
    ("24 P100", 1),
)


def benchmarks() -> Iterator[Benchmark]:
    pairs = (("t4", (("a", 0.8),)),)
    jobs = [Job(job=f"j{i}", gpus=1, name="a", pairs=pairs, checkpoint_interval_s=0) for i in range(60)]
    arrivals = [Arrival(at_s=60 * i, job=job, work_s=3600.0) for i, job in enumerate(jobs)]
    nodes, rules = parse_fleet("2x4:t4"), read_policy(SHARED).rules
    yield Benchmark(
        name="60 jobs that share 8 GPUs",
        subject=body(lambda: rehearse(arrivals, nodes, rules)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def found(arrivals: list[Arrival], fleet: str, policy: str) -> tuple[float, float]:
    """Mean JCT in hours, and stops per job."""
    states = rehearse(arrivals, parse_fleet(fleet), read_policy(policy).rules).fleet.jobs.values()
    hours = [((state.ended_s or 0) - state.submitted_s) / 3600 for state in states]
    return sum(hours) / len(hours), sum(state.preemptions for state in states) / len(hours)


def tables() -> dict[str, str]:
    if not DATA.is_dir():
        return {}
    trace = read([str(DATA / name) for name in CASES[0].files])[0].arrivals
    rows = []
    for fleet, faster in RUNS:
        arrivals = [replace(each, at_s=each.at_s // faster) for each in trace]
        cells = [fleet, str(faster)]
        for some in (arrivals, known(arrivals)):
            (alone_h, _), (shared_h, stops) = (found(some, FLEETS[fleet], each) for each in (ALONE, SHARED))
            cells += [f"{alone_h:.2f}", f"{shared_h:.2f}", f"{shared_h / alone_h - 1:+.1%}", f"{stops:.1f}"]
        rows.append(cells)
    columns = ["alone, h", "shared, h", "change", "stops a job"]
    head = ["fleet", "arrivals, times as fast"]
    head += [f"{knowledge}: {column}" for knowledge in ("hidden", "known") for column in columns]
    return {"sharing": markdown(head, rows)}
