"""How the production `tick` scales: made-up Philly jobs on 1,000, 10,000 and 100,000 GPUs, and one
decision.

    make bench ARGS=fleet       up to a million jobs: about a quarter of an hour, 5 GiB

Every run is a separate process, so that its memory can be measured.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from math import exp
from multiprocessing import get_context
from random import Random
from typing import Any

from bench.document import markdown
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.fleet.metrics import measure, percentile
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler import loop
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Fleets of every size"
TABLES = ("fleet-scale", "fleet-mixed", "fleet-decide")
PLOT = ROOT / "docs" / "images" / "cost-per-event.svg"
JOBS_PER_GPU = 10  # the same at every size, so that only the size differs
SIZES = (1_000, 10_000, 100_000)  # GPUs, eight per node
RUNS = ("fifo", "brim")
LOAD = 2.0  # demand exceeds the fleet, so that a queue forms
MIXED = ((2_000, 96), (5_000, 288))  # jobs, GPUs of three types
RUSH = 10.0  # times what a mixed fleet could take if all its GPUs were of the fastest type
SPEEDS = (("new", 1.0), ("mid", 0.6), ("old", 0.35))
KINDS = 24  # of jobs: each has different speeds
WAITING = 5_000
DECISIONS = 5_000


def benchmarks() -> Iterator[Benchmark]:
    arrivals = read(["synthetic:philly?jobs=1000&gpus=400&load=0.95"])[0].arrivals
    nodes = parse_fleet("50x8")
    yield Benchmark(
        name="1,000 jobs on 400 GPUs, brim",
        subject=body(lambda: rehearse(arrivals, nodes, POLICIES["brim"])),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    runs = [_alone(_run, gpus, policy) for gpus in SIZES for policy in RUNS]
    PLOT.write_text(_plot(runs), encoding="utf-8")
    mixed = [_alone(_run_mixed, *each, policy) for each in MIXED for policy in ("las-aware", "brim")]
    decisions = [_alone(_decide, 10_000, "brim", mixed) for mixed in (False, True)]
    return {
        "fleet-scale": _scale(runs),
        "fleet-mixed": _mixed_table(mixed),
        "fleet-decide": _decisions(decisions),
    }


def _alone(function: Any, *given: Any) -> dict[str, Any]:  # noqa: ANN401 - any of those below
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        found: dict[str, Any] = pool.submit(function, *given).result()
        return found


def _run(gpus: int, policy: str) -> dict[str, Any]:
    jobs = gpus * JOBS_PER_GPU
    arrivals = read([f"synthetic:philly?jobs={jobs}&gpus={gpus}&load={LOAD}"])[0].arrivals
    nodes = parse_fleet(f"{gpus // 8}x8")
    began = time.process_time()
    outcome = rehearse(arrivals, nodes, POLICIES[policy])
    cpu_s = time.process_time() - began
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = measure(outcome.fleet, now_s=outcome.end_s)
    return {
        "gpus": gpus,
        "policy": policy,
        "jobs": jobs,
        "finished": found.finished,
        "events": len(outcome.log),
        "cpu_s": cpu_s,
        "peak_gib": peak_kib / 2**20,
        "mean_jct_h": (found.mean_jct_s or 0.0) / 3600,
    }


def _mixed(jobs: int, gpus: int, load: float) -> tuple[list[Arrival], list[Node]]:
    """The same jobs, with speeds of a few kinds on three GPU types; each type is a third of the fleet."""
    dice = Random(jobs)
    kinds = [
        tuple((gpu, min(1.0, speed * exp(dice.uniform(-0.5, 0.5)))) for gpu, speed in SPEEDS)
        for _ in range(KINDS)
    ]
    made = read([f"synthetic:philly?jobs={jobs}&gpus={gpus}&load={load}"])[0].arrivals
    arrivals = [
        replace(each, job=replace(each.job, rates=dice.choice(kinds), gpus=min(each.job.gpus, 32)))
        for each in made
    ]
    return arrivals, parse_fleet("+".join(f"{gpus // 24}x8:{gpu}" for gpu, _ in SPEEDS))


def _run_mixed(jobs: int, gpus: int, policy: str) -> dict[str, Any]:
    arrivals, nodes = _mixed(jobs, gpus, RUSH)
    began = time.process_time()
    outcome = rehearse(arrivals, nodes, POLICIES[policy])
    cpu_s = time.process_time() - began
    found = measure(outcome.fleet, now_s=outcome.end_s)
    stops = sum(state.preemptions for state in outcome.fleet.jobs.values())
    hours = [(each or 0.0) / 3600 for each in (found.mean_jct_s, found.p99_jct_s)]
    return {"row": [f"{found.finished:,}", f"{gpus}", policy], "figures": [*hours, stops / jobs, cpu_s]}


def _mixed_table(runs: Sequence[dict[str, Any]]) -> str:
    header = ["jobs", "GPUs of three types", "policy", "mean JCT, h", "p99 JCT, h", "stops a job", "CPU s"]
    return markdown(header, [[*run["row"], *[f"{each:.1f}" for each in run["figures"]]] for run in runs])


def _scale(runs: Sequence[dict[str, Any]]) -> str:
    header = ["jobs", "GPUs", "policy", "mean JCT, h", "events", "CPU s", "µs an event", "peak GiB"]
    rows = [
        [
            f"{run['finished']:,}",
            f"{run['gpus']:,}",
            run["policy"],
            f"{run['mean_jct_h']:.2f}",
            f"{run['events']:,}",
            f"{run['cpu_s']:.1f}",
            f"{_per_event(run):.0f}",
            f"{run['peak_gib']:.2f}",
        ]
        for run in runs
    ]
    return markdown(header, rows)


def _per_event(run: dict[str, Any]) -> float:
    return float(run["cpu_s"] / run["events"] * 1e6)


class _Enough(Exception):
    """Enough decisions were timed."""


def _decide(gpus: int, policy: str, mixed: bool) -> dict[str, Any]:
    """Decisions of the production loop, including reviews, while this many jobs wait."""
    if mixed:
        arrivals, nodes = _mixed(gpus * 6, gpus, 30.0)
    else:
        arrivals = read([f"synthetic:philly?jobs={gpus * 6}&gpus={gpus}&load=30"])[0].arrivals
        nodes = parse_fleet(f"{gpus // 8}x8")
    spent_s, waiting = list[float](), list[int]()

    def timed(fleet: Fleet, *given: Any, **more: Any) -> Plan:  # noqa: ANN401 - as decide has them
        began = time.process_time()
        plan = decide(fleet, *given, **more)
        took_s = time.process_time() - began
        if len(fleet.waiting) >= WAITING:
            spent_s.append(took_s)
            waiting.append(len(fleet.waiting))
        if len(spent_s) == DECISIONS:
            raise _Enough
        return plan

    vars(loop)["decide"] = timed  # this process does nothing else
    with suppress(_Enough):
        rehearse(arrivals, nodes, POLICIES[policy])
    types = len({node.gpu for node in nodes})
    waits = f"{min(waiting):,} to {max(waiting):,}"
    return {"row": [f"{gpus:,}", f"{types}", waits, policy], "spent_s": spent_s}


def _decisions(found: Sequence[dict[str, Any]]) -> str:
    header = ["GPUs", "types", "waiting jobs", "policy", "decisions", "p50, ms", "p99, ms", "longest, ms"]
    rows = []
    for each in found:
        ms = [1000 * spent for spent in each["spent_s"]]
        figures = [f"{figure:.2f}" for figure in (percentile(ms, 50), percentile(ms, 99), max(ms))]
        rows.append([*each["row"], f"{len(ms)}", *figures])
    return markdown(header, rows)


def _plot(runs: Sequence[dict[str, Any]]) -> str:
    """CPU microseconds per event over GPUs, on a logarithmic axis, where a logarithm is a straight line."""
    width, height, left, bottom, top = 640, 320, 70, 270, 30
    most = max(_per_event(run) for run in runs) * 1.2
    columns = {gpus: left + 60 + i * 210 for i, gpus in enumerate(SIZES)}
    colours = {"fifo": "#888888", "brim": "#0b7285"}

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / most

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13">',
        "<title>CPU time an event by size of the fleet</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{width - 20}" stroke="black" fill="none"/>',
        f'<text x="{left}" y="{top - 10}">CPU µs an event</text>',
    ]
    lines += [
        f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{gpus:,} GPUs</text>'
        for gpus, x in columns.items()
    ]
    for policy in RUNS:
        points = [(columns[run["gpus"]], y(_per_event(run)), run) for run in runs if run["policy"] == policy]
        path = " ".join(f"{x},{at:.1f}" for x, at, _ in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colours[policy]}" stroke-width="2"/>')
        for x, at, run in points:
            lines.append(f'<circle cx="{x}" cy="{at:.1f}" r="4" fill="{colours[policy]}"/>')
            lines.append(
                f'<text x="{x}" y="{at - 9:.1f}" text-anchor="middle" fill="{colours[policy]}">'
                f"{policy} {_per_event(run):.0f}</text>"
            )
    return "\n".join([*lines, "</svg>", ""])
