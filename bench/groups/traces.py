"""Public traces through the production `tick`: what each policy makes of them, and how fast.

    make bench ARGS=traces      Gavel's 96 jobs and Philly's 82,247: a few CPU minutes

The data lies beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.document import markdown
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.scheduler.rules import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.report import report
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Replaying traces"
DATA = Path(os.environ.get("BRIMFUL_SHARED_DATA", ROOT.parent / "shared" / "data")) / "traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace on a fleet, and the (policy, whether durations are known) pairs to run."""

    name: str
    files: tuple[str, ...]
    fleet: str
    runs: tuple[tuple[str, bool], ...]


CASES = (
    Case(
        name="gavel",
        files=("gavel/physical_cluster/max_min_fairness.trace.gz", "gavel/simulation_throughputs.json.gz"),
        fleet="2x4:v100+4x4:p100+6x4:k80",
        runs=(("fifo", False), ("las", False), ("srpt", True), ("brim", False), ("brim", True)),
    ),
    Case(
        name="philly",
        files=("philly/philly_jobs.csv.gz",),
        fleet="75x8",
        runs=(("fifo", False), ("backfill", False), ("las", False), ("brim", False), ("brim", True)),
    ),
)


def benchmarks() -> Iterator[Benchmark]:
    made = ["synthetic:philly?jobs=500&gpus=64"]
    arrivals, nodes = read(made)[0].arrivals, parse_fleet("8x8")
    yield Benchmark(
        name="make up 500 jobs",
        subject=body(lambda: read(made)),
        peer_name=CALIBRATION,
        peer=calibration,
    )
    for policy in ("fifo", "brim"):
        yield Benchmark(
            name=f"500 jobs on 64 GPUs, {policy}",
            subject=body(lambda policy=policy: rehearse(arrivals, nodes, POLICIES[policy])),  # type: ignore[misc]
            peer_name=CALIBRATION,
            peer=calibration,
        )


def tables() -> dict[str, str]:
    """One table a case, named `trace-` and its name."""
    return {f"trace-{case.name}": _table(case) for case in CASES if DATA.is_dir()}


def known(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [replace(a, job=replace(a.job, predicted_work_s=a.work_s)) for a in arrivals]


def run(arrivals: Sequence[Arrival], fleet: str, policy: str) -> dict[str, Any]:
    nodes = parse_fleet(fleet)
    began = time.process_time()
    outcome = rehearse(arrivals, nodes, POLICIES[policy])
    cpu_s = time.process_time() - began
    return report(outcome, arrivals, nodes, policy=policy, seed=0, cpu_s=cpu_s)


def _table(case: Case) -> str:
    hidden = read([str(DATA / name) for name in case.files])[0].arrivals
    header = [
        "policy",
        "durations",
        "mean JCT, h",
        "of bound",
        "p99 JCT, h",
        "makespan, h",
        "useful",
        "worst rho",
        "preemptions",
        "CPU s",
    ]
    rows = []
    for policy, told in case.runs:
        found = run(known(hidden) if told else hidden, case.fleet, policy)
        rows.append(
            [
                policy,
                "known" if told else "hidden",
                f"{found['mean_jct_h']:.2f}",
                f"{found['bound']['mean_jct_ratio']:.2f}x",
                f"{found['p99_jct_h']:.1f}",
                f"{found['makespan_h']:,.1f}",
                f"{found['useful_share']:.1%}",
                f"{found['worst_rho']:.2f}",
                f"{found['preemptions']:,}",
                f"{found['cpu_s']:.1f}",
            ]
        )
    return markdown(header, rows)
