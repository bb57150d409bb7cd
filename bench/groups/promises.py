"""Deadlines that are promised at submit: how many, how many of these are kept, and how many are met in all.

    make bench ARGS=promises    ten cases, five policies each: under two CPU minutes

Seeds and windows were not looked at while the rule was made, but for the crowded window. The windows of
Chronus need the data beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.document import markdown
from bench.groups.cases import chronus, cut, with_deadlines
from bench.groups.traces import DATA, known
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.fleet.events import DeadlineAnswered
from brimful.scheduler.policies import POLICIES
from brimful.sim.faults import Faults
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse

TITLE = "Promised deadlines"
TABLES = ("promises",)
BASELINES = ("backfill", "las", "las-aware", "srpt")
FLEETS = ("2x8:new+4x4:old", "3x8:new")
SEEDS = (21, 22, 23)
LOAD = 3.0
WINDOWS = ((0.61, 1.2), (0.83, 2.0), (0.37, 2.5))  # where they begin; what they ask for of their fleet
JOBS = 300
LOSSES = (0.05, 0.5)  # of each node, a day


class Found(NamedTuple):
    promised: int
    kept: int
    met: int
    stops: float  # a job


def benchmarks() -> Iterator[Benchmark]:
    arrivals = known(with_deadlines(FLEETS[1], SEEDS[0], LOAD))
    yield Benchmark(
        name="200 jobs on 24 GPUs, half of them with a deadline",
        subject=body(lambda: found(arrivals, FLEETS[1], "brim")),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def found(arrivals: Sequence[Arrival], fleet: str, policy: str, faults: Faults | None = None) -> Found:
    outcome = rehearse(arrivals, parse_fleet(fleet), POLICIES[policy], faults=faults)
    jobs = outcome.fleet.jobs.values()
    ended = {state.job.job: state.ended_s or outcome.end_s + 1 for state in jobs}
    told = [each for each in outcome.log if isinstance(each, DeadlineAnswered) and each.is_promised]
    return Found(
        promised=len(told),
        kept=sum(ended[each.job] <= (each.done_by_s or 0) for each in told),
        met=sum(s.job.deadline_s is not None and ended[s.job.job] <= s.job.deadline_s for s in jobs),
        stops=sum(state.preemptions for state in jobs) / len(jobs),
    )


def _bounded(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Run times hidden, with a longest run of half as long again."""
    return [
        replace(each, job=replace(each.job, predicted_work_s=None, max_run_s=int(1.5 * each.work_s) + 1))
        for each in arrivals
    ]


def tables() -> dict[str, str]:
    rows = [
        _row(f"drawn, seed {seed}", known(with_deadlines(fleet, seed, LOAD)), fleet)
        for fleet in FLEETS
        for seed in SEEDS
    ]
    for part, load in WINDOWS if DATA.is_dir() else ():
        arrivals, fleet = cut(chronus(), JOBS, part, load)
        rows.append(_row(f"Chronus, asking for {load} of its fleet", known(arrivals), fleet))
        if load == WINDOWS[-1][1]:
            rows.append(_row("the same, `--max-run` only", _bounded(arrivals), fleet))
    header = ["jobs", "fleet", "with a deadline", "promised", "kept"]
    header += [f"kept, a node lost every {1 / losses:.0f} days" for losses in LOSSES]
    header += ["met, brim", "met, best of the others", "stops a job"]
    return {"promises": markdown(header, rows)}


def _row(name: str, arrivals: Sequence[Arrival], fleet: str) -> list[str]:
    brim = found(arrivals, fleet, "brim")
    faulty = [found(arrivals, fleet, "brim", Faults(node_losses_per_day=losses)) for losses in LOSSES]
    others = {policy: found(arrivals, fleet, policy).met for policy in BASELINES}
    best = max(others, key=lambda policy: others[policy])
    return [
        name,
        fleet,
        f"{sum(each.job.deadline_s is not None for each in arrivals)}",
        f"{brim.promised}",
        f"{brim.kept}",
        *[f"{each.kept} of {each.promised}" for each in faulty],
        f"{brim.met}",
        f"{best} {others[best]}",
        f"{brim.stops:.1f}",
    ]
