"""Try the waiting jobs in order: the next one starts, makes others leave, keeps a cell, or is passed.

A blocked job first looks for a cell it may clear of others; then it blocks those behind it, or keeps a cell,
or lets them pass, as the rules say. A job that cannot be placed on this fleet at all blocks nobody.
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


def place_in_order(cycle: Cycle) -> None:
    """One of each shape is tried, until that shape finds no place."""
    if cycle.targets is not None or not len(cycle.fleet.waiting):
        return  # every job's place was settled by type, or none waits
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
        held_back = cycle.may_be_held(job) and cycle.not_now(state) is not None
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
        if len(elsewhere) < len(pools):  # others of its shape may go where it may not, and none waits for it
            cycle.avoided_until_s += (state.avoid_until_s,)
            heads.next()
            continue
        if not held_back and _can_help(cycle, state, pools):  # who may not start yet stops nobody
            search = cycle.search()
            if _clear_a_cell(cycle, state, pools) or consolidate(cycle, state, pools):
                free = cycle.draft.most_free()
                heads.next()
                continue
            claims = cycle.owns(job) or (cycle.blocked is None and search and search.may_stop_lower(state))
            ready_s = state.waiting_since_s + cycle.rules.min_run_s
            if claims and ready_s > cycle.now_s:
                cycle.ready_s = min(ready_s, cycle.ready_s or ready_s)
            free = _block(cycle, state, pools, free)
            if len(cycle.closed) == len(cycle.fleet.capacity.pools):
                return
        # Its plan, its purse and its user's limit say nothing of others of its shape.
        _pass_by(cycle, heads, state, alone=planned or (held_back and _by_itself(cycle, state)))


def _next(cycle: Cycle, heads: Heads) -> JobState | None:
    """The next that is not settled already: in a market pool, or because it was its turn."""
    while (state := heads.peek()) is not None and state.job.job in cycle.settled:
        heads.next()
    return state


def _is_hopeless(cycle: Cycle, state: JobState, free: int) -> bool:
    """No pool has room, and it may not look for victims now: most of what waits, most of the time."""
    job = state.job
    if cycle.rules.backfill == "none" or job.gpu_milli < WHOLE_GPU:
        return False
    if cycle.reservations and (job.predicted_work_s is not None or _may_yield(cycle, job)):
        return False  # it may be gone, or stopped, before those come whom a cell is kept for
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


def _can_help(cycle: Cycle, state: JobState, pools: list[Pool]) -> bool:
    """Whether waiting can help: a pool could hold the gang if others were gone, or the price were another."""
    return bool(pools) or bool(cycle.fleet.able_pools(state.shape))


def _pass_by(cycle: Cycle, heads: Heads, state: JobState, *, alone: bool) -> None:
    """It does not start now; nor do those behind it of its shape, unless it is `alone` in this."""
    if cycle.in_turn:
        cycle.settled.add(state.job.job)  # it may stand in the order once more
    heads.next() if alone else heads.skip_group()


def _by_itself(cycle: Cycle, state: JobState) -> bool:
    over = None if cycle.limits is None else cycle.limits.over_user(state.job)
    return over is not None or cycle.unpaid(state) is not None


def _may_keep(cycle: Cycle, job: Job) -> bool:
    """Whether a cell may be kept for one more blocked gang; a single GPU needs none.

    None is while those whose turn it is, and whom it may not send away, hold so much that the gang cannot
    fit beside them: what is free is better used by jobs that can be stopped once it does.
    """
    rules, fleet = cycle.rules, cycle.fleet
    if rules.backfill != "reserve" or job.gpus <= 1 or len(cycle.reservations) >= rules.reservations:
        return False
    in_turn = fleet.turns.gpus(cycle.now_s, rank=PRIORITIES[job.priority])
    return not in_turn or fleet.capacity.gpus - in_turn >= job.gpus


def _block(cycle: Cycle, state: JobState, pools: list[Pool], free: int) -> int:
    """Let nobody pass a blocked gang, or keep the emptiest cell for it, if the rules say so.

    Says how many GPUs the best pool has left.
    """
    if cycle.blocked is None:
        cycle.blocked = state
    if cycle.rules.backfill == "none":
        cycle.closed |= frozenset(pools)  # where it waits; elsewhere life goes on
        return free
    kept = reserve(state, cycle.draft, pools) if free and _may_keep(cycle, state.job) else None
    if kept is None:
        return free
    cycle.reservations.append(kept)
    for index in kept.nodes:
        cycle.draft.hold(index)
    return cycle.draft.most_free()
