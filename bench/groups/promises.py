"""Deadlines promised at submit: how many are promised, how many of these are kept, how many are met overall.

    make bench ARGS=promises    ten cases, five policies each, and eight of hidden lengths: four CPU minutes

Seeds and windows were not looked at while the rule was made, except the crowded window and the cases of
hidden lengths that say so. Traces need the data beside the checkout (`BRIMFUL_SHARED_DATA`, else
../shared/data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import exp, log
from random import Random
from statistics import fmean
from typing import NamedTuple

from bench import edf
from bench.document import markdown
from bench.groups.cases import Made, chronus, cut, muri, philly, with_deadlines
from bench.groups.traces import DATA, known
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.fleet.events import DeadlineAnswered
from brimful.scheduler.policies import POLICIES
from brimful.sim.faults import Faults
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse

TITLE = "Promised deadlines"
TABLES = ("promises", "promises-edf", "promises-likely")
BASELINES = ("backfill", "las", "las-aware", "srpt")
FLEETS = ("2x8:new+4x4:old", "3x8:new")
SEEDS = (21, 22, 23)
LOAD = 3.0
WINDOWS = ((0.61, 1.2), (0.83, 2.0), (0.37, 2.5))  # where they start; their demand relative to the fleet
JOBS = 300
LOSSES = (0.05, 0.5)  # per node and day


class Found(NamedTuple):
    promised: int
    kept: int
    met: int
    stops: float  # per job


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
    """Run times hidden, with a time limit 1.5 times as long."""
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
    found = {"promises": markdown(header, rows), "promises-edf": beside_edf()}
    return {**found, "promises-likely": likely()} if DATA.is_dir() else found


def beside_edf() -> str:
    """On one GPU type, with known run times."""
    made: list[tuple[str, Sequence[Arrival], str]]
    made = [(f"drawn, seed {seed}", with_deadlines(FLEETS[1], seed, LOAD), FLEETS[1]) for seed in SEEDS]
    for part, load in WINDOWS if DATA.is_dir() else ():
        made.append((f"Chronus, asking for {load} of its fleet", *cut(chronus(), JOBS, part, load)))
    rows = []
    for name, arrivals, fleet in made:
        brim = found(known(arrivals), fleet, "brim")
        # Its jobs run at their best rate there: EDF gets that as work.
        alone = [
            replace(each, work_s=each.work_s / each.job.rate(parse_fleet(fleet)[0].gpu)) for each in arrivals
        ]
        taken, met = edf.met(alone, sum(node.gpus for node in parse_fleet(fleet)))
        due = sum(each.job.deadline_s is not None for each in arrivals)
        shares = [f"{brim.promised}", f"{taken}", f"{brim.met}", f"{met}", f"{brim.met / met:.2f}"]
        rows.append([name, fleet, f"{due}", *shares])
    header = ["jobs", "fleet", "with a deadline", "promised, brim", "admitted, EDF"]
    return markdown([*header, "met, brim", "met, EDF", "of EDF's"], rows)


# Hidden lengths: what, half, jobs, where its deadlines come from.
HIDDEN: tuple[tuple[str, str, Callable[[], Made], str], ...] = (
    ("Chronus, window 1", "seen", lambda: cut(chronus(), 1800, 0.1, 1.2), "its own"),
    ("Chronus, window 2", "seen", lambda: cut(chronus(), 1800, 0.5, 1.5), "its own"),
    ("Philly ee9e8c", "seen", lambda: philly("ee9e8c", 1200, 0.2, 1.2), "by length"),
    ("Muri, trace1", "seen", lambda: cut(muri("muri_trace1"), 1200, 0.0, 1.0), "by length"),
    ("Chronus, window 3", "held back", lambda: cut(chronus(), 1800, 0.8, 0.95), "its own"),
    ("Philly 103959", "held back", lambda: philly("103959", 1200, 0.5, 0.95), "by length"),
    ("Philly, all clusters", "held back", lambda: philly("", 1800, 0.7, 1.2), "any"),
    ("Muri, trace2", "held back", lambda: cut(muri("muri_trace2"), 1200, 0.3, 1.2), "any"),
)


def _given_deadlines(arrivals: Sequence[Arrival], kind: str) -> Sequence[Arrival]:
    """Nine in ten jobs have one: 1.5 to 10 times their own length, or another job's."""
    if kind == "its own":
        return arrivals
    dice, lengths = Random(SEEDS[0]), [each.work_s for each in arrivals]
    found = []
    for each in arrivals:
        length_s = each.work_s if kind == "by length" else dice.choice(lengths)
        due_s = int(each.at_s + 600 + length_s * exp(dice.uniform(log(1.5), log(10))))
        job = replace(each.job, deadline_s=due_s) if dice.random() < 0.9 else each.job
        found.append(replace(each, job=job))
    return found


def likely() -> str:
    rows, said, kept = [], list[float](), list[bool]()
    for name, half, make, kind in HIDDEN:
        arrivals, fleet = make()
        row, mine, came = _likely_row(_given_deadlines(arrivals, kind), fleet)
        rows.append([name, half, kind, fleet, *row])
        said, kept = said + mine, kept + came
    rows.append(["all", "", "", "", "", f"{len(said):,}", *_agree(said, kept), ""])
    header = [
        "jobs",
        "half",
        "deadlines",
        "fleet",
        "with a deadline",
        "promised",
        "said",
        "kept",
        "points apart",
    ]
    return markdown([*header, "met in all"], rows)


def _likely_row(arrivals: Sequence[Arrival], fleet: str) -> tuple[list[str], list[float], list[bool]]:
    outcome = rehearse(arrivals, parse_fleet(fleet), POLICIES["brim"])
    ended = {name: state.ended_s or outcome.end_s + 1 for name, state in outcome.fleet.jobs.items()}
    told = [each for each in outcome.log if isinstance(each, DeadlineAnswered) and each.is_promised]
    said, kept = [each.chance for each in told], [ended[each.job] <= (each.done_by_s or 0) for each in told]
    due = [each for each in arrivals if each.job.deadline_s is not None]
    met = sum(ended[each.job.job] <= (each.job.deadline_s or 0) for each in due)
    return [f"{len(due):,}", f"{len(told):,}", *_agree(said, kept), f"{met:,}"], said, kept


def _agree(said: Sequence[float], kept: Sequence[bool]) -> list[str]:
    if not said:
        return ["", "", ""]
    apart = 100 * (fmean(kept) - fmean(said))
    return [f"{fmean(said):.1%}", f"{fmean(kept):.1%}", f"{apart:+.1f}"]


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
