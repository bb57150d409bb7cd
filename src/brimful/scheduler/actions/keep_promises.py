"""Give each job with a promised deadline the GPUs of its slot once the slot begins, and keep it there."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.state import JobState, Lease, Pool
from brimful.language import say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.deadlines.promise import pressing, promises, slots
from brimful.scheduler.placing.place import ONE_NODE, place
from brimful.scheduler.placing.victims import lost_gpu_s


def keep_promises(cycle: Cycle) -> None:
    fleet, now_s = cycle.fleet, cycle.now_s
    if not fleet.due or not promises(cycle.rules):
        return
    known = [*slots(fleet, cycle.rules, now_s=now_s)]
    later = [slot.begins_s for _, slot in known if slot.begins_s > now_s]
    cycle.slot_begins_s = ceil(min(later)) if later else None
    begun = pressing(known, now_s=now_s)
    # Mark all of them before choosing any victim: a job in its slot is never stopped.
    cycle.kept |= {state.job.job for state, _ in begun}
    for state, slot in begun:
        lease = state.open_lease
        if lease is not None:
            node = fleet.nodes.get(lease.node)
            if lease.phase == "running" and node is not None and node.pool != slot.pool:
                cycle.stop(lease, say("scheduler.to_its_slot", where=slot.pool.gpu))
        elif state.phase == "waiting" and cycle.unpaid(state) is None and slot.pool not in cycle.draft.sold:
            cycle.settled.add(state.job.job)
            parts = place(state.job, cycle.draft, slot.pool)
            if parts is not None:
                cycle.start(state, parts)
            else:
                _clear(cycle, state, slot.pool)


def _clear(cycle: Cycle, state: JobState, pool: Pool) -> None:
    """Stop jobs without a promise until the gang fits: lowest class first, then least work lost."""
    fleet, draft = cycle.fleet, cycle.draft
    bought = fleet.cloud.machines  # each was bought for a job, which pays for it
    mine = [
        index
        for index, slot in fleet.capacity.slots.items()
        if slot.pool == pool and slot.node.node not in bought
    ]
    cells = [[index] for index in mine] if state.job.within in ONE_NODE else [mine]
    best: tuple[float, list[int], list[Lease], int] | None = None
    for cell in cells:
        need = state.job.gpus - sum(len(draft.free_on(index)) for index in cell)
        found = _victims(cycle, cell, need + sum(cycle.awaited.get(index, 0) for index in cell))
        if found is not None:
            lost = sum(lost_gpu_s(fleet.jobs[x.job], x, now_s=cycle.now_s) for x in found)
            if best is None or lost < best[0]:
                best = (lost, cell, found, max(0, need))
    if best is None:
        return
    for lease in best[2]:
        cycle.stop(lease, say("scheduler.promised_to", job=state.job.job))
    cycle.claimed[pool] = cycle.claimed.get(pool, 0) + state.job.gpus
    cycle.awaited[best[1][0]] = cycle.awaited.get(best[1][0], 0) + best[3]
    for index in best[1]:  # what is free already must not go to another job meanwhile
        if draft.free_on(index):
            draft.hold(index)


def _victims(cycle: Cycle, nodes: Sequence[int], need: int) -> list[Lease] | None:
    """Whole gangs that free `need` GPUs on these nodes, on top of the GPUs already being given up."""
    fleet, able = cycle.fleet, list[tuple[int, float, str, int, Lease]]()
    for index in nodes:
        name = fleet.capacity.slots[index].node.node
        for lease in fleet.leases_on.get(name, {}).values():
            here = sum(len(gpus) for node, gpus in lease.parts if node == name)
            if lease.phase == "ending" or lease.lease in cycle.spoken_for:
                need -= here if lease.gpu_milli == WHOLE_GPU else 0
            elif lease.phase == "running" and lease.job not in cycle.kept and lease.gpu_milli == WHOLE_GPU:
                state = fleet.jobs[lease.job]
                lost = lost_gpu_s(state, lease, now_s=cycle.now_s) / max(1, lease.size)
                able.append((-PRIORITIES[state.job.priority], lost, lease.lease, here, lease))
    chosen: dict[str, Lease] = {}
    gives: dict[str, int] = {}
    for _, _, name, here, lease in sorted(able, key=lambda each: each[:3]):
        if need <= 0 and name not in chosen:
            break
        chosen[name], gives[name] = lease, gives.get(name, 0) + here
        need -= here
    if need > 0:
        return None
    for name in [*chosen]:  # a small gang chosen early may be unnecessary after a large one
        if need + gives[name] <= 0:
            need += gives[name]
            del chosen[name]
    return [*chosen.values()]
