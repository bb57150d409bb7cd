"""Move small jobs to free GPUs of other nodes, so that the gaps they leave complete a cell for a gang.

Enough GPUs are free, but nowhere close enough together. At each review the gang's cheapest cell is looked
for. The moves are made if they cost less (work that no checkpoint holds, and restarts, times GPUs) than the
wait that they save (the time until a cell would become free by itself, times the gang's GPUs). Who moves
keeps the GPUs it goes to, and the gang its cell, from the decision on until both are there.
"""

from __future__ import annotations

from brimful.fleet.job import PRIORITIES, WHOLE_GPU, at_size
from brimful.fleet.moves import MOVED
from brimful.fleet.state import JobState, Lease, Pool
from brimful.language import Number, Seconds, Sentence, say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.ordering import expected_left_s
from brimful.scheduler.placing.assign import may_move
from brimful.scheduler.placing.clearing import cells, cheapest
from brimful.scheduler.placing.place import ONE_NODE, place, place_in
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.placing.reserve import free_at
from brimful.scheduler.placing.victims import REVIEW_S, Cell
from brimful.scheduler.quotas import is_own
from brimful.units import HOUR_S

GIVE_UP_S = 600  # a move that is not done by then has no claim any more


def finish_moves(cycle: Cycle) -> None:
    """Gangs start in their cells once these are empty; who was moved starts elsewhere, before all others."""
    fleet, waiting = cycle.fleet, cycle.fleet.waiting
    left_for: dict[tuple[int, str], list[Lease]] = {}
    moved: list[Lease] = []
    for at_s, name, lease in fleet.moves.after(cycle.now_s - GIVE_UP_S):
        if name in waiting and waiting[name].waiting_since_s <= at_s:
            left_for.setdefault((at_s, name), []).append(lease)
        if lease.ended_s is None or (lease.job in waiting and waiting[lease.job].leases[-1] is lease):
            moved.append(lease)
    for (_, name), leases in left_for.items():
        state, slot = waiting[name], fleet.capacity.by_name.get(leases[0].node)
        if slot is None or slot.pool not in cycle.pools(state.shape) or name in cycle.settled:
            continue
        if cycle.not_now(state) is not None:
            continue
        nodes: tuple[int, ...] = (slot.index,)
        if state.job.within not in ONE_NODE:
            nodes = tuple(fleet.capacity.racks[slot.pool, slot.node.rack])
        parts = place_in(state.job, cycle.draft, nodes)
        still = tuple(lease for lease in leases if lease.ended_s is None)
        if parts is not None:
            cycle.start(state, parts)
        elif still:
            _keep(cycle, state, Cell(nodes=nodes, victims=still))
        else:
            continue
        cycle.settled.add(name)
    _go_elsewhere(cycle, moved)


def _keep(cycle: Cycle, state: JobState, cell: Cell, why: Sentence | None = None) -> None:
    for index in cell.nodes:
        cycle.draft.hold(index)
    cycle.make_room(state, cell, why)


def _go_elsewhere(cycle: Cycle, moved: list[Lease]) -> None:
    """Wide ones first, as when their places were found; who has not stopped yet keeps its place."""
    for lease in sorted(moved, key=lambda each: -each.size):
        state, node = cycle.fleet.jobs[lease.job], cycle.fleet.nodes.get(lease.node)
        if node is None or node.pool not in cycle.pools(state.shape) or state.cancel_requested:
            continue
        parts = place(state.job, cycle.draft, node.pool)
        if parts is not None and lease.ended_s is None:
            cycle.draft.take(parts, state.job)
        elif parts is not None and cycle.not_now(state) is None:
            cycle.start(state, parts)
            cycle.settled.add(lease.job)


def consolidate(cycle: Cycle, state: JobState, pools: list[Pool]) -> bool:
    """Whether jobs are moved for this gang, which finds no place."""
    fleet, rules, now_s, job = cycle.fleet, cycle.rules, cycle.now_s, state.job
    if not rules.moves or job.within == "any" or job.gpus < 2 or now_s % rules.rerank_s >= REVIEW_S:
        return False
    rested = [move.lease.job for move in fleet.moves.after(now_s - HOUR_S)]
    left = int(rules.moves * len(fleet.running)) - len(rested) - cycle.moved
    if left <= 0 or cycle.move_tries <= 0 or is_mixed(fleet, rules):
        return False
    cycle.move_tries -= 1  # a look costs a walk over the fleet's nodes

    def may_leave(lease: Lease) -> bool:
        return lease.job not in rested and _may_leave(cycle, state, lease)

    found = [cell for pool in pools if (cell := cheapest(cycle, state, pool, may_leave)) is not None]
    best = min(found, key=lambda cell: cell.lost_gpu_s, default=None)
    if best is None or len(best.victims) > left:
        return False
    wait_s = _otherwise_s(cycle, state, pools) - now_s
    if wait_s * job.gpus <= best.lost_gpu_s:
        return False
    gpu_hours = {"gains": Number(wait_s * job.gpus / HOUR_S, 2), "costs": Number(best.lost_gpu_s / HOUR_S, 2)}
    _keep(cycle, state, best, say(MOVED, job=job.job, sooner=Seconds(wait_s), **gpu_hours))
    cycle.moved += len(best.victims)
    _go_elsewhere(cycle, [*best.victims])
    return True


def _may_leave(cycle: Cycle, gang: JobState, lease: Lease) -> bool:
    """A small job of its class or a lower one that nothing keeps where it is, and that may start again."""
    state, slot = cycle.fleet.jobs[lease.job], cycle.fleet.capacity.by_name.get(lease.node)
    job, rules = state.job, cycle.rules
    if lease.phase != "running" or lease.lease in cycle.spoken_for or slot is None or state.hold:
        return False
    if not 0 < lease.size < gang.job.gpus or lease.rest or lease.gpu_milli < WHOLE_GPU or job.max_gpus:
        return False
    is_kept = (
        lease.job in cycle.kept
        or job.deadline_s is not None
        or job.deferrable
        or lease.reservation
        or lease.notice_s is not None
        or lease.turn_until_s > cycle.now_s
        or PRIORITIES[job.priority] < PRIORITIES[gang.job.priority]
    )
    if is_kept or (rules.quotas and not is_own(at_size(job, 0), rules, cycle.held)):
        return False
    if lease.microusd_per_gpu_hour != cycle.prices[slot.pool] or slot.pool not in cycle.pools(state.shape):
        return False
    return cycle.unpaid(state) is None and may_move(state, rules, now_s=cycle.now_s)


def _otherwise_s(cycle: Cycle, state: JobState, pools: list[Pool]) -> float:
    """When a cell would become free by itself: where nobody knows, a job goes on as long as it has run."""
    fleet, now_s, slots = cycle.fleet, cycle.now_s, cycle.fleet.capacity.slots

    def ends_s(lease: Lease) -> float:
        if lease.phase == "ending":
            return now_s
        left_s = expected_left_s(fleet.jobs[lease.job], cycle.rules, now_s=now_s)
        return now_s + left_s / max(lease.speed, 1e-9)

    times_s = (
        free_at(fleet, [slots[i].node.node for i in cell], state.job.gpus, ends_s, now_s=now_s)
        for pool in pools
        for cell in cells(cycle, state.job, pool)
    )
    return min((at_s for at_s in times_s if at_s > now_s), default=now_s)  # what is free is kept for others
