"""What a blocked gang keeps while it waits, so that small jobs do not starve it.

EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995): the first blocked gangs get a cell and a
time at which it will be theirs. Others pass only if they use other GPUs, or will be gone by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from math import inf

from brimful.fleet.events import Parts
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import ONE_NODE, close_together, fits_on
from brimful.scheduler.plan import Start


@dataclass(frozen=True, slots=True)
class Reservation:
    job: str
    gpus: int
    nodes: tuple[int, ...]


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
    """The emptiest cell that can hold the gang: kept from others, it only becomes emptier."""
    need = state.job.gpus
    for pool in pools:
        index = draft.capacity.pools[pool]
        if index.gpus < need or (index.largest < need and state.job.within in ONE_NODE):
            continue
        nodes: list[int] = []
        have = 0
        for node in chain(draft.fullest(pool), index.buckets[0]):
            good = draft.capacity.slots[node].node.good_gpus
            if index.largest >= need:
                if good >= need:
                    return Reservation(state.job.job, need, (node,))
                continue
            nodes.append(node)
            have += good
            if have >= need:
                return Reservation(state.job.job, need, tuple(nodes))
    return None


def in_reserved(
    state: JobState,
    fleet: Fleet,
    draft: Draft,
    *,
    pools: Collection[Pool],
    reservations: Iterable[Reservation],
    starts: Iterable[Start],
    now_s: int,
) -> Parts | None:
    """GPUs kept for a blocked gang may be used by whoever will be gone before it can have them."""
    left, job = state.remaining_s(now_s), state.job
    if left is None or job.gpu_milli < WHOLE_GPU:
        return None
    taken = {
        (node, gpu)
        for start in starts
        for node, gpus in ((start.node, start.gpus), *start.rest)
        for gpu in gpus
    }
    for reservation in reservations:
        for index in reservation.nodes:
            slot = fleet.capacity.slots[index]
            free = [gpu for gpu in slot.free if (slot.node.node, gpu) not in taken]
            if slot.pool not in pools or not free or not fits_on(job, draft, slot, free):
                continue
            ends_s = now_s + job.checkpoint_cost_s + left / job.rate(slot.node.gpu)
            if ends_s <= from_s(reservation, fleet, now_s=now_s):
                return ((slot.node.node, close_together(slot, free, job.gpus)),)
    return None


def from_s(reservation: Reservation, fleet: Fleet, *, now_s: int) -> float:
    """When the cell will be free, as far as anybody knows; inf: nobody does."""
    slots = fleet.capacity.slots
    return max(
        _free_at(fleet, slots[i].node.node, min(reservation.gpus, slots[i].node.good_gpus), now_s=now_s)
        for i in reservation.nodes
    )


def _free_at(fleet: Fleet, node: str, gpus: int, *, now_s: int) -> float:
    """When the node will have `gpus` free GPUs, if nothing new starts there."""
    free = len(fleet.free(node))
    if free >= gpus:
        return now_s
    ends = sorted(
        (expected_end_s(fleet, lease, now_s=now_s), sum(len(g) for name, g in lease.parts if name == node))
        for lease in fleet.leases_on.get(node, {}).values()
    )
    for at_s, given in ends:
        free += given
        if free >= gpus:
            return at_s
    return inf
