"""Which jobs to move out of a cell to free GPUs elsewhere in its pool, so that a gang fits there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.node import Pool
from brimful.scheduler.placing.place import ONE_NODE, place, place_in
from brimful.scheduler.placing.victims import Cell, lost_gpu_s

if TYPE_CHECKING:
    from brimful.scheduler.cycle import Cycle

LIKELY = 8  # cells with most free GPUs that are looked at


def cells(cycle: Cycle, job: Job, pool: Pool) -> list[tuple[int, ...]]:
    """Nodes, or racks, that could hold the gang if they were empty; not what was bought for somebody."""
    capacity, bought = cycle.fleet.capacity, cycle.fleet.cloud.machines
    mine = [slot for slot in capacity.slots.values() if slot.pool == pool and slot.node.node not in bought]
    mine = [slot for slot in mine if not slot.owed]
    if job.within in ONE_NODE:
        return [(slot.index,) for slot in mine if slot.offered >= job.gpus]
    racks: dict[str, list[int]] = {}
    for slot in mine:
        racks.setdefault(slot.node.rack, []).append(slot.index)
    offered = {slot.index: slot.offered for slot in mine}
    return [tuple(nodes) for nodes in racks.values() if sum(offered[i] for i in nodes) >= job.gpus]


def cheapest(cycle: Cycle, state: JobState, pool: Pool, may_leave: Callable[[Lease], bool]) -> Cell | None:
    """The cell from which others leave at the least loss, of those that are nearly free."""
    draft = cycle.draft
    if draft.free_in(pool) < state.job.gpus:
        return None
    free = {cell: sum(len(draft.free_on(i)) for i in cell) for cell in cells(cycle, state.job, pool)}
    likely = sorted(free, key=lambda cell: (-free[cell], cell))[:LIKELY]
    found = [x for cell in likely if (x := _clear(cycle, state, pool, cell, may_leave)) is not None]
    return min(found, key=lambda cell: (cell.lost_gpu_s, cell.nodes), default=None)


def _clear(
    cycle: Cycle, state: JobState, pool: Pool, nodes: tuple[int, ...], may_leave: Callable[[Lease], bool]
) -> Cell | None:
    """The cheapest jobs whose leaving is enough, and who all find a place elsewhere."""
    fleet, then = cycle.fleet, cycle.draft.copy()
    here = [fleet.leases_on.get(then.capacity.slots[i].node.node, {}) for i in nodes]
    able = {
        name: lease
        for leases in here
        for name, lease in leases.items()
        if lease.phase == "running" and lease.size and lease.gpu_milli == WHOLE_GPU and may_leave(lease)
    }
    lost = {name: lost_gpu_s(fleet.jobs[x.job], x, now_s=cycle.now_s) for name, x in able.items()}
    chosen: list[Lease] = []
    for name in sorted(able, key=lambda name: (lost[name] / able[name].size, name)):
        if place_in(state.job, then, nodes) is None:
            then.give(able[name].parts, fleet.jobs[able[name].job].job)
            chosen.append(able[name])
    if place_in(state.job, then, nodes) is None:
        return None
    for lease in [*chosen]:  # one taken first may not be needed after a larger one
        job = fleet.jobs[lease.job].job
        then.take(lease.parts, job)
        if place_in(state.job, then, nodes) is None:
            then.give(lease.parts, job)
        else:
            chosen.remove(lease)
    for index in nodes:
        then.hold(index)
    for job in sorted((fleet.jobs[x.job].job for x in chosen), key=lambda job: -job.gpus):
        parts = place(job, then, pool)
        if parts is None:
            return None
        then.take(parts, job)
    return Cell(nodes=nodes, victims=tuple(chosen), lost_gpu_s=sum(lost[x.lease] for x in chosen))
