"""What a blocked gang keeps while it waits, so that small jobs do not starve it.

EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995): the first blocked gangs get a cell and a
time at which it will be theirs. Other jobs pass only if they use other GPUs or will be gone by then; where
gangs may be stopped, also jobs of a lower class that will have run their minimum time by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from brimful.fleet.events import Parts
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import ONE_NODE, close_together, fits_on
from brimful.scheduler.rules import Rules

if TYPE_CHECKING:
    from brimful.scheduler.cycle import Cycle


@dataclass(frozen=True, slots=True)
class Reservation:
    job: str
    gpus: int
    nodes: tuple[int, ...]
    rank: int  # the gang's class

    def may_stop(self, job: Job, rules: Rules) -> bool:
        """Whether the gang could stop this job after its minimum run time: the job is of a lower class."""
        return (
            rules.preempt != "none"
            and PRIORITIES[job.priority] > self.rank
            and job.min_run_s <= rules.min_run_s
        )


def expected_end_s(fleet: Fleet, lease: Lease, *, now_s: int) -> float:
    """When a lease will end by its job's prediction or its longest run; never in the past."""
    if lease.phase == "ending":
        return now_s
    state = fleet.jobs[lease.job]
    ends = inf
    left = state.remaining_s(now_s)
    if left is not None and lease.speed > 0:
        setup = max(0, lease.setup_s - lease.billed_s(now_s))
        ends = now_s + setup + left / lease.speed
    if state.job.max_run_s is not None:
        ends = min(ends, now_s + max(0, state.job.max_run_s - state.attained_s(now_s)))
    return ends


def reserve(state: JobState, draft: Draft, pools: list[Pool]) -> Reservation | None:
    """The emptiest cell that can hold the gang: kept free of other jobs, it only gets emptier."""
    need, rank = state.job.gpus, PRIORITIES[state.job.priority]
    for pool in pools:
        index = draft.capacity.pools[pool]
        if index.gpus < need or (index.largest < need and state.job.within in ONE_NODE):
            continue
        nodes: list[int] = []
        have = 0
        for node in chain(draft.fullest(pool), index.buckets[0]):
            good = draft.capacity.slots[node].node.offered_gpus
            if index.largest >= need:
                if good >= need:
                    return Reservation(state.job.job, need, (node,), rank)
                continue
            nodes.append(node)
            have += good
            if have >= need:
                return Reservation(state.job.job, need, tuple(nodes), rank)
    return None


def in_reserved(state: JobState, cycle: Cycle, pools: Collection[Pool]) -> Parts | None:
    """GPUs kept for a blocked gang may be used by any job that will be gone, or may be stopped, by then."""
    fleet, rules, now_s, reservations = cycle.fleet, cycle.rules, cycle.now_s, cycle.reservations
    left, job = state.remaining_s(now_s), state.job
    if job.gpu_milli < WHOLE_GPU:
        return None
    stoppable = [kept for kept in reservations if kept.may_stop(job, rules)]
    if left is None and not stoppable:
        return None
    taken = {
        (node, gpu)
        for start in cycle.starts
        for node, gpus in ((start.node, start.gpus), *start.rest)
        for gpu in gpus
    }
    for reservation in stoppable if left is None else reservations:
        for index in reservation.nodes:
            slot = fleet.capacity.slots[index]
            free = [gpu for gpu in slot.free if (slot.node.node, gpu) not in taken]
            if slot.pool not in pools or not free or not fits_on(job, cycle.draft, slot, free):
                continue
            ready_s = now_s + job.checkpoint_cost_s
            ends_s = inf if left is None else ready_s + left / job.rate(slot.node.gpu)
            if reservation in stoppable:
                ends_s = min(ends_s, ready_s + rules.min_run_s)
            if ends_s <= from_s(reservation, fleet, now_s=now_s):
                return ((slot.node.node, close_together(slot, free, job.gpus)),)
    return None


def from_s(reservation: Reservation, fleet: Fleet, *, now_s: int) -> float:
    """When the cell will be free, as far as is known; inf: unknown."""
    slots = fleet.capacity.slots

    def ends_s(lease: Lease) -> float:
        return expected_end_s(fleet, lease, now_s=now_s)

    return max(
        free_at(
            fleet,
            (slots[i].node.node,),
            min(reservation.gpus, slots[i].node.offered_gpus),
            ends_s,
            now_s=now_s,
        )
        for i in reservation.nodes
    )


def free_at(
    fleet: Fleet, nodes: Sequence[str], gpus: int, ends_s: Callable[[Lease], float], *, now_s: int
) -> float:
    """When the nodes will have `gpus` free GPUs, if nothing new starts there."""
    free = sum(len(fleet.free(node)) for node in nodes)
    if free >= gpus:
        return now_s
    ends = sorted(
        (ends_s(lease), sum(len(g) for name, g in lease.parts if name == node))
        for node in nodes
        for lease in fleet.leases_on.get(node, {}).values()
    )
    for at_s, given in ends:
        free += given
        if free >= gpus:
            return at_s
    return inf
