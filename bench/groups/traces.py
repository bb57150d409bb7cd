"""Public traces through the production `tick`: the result of each policy, and how fast.

    make bench ARGS=traces      Gavel's 96 jobs and Philly's 82,247: a few CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import gavel_rules
from bench.document import markdown
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Rules
from brimful.sim.fleets import parse_fleet
from brimful.sim.report import report
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Replaying traces"
TABLES = ("trace-gavel", "gavel-rules", "trace-philly", "ablation", "speed")
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
        runs=(
            ("fifo", False),
            ("las", False),
            ("las-aware", False),
            ("srpt", True),
            ("brim", False),
            ("brim", True),
        ),
    ),
    Case(
        name="philly",
        files=("philly/philly_jobs.csv.gz",),
        fleet="75x8",
        runs=(("fifo", False), ("las", False), ("brim", False), ("brim", True)),
    ),
)


# Only for speed: the file has no run times, so this rehearses Sia's mix of jobs, not its actual jobs.
SIA = Case(
    name="sia",
    files=("sia/sia_workloads.csv.gz?workload=saturn/workload-1",),
    fleet="6x4:t4+2x8:a100-sxm-40gb+3x8:rtx-2080-ti",
    runs=(("las-aware", False), ("brim", False)),
)

# What is switched off -> the parts of brim that do it.
OFF: dict[str, dict[str, Any]] = {
    "without GPU types by speed": {"types": "tight", "move": False},
    "without moves between types": {"move": False},
    "without preemption": {"preempt": "none", "move": False},
    "without reservations (anyone may pass)": {"backfill": "greedy"},
    "without backfill (nobody may pass)": {"backfill": "none"},
    "without learned lengths": {"learn": False},
    "without ageing": {"ageing": 0.0},
}
# Peers' simulators, run on this project's machine on 2026-11-15: (what, jobs, CPU seconds).
PEERS = (
    ("Gavel, generated jobs on 108 GPUs, FIFO", 200, 18.7),
    ("Gavel, the same, LAS", 200, 38.3),
    ("Gavel, the same, heterogeneity-aware LAS", 200, 25.5),
    ("Sia's simulator, 160 jobs on 64 GPUs, Gavel's policy", 160, 79.9),
    ("Sia's simulator, the same, Sia's policy", 160, 518.0),
    ("FGD's simulator, openb on every 8th node", 1361, 67.1),
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
    """One table per case, named `trace-` and its name, and the speed of all beside peers."""
    if not DATA.is_dir():
        return {}
    found = {case.name: _runs(case) for case in CASES}
    told = {f"trace-{name}": _table(runs) for name, runs in found.items()}
    rules = {"gavel-rules": _rules(CASES[0], found["gavel"])}
    return {**told, **rules, "ablation": _ablation(CASES[0]), "speed": _speed(found)}


def known(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [replace(a, job=replace(a.job, predicted_work_s=a.work_s)) for a in arrivals]


def run(arrivals: Sequence[Arrival], fleet: str, policy: str, rules: Rules | None = None) -> dict[str, Any]:
    nodes = parse_fleet(fleet)
    began = time.process_time()
    outcome = rehearse(arrivals, nodes, rules or POLICIES[policy])
    cpu_s = time.process_time() - began
    return report(outcome, arrivals, nodes, policy=policy, seed=0, cpu_s=cpu_s)


def _runs(case: Case) -> list[dict[str, Any]]:
    hidden = read([str(DATA / name) for name in case.files])[0].arrivals
    return [
        {**run(known(hidden) if told else hidden, case.fleet, policy), "known": told}
        for policy, told in case.runs
    ]


# Column -> its text for a run.
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "policy": lambda run: str(run["policy"]),
    "durations": lambda run: "known" if run["known"] else "hidden",
    "mean JCT, h": lambda run: f"{run['mean_jct_h']:.2f}",
    "of bound": lambda run: f"{run['bound']['mean_jct_ratio']:.2f}x",
    "p99 JCT, h": lambda run: f"{run['p99_jct_h']:.1f}",
    "makespan, h": lambda run: f"{run['makespan_h']:,.1f}",
    "useful": lambda run: f"{run['useful_share']:.1%}",
    "worst rho": lambda run: f"{run['worst_rho']:.2f}",
    "preemptions": lambda run: f"{run['preemptions']:,}",
    "CPU s": lambda run: f"{run['cpu_s']:.1f}",
}


def _table(runs: Sequence[dict[str, Any]]) -> str:
    return markdown(list(COLUMNS), [[show(run) for show in COLUMNS.values()] for run in runs])


# Gavel's own simulator on the same files: mean JCT and makespan in hours (data/traces/peer_runs.csv).
GAVEL = {"fifo": (9.97, 54.59), "las": (5.55, 21.43), "las-aware": (4.06, 17.76)}


def _rules(case: Case, runs: Sequence[dict[str, Any]]) -> str:
    """Gavel's figures, its rules as in bench/gavel_rules.py, and brimful's policy of that name."""
    trace = read([str(DATA / name) for name in case.files])[0]
    repeated = {"fifo": gavel_rules.fifo(trace), "las": gavel_rules.las(trace)}
    rows = []
    for policy, (jct_h, makespan_h) in GAVEL.items():
        ours = next(run for run in runs if run["policy"] == policy)
        again = repeated.get(policy)
        cells = [f"{jct_h:.2f}", f"{again.mean_jct_h:.2f}" if again else "", f"{ours['mean_jct_h']:.2f}"]
        cells += [
            f"{makespan_h:.1f}",
            f"{again.makespan_h:.1f}" if again else "",
            f"{ours['makespan_h']:.1f}",
        ]
        rows.append([policy, *cells])
    header = ["policy"]
    for figure in ("mean JCT, h", "makespan, h"):
        header += [f"{figure}: Gavel", "by its rules", "brimful"]
    return markdown(header, rows)


def _ablation(case: Case) -> str:
    """brim on the first case, with one part switched off at a time."""
    hidden = read([str(DATA / name) for name in case.files])[0].arrivals
    whole = POLICIES["brim"]
    rows = []
    for name, rules in {
        "brim": whole,
        **{what: replace(whole, **parts) for what, parts in OFF.items()},
    }.items():
        runs = [run(some, case.fleet, name, rules) for some in (hidden, known(hidden))]
        cells = [f"{run['mean_jct_h']:.2f}" for run in runs] + [f"{run['p99_jct_h']:.1f}" for run in runs]
        rows.append([name, *cells])
    header = [
        "",
        *[f"{figure}, h, {told}" for figure in ("mean JCT", "p99 JCT") for told in ("hidden", "known")],
    ]
    return markdown(header, rows)


def _speed(found: dict[str, list[dict[str, Any]]]) -> str:
    """Every policy that was run with hidden durations; runs under a second are the best of five."""
    rows = [
        [f"brimful, {case.name} on {case.fleet}, {each['policy']}", each["jobs"], _best_s(case, each)]
        for case in (*CASES, SIA)
        for each in (found[case.name] if case.name in found else _runs(case))
        if not each["known"]
    ]
    header = ["simulator", "jobs", "CPU s", "jobs per CPU s"]
    cells = [
        [name, f"{jobs:,}", f"{cpu_s:.2f}" if cpu_s < 1 else f"{cpu_s:.1f}", f"{jobs / cpu_s:,.1f}"]
        for name, jobs, cpu_s in [*rows, *PEERS]
    ]
    return markdown(header, cells)


def _best_s(case: Case, found: dict[str, Any]) -> float:
    if found["cpu_s"] >= 1:
        return float(found["cpu_s"])
    arrivals = read([str(DATA / name) for name in case.files])[0].arrivals
    return min(float(run(arrivals, case.fleet, found["policy"])["cpu_s"]) for _ in range(5))
