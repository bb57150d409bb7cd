"""One cycle of thought: the state and the prices in, a plan out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from brimful.fleet.events import Event, Parts
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job
from brimful.fleet.noun import maker
from brimful.fleet.ranked import Heads
from brimful.fleet.state import Fleet, JobState, Pool
from brimful.scheduler.auction import Auctions
from brimful.scheduler.draft import Draft
from brimful.scheduler.finish import Finish, finish
from brimful.scheduler.plan import Plan, Reasons, Start, Stop
from brimful.scheduler.policies.assign import assign, is_mixed
from brimful.scheduler.policies.backfill import Reservation, in_reserved, reserve
from brimful.scheduler.policies.money import Money
from brimful.scheduler.policies.offpeak import defer
from brimful.scheduler.policies.order import by_queue, waiting_in_order
from brimful.scheduler.policies.place import ONE_NODE, place, why_not
from brimful.scheduler.policies.preempt import Cell, Search
from brimful.scheduler.policies.quota import Books, borrowed, is_own, over_quota, owed, queue_of
from brimful.scheduler.policies.stop import cost_microusd, stops
from brimful.scheduler.policies.turn import whose_turn
from brimful.scheduler.policies.types import allowed_pools, choose, worth_of_types
from brimful.scheduler.rules import Rules
from brimful.units import HOUR_S, show_usd

__all__ = ["Rules", "decide"]

AHEAD_S = 60  # a start must be paid for so long, so that a tenant's last cent does not start many


_new_start, _new_plan = maker(Start), maker(Plan)


@dataclass
class _Turn:
    """A decision in the making. What most decisions never touch is the class's, until somebody sets it."""

    fleet: Fleet
    rules: Rules
    prices: Mapping[Pool, int]
    now_s: int
    draft: Draft
    search: Search
    held: dict[str, int]
    money: Money | None  # of tenants with a hard budget
    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)
    waited_for: dict[str, int] = field(default_factory=dict)  # GPUs of its own a lending queue waits for
    # At a review of a mixed fleet: each job's pool.
    targets: dict[str, Pool | None] | None = field(default=None, init=False)
    closed: frozenset[Pool] = field(default=frozenset(), init=False)  # where a blocked job lets nobody pass
    worth: Mapping[str, float] | None = field(default=None, init=False)  # of a GPU of each type, once asked
    blocked: JobState | None = field(default=None, init=False)  # the first that waits although waiting helps
    market: Auctions | None = field(default=None, init=False)
    market_events: Sequence[Event] = field(default=(), init=False)
    market_again_s: int | None = field(default=None, init=False)
    # Who was dealt with and is not asked again: it starts in a market pool, or it was its turn.
    settled: set[str] = field(default_factory=set, init=False)
    # When jobs may go back to a site that failed.
    avoided_until_s: tuple[int, ...] = field(default=(), init=False)
    # What jobs with a deadline may use, where there is spot to choose.
    finish: Finish | None = field(default=None, init=False)


def decide(
    fleet: Fleet,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    unreachable: Collection[str] = (),
    market: Auctions | None = None,
) -> Plan:
    """Stop what must end, clear the market pools, then give free GPUs of the others to waiting jobs in order.

    A blocked job first looks for a cell it may clear of others; then it blocks those behind it, or keeps a
    cell, or lets them pass, as the rules say. A job that cannot be placed on this fleet at all blocks nobody.
    Nothing starts at a site that cannot be reached.
    """
    sold = frozenset(market.market.in_fleet(fleet)) if market is not None else ()
    draft = Draft(fleet.capacity)
    if unreachable or sold:
        draft.closed, draft.sold = unreachable, sold
    # By position: keywords to a class go through a dict, and this is made at every event.
    turn = _Turn(
        fleet,
        rules,
        prices,
        now_s,
        draft,
        Search(fleet, draft, rules, now_s),
        {name: usage.held for name, usage in fleet.usage.items()} if rules.quotas else {},
        Money(fleet, now_s=now_s) if fleet.purses else None,
    )
    if fleet.may_have_to_stop(now_s):
        turn.stops = [Stop(lease=lease, reason=why) for lease, why in stops(fleet, now_s=now_s)]
    if turn.money is not None:
        told = {stop.lease for stop in turn.stops}
        turn.stops += [
            Stop(lease=lease.lease, reason=why, requeue=True)
            for lease, why in turn.money.broke()
            if lease.lease not in told
        ]
    if market is not None:
        _auction(turn, market, unreachable)
    if fleet.due and fleet.spot:
        turn.finish = finish(fleet, draft, rules, turn.prices, now_s=now_s)
        told = {stop.lease for stop in turn.stops}
        turn.stops += [stop for stop in turn.finish.moves if stop.lease not in told]
    if turn.stops:
        turn.search.spoken_for.update([stop.lease for stop in turn.stops])
    if rules.quotas:
        _open_books(turn)
    if rules.turns and len(fleet.waiting):
        line = whose_turn(fleet, rules, _could_start(turn), now_s=now_s, sold=sold)
        turn.search.in_turn = {state.job.job: None for state in line}
    if is_mixed(fleet, rules):
        _review_types(turn)
    if turn.targets is None:
        if len(fleet.waiting):
            _walk(turn)
    else:
        _place_settled(turn, turn.targets)
    return _new_plan(
        starts=turn.starts,
        stops=turn.stops,
        waits=_reasons(turn, unreachable),
        market=[*turn.market_events],
        look_again_s=_look_again_s(turn),
    )


def _open_books(turn: _Turn) -> None:
    """What lending queues wait for, and what the others would have to give back."""
    fleet, rules = turn.fleet, turn.rules

    def wants_now(state: JobState) -> bool:
        pools = allowed_pools(fleet, state.shape, turn.draft, turn.prices)
        return bool(pools) and (not state.job.deferrable or _not_now(turn, state, quotas=False) is None)

    turn.waited_for = owed(fleet, rules, turn.held, wants_now)
    if rules.reclaim:
        turn.search.borrowed = borrowed(fleet, rules, turn.held)


def _could_start(turn: _Turn) -> Callable[[JobState], bool]:
    """Whether a job might start now if it were next; pools and quotas are looked at once for all alike."""
    alike: dict[tuple[str, int], bool] = {}

    def could(state: JobState) -> bool:
        kind, job = by_queue(state), state.job
        found = alike.get(kind)
        if found is None:
            found = alike[kind] = bool(_open_pools(turn, state.shape)) and _over_quota(turn, job) is None
        return found and (not _may_be_held(turn, job) or _not_now(turn, state, quotas=False) is None)

    return could


def _auction(turn: _Turn, market: Auctions, unreachable: Collection[str]) -> None:
    """Let the market choose who holds GPUs of its pools, and at what price."""
    done = market.hold(
        turn.fleet,
        now_s=turn.now_s,
        unreachable=unreachable,
        money=turn.money,
        not_now=lambda state: _not_now(turn, state) if _may_be_held(turn, state.job) else None,
    )
    told = {stop.lease for stop in turn.stops}
    turn.market, turn.market_events, turn.market_again_s = market, done.events, done.look_again_s
    turn.prices = {**turn.prices, **done.prices}
    turn.stops += [stop for stop in done.stops if stop.lease not in told]
    for state, parts in done.starts:
        _start(turn, state, parts)
    turn.settled.update(state.job.job for state, _ in done.starts)


def _walk(turn: _Turn) -> None:
    """Try the waiting jobs in order, one of each shape until that shape finds no place."""
    first = [turn.fleet.waiting[name] for name in turn.search.in_turn]
    heads = waiting_in_order(turn.fleet, turn.rules, first, now_s=turn.now_s)
    free = turn.draft.most_free()
    while (state := _next(turn, heads) if turn.settled else heads.peek()) is not None:
        job = state.job
        if free < job.gpus and _is_hopeless(turn, state, free):
            heads.skip_group()
            continue
        pools = _open_pools(turn, state.shape)
        if (turn.closed or turn.draft.sold) and not pools:
            heads.skip_group()
            continue
        held_back = _may_be_held(turn, job) and _not_now(turn, state) is not None
        planned = turn.finish is not None and job.job in turn.finish.verdicts
        if planned:
            pools = _planned(turn, state, pools)
            held_back = held_back or not pools
        crowded = job.gpu_milli == WHOLE_GPU and free < job.gpus and not turn.reservations
        elsewhere = _elsewhere(turn, state, pools) if state.avoid_site else pools
        parts = None if held_back or crowded else _find(turn, state, elsewhere)
        if parts is not None:
            _start(turn, state, parts)
            free = turn.draft.most_free()
            heads.next()
            continue
        if len(elsewhere) < len(pools):  # others of its shape may go where it may not, and none waits for it
            turn.avoided_until_s += (state.avoid_until_s,)
            heads.next()
            continue
        if not held_back and _can_help(turn, state, pools):  # who may not start yet stops nobody
            cell = turn.search.cell_for(state, pools, owns=_owns(turn, job))
            if cell is not None:
                _clear(turn, state, cell)
                free = turn.draft.most_free()
                heads.next()
                continue
            if turn.blocked is None:
                turn.blocked = state
            if turn.rules.backfill == "none":
                turn.closed |= frozenset(pools)  # nobody passes it where it waits; elsewhere life goes on
                if len(turn.closed) == len(turn.fleet.capacity.pools):
                    return
            free = _keep_a_cell(turn, state, pools, free)
        # Its plan and its purse say nothing of others of its shape.
        _pass_by(turn, heads, state, alone=planned or (held_back and _unpaid(turn, state) is not None))


def _pass_by(turn: _Turn, heads: Heads, state: JobState, *, alone: bool) -> None:
    """It does not start now; nor do those behind it of its shape, unless it is `alone` in this."""
    if turn.search.in_turn:
        turn.settled.add(state.job.job)  # it may stand in the order once more
    heads.next() if alone else heads.skip_group()


def _planned(turn: _Turn, state: JobState, pools: list[Pool]) -> list[Pool]:
    """The pools that the plan for its deadline lets a job use now."""
    return pools if turn.finish is None else turn.finish.only(state.job.job, pools)


def _next(turn: _Turn, heads: Heads) -> JobState | None:
    """The next that is not settled already: in a market pool, or because it was its turn."""
    while (state := heads.peek()) is not None and state.job.job in turn.settled:
        heads.next()
    return state


def _open_pools(turn: _Turn, shape: int) -> list[Pool]:
    pools = allowed_pools(turn.fleet, shape, turn.draft, turn.prices)
    return [pool for pool in pools if pool not in turn.closed] if turn.closed else pools


def _is_hopeless(turn: _Turn, state: JobState, free: int) -> bool:
    """No pool has room, and it may not look for victims now: most of what waits, most of the time."""
    job, search = state.job, turn.search
    if turn.rules.backfill == "none" or job.gpu_milli < WHOLE_GPU:
        return False
    if turn.reservations and job.predicted_work_s is not None:
        return False  # it may be gone before those are who a cell is kept for
    if search.tries > 0:
        owns = bool(search.borrowed) and _owns(turn, job)
        if search.may_look(state, owns=owns):
            return False
    return not free or not _may_keep(turn, job)


def _review_types(turn: _Turn) -> None:
    """On a fleet of several GPU types, settle who should be on which, and stop those who should change."""
    fleet, now_s = turn.fleet, turn.now_s
    turn.search.by_class_only = True
    pools_of = _Pools(turn)
    books = None
    if turn.rules.quotas:
        gpus = sum(pool.gpus for pool in fleet.capacity.pools.values())
        books = Books(turn.rules, held=turn.held, waited_for=turn.waited_for, gpus_in_fleet=gpus)
    turn.targets = assign(
        fleet,
        turn.rules,
        pools_of,
        now_s=now_s,
        in_turn=turn.search.in_turn,
        books=books,
        may_start=lambda state: (
            not _may_be_held(turn, state.job) or _not_now(turn, state, quotas=False) is None
        ),
    )
    if turn.finish is not None and turn.targets is not None:
        turn.targets |= turn.finish.targets(fleet)
    for name, pool in (turn.targets or {}).items():
        lease = fleet.jobs[name].open_lease
        if lease is None or lease.lease in turn.search.spoken_for:
            continue
        slot = fleet.capacity.by_name.get(lease.node)
        here = fleet.nodes[lease.node].pool if slot is None else slot.pool
        if here in turn.draft.sold:
            continue  # the market keeps whom it has chosen
        if pool != here:
            why = "makes room for jobs that gain more" if pool is None else f"moves to {pool.gpu}"
            if pool is None and books is not None:
                why = books.gives_back(fleet.jobs[name].job) or why
            turn.stops.append(Stop(lease=lease.lease, reason=why, requeue=True))
            turn.search.spoken_for.add(lease.lease)


def _place_settled(turn: _Turn, targets: Mapping[str, Pool | None]) -> None:
    """Everybody's type is settled: wide gangs first; who has none waits, or waits for others to leave."""
    moving = bool(turn.stops)
    chosen = [state for state in turn.fleet.waiting.values() if targets.get(state.job.job) is not None]
    for state in sorted(chosen, key=lambda each: (-each.job.gpus, each.serial)):
        pool = targets[state.job.job]
        if pool is None or _not_now(turn, state) or state.job.job in turn.settled:
            continue
        if state.avoid_site and pool not in _elsewhere(
            turn, state, allowed_pools(turn.fleet, state.shape, turn.draft, turn.prices)
        ):
            turn.avoided_until_s += (state.avoid_until_s,)
            continue
        parts = place(state.job, turn.draft, pool)
        if parts is not None:
            _start(turn, state, parts)
        elif not moving and state.job.within in ONE_NODE:
            _make_a_node(turn, state, pool, targets)
    if turn.search.borrowed and not turn.stops:
        _claim(turn)


def _claim(turn: _Turn) -> None:
    """Who stays within its queue's quota and found no GPU of its types has back what was borrowed of them."""
    starting = {start.job for start in turn.starts}
    for state in turn.fleet.waiting.values():
        job = state.job
        if job.job in starting or not _owns(turn, job) or _not_now(turn, state) is not None:
            continue
        pools = allowed_pools(turn.fleet, state.shape, turn.draft, turn.prices)
        cell = turn.search.cell_for(state, _planned(turn, state, pools), owns=True)
        if cell is not None:
            _clear(turn, state, cell)


def _make_a_node(turn: _Turn, state: JobState, pool: Pool, targets: Mapping[str, Pool | None]) -> None:
    """The pool has the GPUs and no node has: whoever is on the emptiest node goes to the gaps elsewhere."""
    best: tuple[int, int, list[str]] | None = None
    for slot in turn.fleet.capacity.slots.values():
        if slot.pool != pool or slot.node.good_gpus < state.job.gpus:
            continue
        leases = turn.fleet.leases_on.get(slot.node.node, {}).values()
        free, held = len(turn.draft.free_on(slot.index)), sum(lease.size for lease in leases)
        if free + held < state.job.gpus or held > turn.draft.free_in(pool) - free:
            continue
        if any(targets.get(x.job) != pool or x.lease in turn.search.spoken_for for x in leases):
            continue
        if best is None or held < best[0]:
            best = (held, slot.index, [lease.lease for lease in leases])
    if best is not None:
        turn.draft.hold(best[1])
        turn.search.spoken_for.update(best[2])
        why = f"makes a whole node for {state.job.job}"
        turn.stops += [Stop(lease=lease, reason=why, requeue=True) for lease in best[2]]


class _Pools(dict[int, list[Pool]]):
    """Pools by shape, found when first asked for."""

    def __init__(self, turn: _Turn) -> None:
        self._turn = turn

    def __missing__(self, shape: int) -> list[Pool]:
        turn = self._turn
        pools = allowed_pools(turn.fleet, shape, turn.draft, turn.prices)
        self[shape] = pools
        return pools


def _elsewhere(turn: _Turn, state: JobState, pools: list[Pool]) -> list[Pool]:
    """The pools without the site that has just failed or evicted this job, if others could hold it."""
    if not state.avoid_site or turn.now_s >= state.avoid_until_s:
        return pools
    others = [pool for pool in pools if pool.site != state.avoid_site]
    return others or pools


def _find(turn: _Turn, state: JobState, pools: list[Pool]) -> Parts | None:
    job = state.job
    if pools:
        if turn.worth is None and len(pools) > 1:
            turn.worth = worth_of_types(turn.fleet, turn.rules)
        parts = choose(job, turn.draft, pools, turn.rules, worth=turn.worth or {}, prices=turn.prices)
        if parts is not None:
            return parts
    if not turn.reservations:
        return None
    return in_reserved(
        state,
        turn.fleet,
        turn.draft,
        pools=pools,
        reservations=turn.reservations,
        starts=turn.starts,
        now_s=turn.now_s,
    )


def _may_be_held(turn: _Turn, job: Job) -> bool:
    """Whether `_not_now` has anything to look at: it mostly has not."""
    return (
        job.budget_microusd is not None or job.deferrable or bool(turn.rules.quotas) or turn.money is not None
    )


def _not_now(turn: _Turn, state: JobState, *, quotas: bool = True) -> str | None:
    """Why a job that would fit is not to start yet: its queue's quota, or a quiet hour to come."""
    rules = turn.rules
    reason = _unpaid(turn, state) or (_over_quota(turn, state.job) if quotas else None)
    if reason is not None:
        return reason
    if rules.off_peak and state.job.deferrable:
        free = sum(turn.draft.free_in(pool) for pool in turn.fleet.capacity.pools)
        return defer(state, turn.fleet, free=free, now_s=turn.now_s)
    return None


def _unpaid(turn: _Turn, state: JobState) -> str | None:
    """Why nobody would pay for it: its own budget or its tenant's is used up."""
    budget = state.job.budget_microusd
    if budget is not None and state.leases and cost_microusd(state, now_s=turn.now_s) >= budget:
        return f"its budget of {show_usd(budget)} is used up"
    return None if turn.money is None else turn.money.lacks(state.job, 1)


def _over_quota(turn: _Turn, job: Job) -> str | None:
    if not turn.rules.quotas:
        return None
    gpus = sum(pool.gpus for pool in turn.fleet.capacity.pools.values())
    return over_quota(job, turn.rules, turn.held, gpus, turn.waited_for)


def _can_help(turn: _Turn, state: JobState, pools: list[Pool]) -> bool:
    """Whether waiting can help: a pool could hold the gang if others were gone, or the price were another."""
    return bool(pools) or bool(turn.fleet.able_at_all(state.shape))


def _start(turn: _Turn, state: JobState, parts: Parts) -> None:
    job = state.job
    turn.draft.take(parts, job)
    if turn.search.in_turn:
        turn.settled.add(job.job)
    node, gpus = parts[0]
    price = turn.prices[turn.fleet.nodes[node].pool]
    if turn.money is not None:
        turn.money.promise(job, price * job.gpus * AHEAD_S // HOUR_S)
    if turn.rules.quotas:
        _hold(turn, job)
    turn.starts.append(
        _new_start(
            job=job.job,
            lease=f"{job.job}.{len(state.leases) + 1}",
            node=node,
            gpus=gpus,
            microusd_per_gpu_hour=price,
            rest=parts[1:],
            in_turn=job.job in turn.search.in_turn,
        )
    )


def _clear(turn: _Turn, state: JobState, cell: Cell) -> None:
    """Whole gangs leave one cell; the GPUs are the blocked gang's once they have really stopped."""
    turn.search.commit(cell)
    if turn.search.in_turn:
        turn.settled.add(state.job.job)
    if turn.rules.quotas:
        _hold(turn, state.job)
    turn.cells[state.job.job] = cell
    turn.stops += [
        Stop(lease=lease.lease, reason=f"preempted by {state.job.job}", requeue=True)
        for lease in cell.victims
    ]


def _owns(turn: _Turn, job: Job) -> bool:
    """Whether others hold what is this job's queue's own, and it may have it back."""
    return bool(turn.search.borrowed) and is_own(job, turn.rules, turn.held)


def _hold(turn: _Turn, job: Job) -> None:
    """The job's queue has, or will have, so many more."""
    queue = queue_of(job)
    turn.held[queue] = turn.held.get(queue, 0) + job.gpus
    if queue in turn.waited_for:
        turn.waited_for[queue] = max(0, turn.waited_for[queue] - job.gpus)


def _may_keep(turn: _Turn, job: Job) -> bool:
    """Whether a cell may be kept for one more blocked gang; a single GPU needs none.

    None is while those whose turn it is, and whom it may not send away, hold so much that the gang cannot
    fit beside them: what is free is better used by jobs that can be stopped once it does.
    """
    rules, fleet = turn.rules, turn.fleet
    if rules.backfill != "reserve" or job.gpus <= 1 or len(turn.reservations) >= rules.reservations:
        return False
    in_turn = fleet.turns.gpus(turn.now_s, rank=PRIORITIES[job.priority])
    return not in_turn or sum(pool.gpus for pool in fleet.capacity.pools.values()) - in_turn >= job.gpus


def _keep_a_cell(turn: _Turn, state: JobState, pools: list[Pool], free: int) -> int:
    """Keep the emptiest cell for a blocked gang, if it may; says how many GPUs the best pool has left."""
    kept = reserve(state, turn.draft, pools) if free and _may_keep(turn, state.job) else None
    if kept is None:
        return free
    turn.reservations.append(kept)
    for index in kept.nodes:
        turn.draft.hold(index)
    return turn.draft.most_free()


def _look_again_s(turn: _Turn) -> int | None:
    fleet, rules = turn.fleet, turn.rules
    limit = fleet.next_limit_s(turn.now_s)
    if turn.avoided_until_s or turn.market is not None or turn.money is not None:
        broke_s = turn.money.runs_out_s(turn.now_s) if turn.money is not None else None
        times = (limit, turn.market_again_s, broke_s, *turn.avoided_until_s)
        limit = min((at for at in times if at is not None), default=None)
    if turn.finish is not None and turn.finish.look_again_s is not None:
        limit = min(turn.finish.look_again_s, limit or turn.finish.look_again_s)
    waiting = len(fleet.waiting) > len(turn.starts)
    due = rules.deadlines and fleet.due
    if (waiting and (rules.preempt == "index" or rules.off_peak or due)) or (
        fleet.open_leases and is_mixed(fleet, rules)
    ):
        every_s = rules.rerank_s
        review_s = (turn.now_s // every_s + 1) * every_s  # on the hour's grid, so that reviews coincide
        return review_s if limit is None else min(limit, review_s)
    return limit


def _reasons(turn: _Turn, unreachable: Collection[str]) -> Reasons:
    """Reasons worded on demand, from the plan if it is still to come and from the fleet once it is done."""
    fleet, seq = turn.fleet, turn.fleet.seq

    def jobs() -> Iterator[str]:
        starting = {start.job for start in turn.starts}
        return (name for name in fleet.waiting if name not in starting)

    def why(name: str) -> str | None:
        if name not in fleet.waiting or any(start.job == name for start in turn.starts):
            return None
        draft = Draft(fleet.capacity, closed=unreachable, sold=turn.draft.sold)
        if fleet.seq == seq:
            for start in turn.starts:
                draft.take(((start.node, start.gpus), *start.rest), fleet.jobs[start.job].job)
        sold = None if turn.market is None else turn.market.why(fleet.waiting[name], fleet, now_s=turn.now_s)
        return _worded(turn, fleet.waiting[name], draft) if sold is None else sold

    return Reasons(jobs, why)


def _worded(turn: _Turn, state: JobState, draft: Draft) -> str:
    """Why this job waits, with numbers."""
    pools = allowed_pools(turn.fleet, state.shape, draft, turn.prices)
    reason, can_help = why_not(state.job, turn.fleet, draft, _planned(turn, state, pools))
    if turn.finish is not None and state.job.job in turn.finish.verdicts:
        told = turn.finish.verdicts[state.job.job].reason
        pools = _planned(turn, state, pools)
        reason, can_help = (f"{reason}; {told}", can_help) if pools else (told, False)
    if not can_help:
        return reason
    cell = turn.cells.get(state.job.job)
    if cell is not None and cell.victims:
        return f"{reason}; {', '.join(lease.job for lease in cell.victims)} will stop for it"
    held_back = _not_now(turn, state)
    if held_back is None and len(_elsewhere(turn, state, pools)) < len(pools):
        left_s = state.avoid_until_s - turn.now_s
        held_back = f"{reason}; not back to {state.avoid_site}, where it has just failed, for {left_s} s"
    if held_back is not None:
        return held_back
    blocked = turn.blocked if turn.rules.backfill == "none" else None
    if blocked is not None and blocked is not state:
        return f"waits behind {blocked.job.job}, which needs {blocked.job.gpus}; {reason}"
    if any(place(state.job, draft, pool) is not None for pool in pools):
        kept = ", ".join(r.job for r in turn.reservations) or "gangs that are being made room for"
        return f"{reason}; they are kept for {kept}"
    return reason
