"""A second replay that shares nothing with brimful's: first come, first served, by counting free GPUs.

Strict order, a pool of interchangeable GPUs, no preemption. What it says of a fleet is checked against
the production `tick` under `fifo`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Told(NamedTuple):
    at_s: int
    gpus: int
    work_s: float


def delays_s(jobs: Sequence[Told], gpus: int) -> list[float]:
    """How long each waits, in the order given, which is by time."""
    ends: list[tuple[float, int]] = []
    free, now = gpus, 0.0
    found: list[float] = []
    for job in jobs:
        now = max(now, job.at_s)
        while ends and (ends[0][0] <= now or free < job.gpus):
            until, back = heapq.heappop(ends)
            now, free = max(now, until), free + back
        free -= job.gpus
        heapq.heappush(ends, (now + job.work_s, job.gpus))
        found.append(now - job.at_s)
    return found


def worst_share(jobs: Sequence[Told], delays: Sequence[float]) -> float:
    """The largest share that is hurt: of jobs of 1, 2 to 7, 8 and more GPUs, and of GPU-hours."""
    shares = []
    for low, high in ((1, 1), (2, 7), (8, 10**9)):
        mine = [(job, d) for job, d in zip(jobs, delays, strict=True) if low <= job.gpus <= high]
        if mine:
            shares.append(sum(d > max(600, job.work_s / 10) for job, d in mine) / len(mine))
    whole = sum(job.gpus * job.work_s for job in jobs)
    hurt = (
        job.gpus * job.work_s for job, d in zip(jobs, delays, strict=True) if d > max(600, job.work_s / 10)
    )
    return max(*shares, sum(hurt) / whole)


def fewest_nodes(jobs: Sequence[Told], *, per_node: int) -> int:
    """Upwards from one: the first that is enough."""
    nodes = -(-max(job.gpus for job in jobs) // per_node)
    while worst_share(jobs, delays_s(jobs, nodes * per_node)) > 0.05:
        nodes += 1
    return nodes


def worst_week(jobs: Sequence[Told], delays: Sequence[float]) -> float:
    """Weeks of seven days from the first submission."""
    weeks: dict[int, list[tuple[Told, float]]] = {}
    for job, delay in zip(jobs, delays, strict=True):
        weeks.setdefault((job.at_s - jobs[0].at_s) // (7 * 86400), []).append((job, delay))
    return max(worst_share([job for job, _ in week], [d for _, d in week]) for week in weeks.values())
