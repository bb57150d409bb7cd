"""Earliest deadline first with exact feasibility and known run times: the reference for promises.

A job is admitted if a schedule of all admitted jobs including it keeps every deadline. Admitted gangs that
fit get GPUs by deadline; the others get what is left, in order of arrival. It knows more than any policy may
and pays for nothing: stops are free, and a gang can use any free GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from brimful.sim.world import Arrival


@dataclass(slots=True)
class _Left:
    due_s: float
    gpus: int
    work_s: float


def met(arrivals: Sequence[Arrival], gpus: int) -> tuple[int, int]:
    """Admitted jobs of one GPU type, and deadlines met overall, on this many GPUs."""
    admitted: list[_Left] = []  # by deadline
    others: list[_Left] = []  # in order of arrival
    taken = kept = 0
    ordered = sorted(arrivals, key=lambda each: each.at_s)
    for at, arrival in enumerate(ordered):
        now_s = float(arrival.at_s)
        job = arrival.job
        due_s = inf if job.deadline_s is None else float(job.deadline_s)
        new = _Left(due_s, job.gpus, arrival.work_s)
        mine = sorted([*admitted, new], key=lambda each: each.due_s)
        if due_s < inf and _is_feasible(mine, gpus, now_s):
            admitted, taken = mine, taken + 1
        else:
            others.append(new)
        until_s = float(ordered[at + 1].at_s) if at + 1 < len(ordered) else inf
        kept += _run(admitted, others, gpus, now_s, until_s)
    return taken, kept


def _is_feasible(jobs: Sequence[_Left], gpus: int, now_s: float) -> bool:
    left = [_Left(each.due_s, each.gpus, each.work_s) for each in jobs]
    return _run(left, [], gpus, now_s, inf) == len(jobs)


def _run(admitted: list[_Left], others: list[_Left], gpus: int, now_s: float, until_s: float) -> int:
    """Advance the time; returns how many of the jobs that end meet their deadline."""
    kept = 0
    while now_s < until_s and (admitted or others):
        free, running = gpus, list[_Left]()
        for each in (*admitted, *others):
            if each.gpus <= free:
                free -= each.gpus
                running.append(each)
        if not running:
            break
        step_s = min(until_s - now_s, *(each.work_s for each in running))
        now_s += step_s
        for each in running:
            each.work_s -= step_s
            kept += each.work_s <= 1e-6 and now_s <= each.due_s < inf
        admitted[:] = [each for each in admitted if each.work_s > 1e-6]
        others[:] = [each for each in others if each.work_s > 1e-6]
    return kept
