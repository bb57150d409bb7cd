"""Firm capacity kept back for deadlines: which job gets it once spot is no longer an option.

A claimed GPU is not idle. Other jobs may use it, and leave when the job with the claim must start. The job
due first claims first, and no GPU is claimed twice. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from brimful.fleet.job import PRIORITIES, Job
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet, JobState, Lease
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import place
from brimful.scheduler.placing.victims import Cell, lost_gpu_s


class Claims:
    """The firm GPUs that jobs with deadlines, earliest first, could have if they needed them now."""

    def __init__(self, fleet: Fleet, draft: Draft) -> None:
        self._fleet, self._later = fleet, draft.copy()
        for lease in fleet.open_leases.values():
            job = fleet.jobs[lease.job].job
            if job.deadline_s is None:
                self._later.give(lease.parts, job)

    def claim(self, job: Job, firm: Sequence[Pool], *, here: Lease | None) -> bool:
        """Whether there are GPUs for it that no earlier job has claimed; a job on firm GPUs has its claim."""
        node = None if here is None else self._fleet.nodes.get(here.node)
        if node is not None and node.tier != "spot":
            return True
        for pool in firm:
            parts = place(job, self._later, pool)
            if parts is not None:
                self._later.take(parts, job)
                return True
        return False


def cell_for(
    state: JobState, fleet: Fleet, draft: Draft, pools: Sequence[Pool], spoken_for: set[str], *, now_s: int
) -> Cell | None:
    """The leases on one node that leave for a job with a claim: not of a higher class, without a deadline,
    least work lost first. Empty: enough of them leave already. None: there is no such node."""
    best: tuple[float, Cell] | None = None
    for slot in fleet.capacity.slots.values():
        if slot.pool not in pools:
            continue
        free = len(draft.free_on(slot.index))
        able: list[tuple[float, Lease]] = []
        for lease in fleet.leases_on.get(slot.node.node, {}).values():
            if lease.phase == "ending" or lease.lease in spoken_for:
                free += lease.size
            elif _may_leave(fleet, lease, state.job):
                able.append((lost_gpu_s(fleet.jobs[lease.job], lease, now_s=now_s), lease))
        victims: list[Lease] = []
        lost = 0.0
        for loss, lease in sorted(able, key=lambda each: (each[0] / each[1].size, each[1].lease)):
            if free >= state.job.gpus:
                break
            victims.append(lease)
            free, lost = free + lease.size, lost + loss
        if free >= state.job.gpus and (best is None or lost < best[0]):
            best = (lost, Cell(victims=tuple(victims), lost_gpu_s=lost, nodes=(slot.index,)))
    return None if best is None else best[1]


def _may_leave(fleet: Fleet, lease: Lease, job: Job) -> bool:
    other = fleet.jobs[lease.job].job
    return (
        not lease.rest
        and lease.gpu_milli == job.gpu_milli
        and other.deadline_s is None
        and PRIORITIES[other.priority] >= PRIORITIES[job.priority]
    )
