"""Try the waiting jobs in order: each one starts, preempts others, keeps a cell, or is passed over.

A blocked job first looks for a cell it may clear. Failing that, it blocks the jobs behind it, keeps a cell,
or lets them pass, depending on the rules. A job that can never be placed on this fleet blocks nothing.
"""

from __future__ import annotations

from brimful.fleet.events import Parts
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job
from brimful.fleet.ranked import Heads
from brimful.fleet.state import JobState, Pool
from brimful.scheduler.actions.consolidate import consolidate
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.ordering import waiting_in_order
from brimful.scheduler.placing.pools import choose, worth_of_types
from brimful.scheduler.placing.reserve import in_reserved, reserve
from brimful.scheduler.plan import earliest


def place_in_order(cycle: Cycle) -> None:
    """Try one job of each shape at a time, until that shape finds no place."""
    if cycle.targets is not None or not len(cycle.fleet.waiting):
        return  # the review chose every place, or no job waits
    first = [cycle.fleet.waiting[name] for name in cycle.in_turn] if cycle.in_turn else ()
    heads = waiting_in_order(cycle.fleet, cycle.rules, first, now_s=cycle.now_s)
    free = cycle.draft.most_free()
    while (state := _next(cycle, heads) if cycle.settled else heads.peek()) is not None:
        job = state.job
        if free < job.gpus and _is_hopeless(cycle, state, free):
            heads.skip_group()
            continue
        pools = cycle.open_pools(state.shape)
        if (cycle.closed or cycle.draft.sold) and not pools:
            heads.skip_group()
            continue
        held_back = cycle.may_be_held(job) and cycle.is_held_back(state)
        planned = cycle.finish is not None and job.job in cycle.finish.verdicts
        if planned:
            pools = cycle.planned(state, pools)
            held_back = held_back or not pools
        pools = cycle.within_limits(state, pools)
        crowded = job.gpu_milli == WHOLE_GPU and free < job.gpus and not cycle.reservations
        elsewhere = cycle.elsewhere(state, pools) if state.avoid_site else pools
        parts = None if held_back or crowded else _find(cycle, state, elsewhere)
        if parts is not None:
            cycle.start(state, parts)
            free = cycle.draft.most_free()
            heads.next()
            continue
        # Others of its shape may use the site it avoids, so nothing is kept for it.
        if len(elsewhere) < len(pools):
            cycle.avoided_until_s += (state.avoid_until_s,)
            heads.next()
            continue
        if not held_back and _waiting_helps(cycle, state, pools):  # else it must not preempt yet
            search = cycle.search()
            if _clear_a_cell(cycle, state, pools) or consolidate(cycle, state, pools):
                free = cycle.draft.most_free()
                heads.next()
                continue
            owns = cycle.owns(job)
            if search is not None and (owns or (cycle.blocked is None and search.may_stop_lower(state))):
                cycle.ready_s = earliest(cycle.ready_s, search.stoppable_s(state, owns=owns))
            free = _block(cycle, state, pools, free)
            if len(cycle.closed) == len(cycle.fleet.capacity.pools):
                return
        # Its plan, its budget, its user's limit and its quote say nothing about other jobs of its shape.
        _pass_over(cycle, heads, state, alone=planned or (held_back and _concerns_it_alone(cycle, state)))


def _next(cycle: Cycle, heads: Heads) -> JobState | None:
    """The next job that is not settled yet (in a market pool, or because it was its turn)."""
    while (state := heads.peek()) is not None and state.job.job in cycle.settled:
        heads.next()
    return state


def _is_hopeless(cycle: Cycle, state: JobState, free: int) -> bool:
    """No pool has room and it may not look for victims now: true of most waiting jobs most of the time."""
    job = state.job
    if cycle.rules.backfill == "none" or job.gpu_milli < WHOLE_GPU:
        return False
    if cycle.reservations and (job.predicted_work_s is not None or _may_yield(cycle, job)):
        return False  # it may end, or be stopped, before the gang that the cell is kept for needs it
    search = cycle.search()
    if search is not None and search.tries > 0 and search.may_look(state, owns=cycle.owns(job)):
        return False
    return not free or not _may_keep(cycle, job)


def _find(cycle: Cycle, state: JobState, pools: list[Pool]) -> Parts | None:
    job = state.job
    if pools:
        if cycle.worth is None and len(pools) > 1:
            cycle.worth = worth_of_types(cycle.fleet, cycle.rules)
        parts = choose(job, cycle.draft, pools, cycle.rules, worth=cycle.worth or {}, prices=cycle.prices)
        if parts is not None:
            return parts
    if not cycle.reservations:
        return None
    return in_reserved(state, cycle, pools)


def _may_yield(cycle: Cycle, job: Job) -> bool:
    return any(kept.may_stop(job, cycle.rules) for kept in cycle.reservations)


def _clear_a_cell(cycle: Cycle, state: JobState, pools: list[Pool]) -> bool:
    search = cycle.search()
    cell = search.cell_for(state, pools, owns=cycle.owns(state.job)) if search is not None else None
    if search is None or cell is None:
        return False
    search.commit(cell)
    cycle.make_room(state, cell)
    return True


def _waiting_helps(cycle: Cycle, state: JobState, pools: list[Pool]) -> bool:
    """Whether waiting can help: a pool could hold the gang if other jobs left or the price changed."""
    return bool(pools) or bool(cycle.fleet.able_pools(state.shape))


def _pass_over(cycle: Cycle, heads: Heads, state: JobState, *, alone: bool) -> None:
    """Pass over the job for now, and all of its shape behind it unless the reason concerns it `alone`."""
    if cycle.in_turn:
        cycle.settled.add(state.job.job)  # it may appear in the order a second time
    heads.next() if alone else heads.skip_group()


def _concerns_it_alone(cycle: Cycle, state: JobState) -> bool:
    over = None if cycle.limits is None else cycle.limits.over_user(state.job)
    return over is not None or state.job.deferrable or cycle.unpaid(state) is not None


def _may_keep(cycle: Cycle, job: Job) -> bool:
    """Whether to keep a cell for one more blocked gang; a single GPU needs none.

    No, while jobs whose turn it is, and that it may not preempt, hold so much that the gang cannot fit beside
    them: until then the free GPUs are better used by jobs that can be stopped later.
    """
    rules, fleet = cycle.rules, cycle.fleet
    if rules.backfill != "reserve" or job.gpus <= 1 or len(cycle.reservations) >= rules.reservations:
        return False
    in_turn = fleet.turns.gpus(cycle.now_s, rank=PRIORITIES[job.priority])
    return not in_turn or fleet.capacity.gpus - in_turn >= job.gpus


def _block(cycle: Cycle, state: JobState, pools: list[Pool], free: int) -> int:
    """Let no job pass a blocked gang, or keep the emptiest cell for it, as the rules say.

    Returns how many GPUs the best pool has left.
    """
    if cycle.blocked is None:
        cycle.blocked = state
    if cycle.rules.backfill == "none":
        cycle.closed |= frozenset(pools)  # only the pools it waits for; the others stay open
        return free
    kept = reserve(state, cycle.draft, pools) if free and _may_keep(cycle, state.job) else None
    if kept is None:
        return free
    cycle.reservations.append(kept)
    for index in kept.nodes:
        cycle.draft.hold(index)
    return cycle.draft.most_free()
