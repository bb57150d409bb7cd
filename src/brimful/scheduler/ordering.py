"""Who is next: the order in which waiting jobs are tried, and which jobs a waiting job may preempt.

A waiting job's key does not change while it waits. That is why ageing is linear: if every key falls by the
same amount each second the order stays the same, so the queue never has to be sorted again.

Under `index`, a deadline about which nothing could be said at submit (`deadlines/promise.py`) is one more
such line: at the last moment at which the job can start and be in time it counts as having no work left, and
so goes before all of its class that have not waited as long. A job with a promise has a slot.
Under orders by class and age, a job goes first in its class once half of the time it could wait is over, the
one with the earliest latest start first; a late job keeps that place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from math import inf
from typing import Any, cast

from brimful.fleet.job import PRIORITIES
from brimful.fleet.lease import JobState
from brimful.fleet.ranked import Entry, Group, Heads, Key, Order, Rank, Ranked, by_shape
from brimful.fleet.state import Fleet
from brimful.scheduler.queue_tree import shares_used
from brimful.scheduler.rules import Rules

SPARE = 1.25  # times the expected work, to be in time
UNUSED = (0.0,)  # the share of a queue that has had nothing yet


def fifo(_rules: Rules) -> Key:
    """First come, first served; the order of the log breaks ties, so that equal runs stay equal."""
    return lambda state: state.ready_s


def priority(rules: Rules) -> Key:
    """Urgent before normal before background; within a class first come, first served.

    With `deadlines`, jobs with a deadline form separate groups ordered by latest start, and the key says when
    they go first in their class: once half of their slack is over.
    """

    def key(state: JobState) -> tuple[float, ...]:
        rank, came_s = PRIORITIES[state.job.priority], state.ready_s
        if not rules.deadlines or state.job.deadline_s is None:
            return (rank, came_s)
        by_s = start_by_s(state, expected_left_s(state, rules, now_s=state.waiting_since_s))
        return (rank, by_s, (came_s + by_s) / 2, came_s)

    return key


def bid(_rules: Rules) -> Key:
    """The highest limit price first; no limit means the current price and comes first."""
    return lambda state: (
        float("-inf")
        if state.job.limit_microusd_per_gpu_hour is None
        else -state.job.limit_microusd_per_gpu_hour,
        state.ready_s,
    )


def index(rules: Rules) -> Key:
    """Within a class the least expected work first, minus credit for waiting (see `_weigh`)."""

    def key(state: JobState) -> tuple[int, float, int, float]:
        left_s = expected_left_s(state, rules, now_s=state.waiting_since_s)
        place = (-left_s if longest_first(state, rules) else left_s) + rules.ageing * (
            state.ready_s + state.run_s
        )
        if rules.deadlines and state.job.deadline_s is not None and not state.is_answered:
            place = min(place, rules.ageing * start_by_s(state, left_s))
        # All jobs of a group have the same weight; `_weigh` reads it from here.
        return PRIORITIES[state.job.priority], place, state.ready_s, weight(state.job.gpus, rules.width)

    return key


def expected_left_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """Seconds of work a gang is expected to have left.

    Known: the predicted work that is left (shortest remaining first). Unknown: what jobs like it have shown
    (fleet/learned/lifetimes.py); or, without `learn`, as much again as it has had, and at least `fresh_s`:
    where the longer a job has run, the longer it will go on, this is least attained service (Nuyens and
    Wierman, "The foreground-background queue: a survey", 2008).
    """
    left = state.remaining_s(now_s) if rules.known else None
    if left is not None:
        return left
    had_s = state.attained_s(now_s)
    if rules.learn and state.kin is not None:
        return state.kin.left_s(had_s)
    return had_s if had_s > rules.fresh_s else rules.fresh_s


def longest_first(state: JobState, rules: Rules) -> bool:
    """For the least makespan the longest start first, so that none is left alone at the end (Graham, 1969).

    Among jobs without a prediction, those that have run least still go first.
    """
    return rules.objective == "makespan" and rules.known and state.job.predicted_work_s is not None


def start_by_s(state: JobState, left_s: float) -> float:
    """The latest start that keeps a job's deadline, on the GPUs that suit it best.

    A quarter more than expected, and one restart: missing a deadline costs more than starting early.
    """
    job = state.job
    assert job.deadline_s is not None
    rate = max((rate for _, rate in job.rates), default=1.0)
    return job.deadline_s - SPARE * left_s / rate - job.checkpoint_cost_s


def _must_start(fleet: Fleet, rules: Rules, *, now_s: int) -> list[JobState]:
    """Waiting jobs that must start now to keep their deadline, by class, most pressing first."""
    found: list[tuple[int, float, int, JobState]] = []
    for name, state in fleet.due.items():
        if name in fleet.waiting and state.job.deadline_s is not None and not state.is_answered:
            left_s = expected_left_s(state, rules, now_s=now_s)
            by_s = start_by_s(state, left_s)
            if by_s <= now_s and now_s + left_s <= state.job.deadline_s:
                found.append((PRIORITIES[state.job.priority], by_s, state.serial, state))
    return [each[-1] for each in sorted(found)]


MOST_WIDTH = 10.0  # above this, one GPU outweighs everything anyway, and floats overflow


@cache
def weight(gpus: int, width: float) -> float:
    """The weight of a gang of this many GPUs: a wide one keeps more others waiting."""
    found: float = max(1, gpus) ** min(width, MOST_WIDTH)
    return found


def expected_work_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """GPU-seconds a job is expected to have left, for comparing gangs of different width."""
    return expected_left_s(state, rules, now_s=now_s) * weight(state.job.gpus, rules.width)


def aged_left_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """Expected time minus credit for waiting: no job waits longer than its length / ageing.

    All waiting counts, including before the last stop: a job that has waited is not sent back at once.
    """
    job, left_s = state.job, expected_left_s(state, rules, now_s=now_s)
    waited_s = now_s - state.ready_s - state.attained_s(now_s)
    aged_s = left_s - rules.ageing * waited_s if waited_s > 0 else left_s
    if job.deadline_s is None or state.is_answered or not rules.deadlines:
        return aged_s
    if now_s + left_s <= job.deadline_s:
        # A late job has nothing to save, and preempts nobody for it.
        return min(aged_s, rules.ageing * (start_by_s(state, left_s) - now_s))
    return aged_s


def aged_work_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """The same in GPU-seconds, for comparing gangs of different width."""
    return aged_left_s(state, rules, now_s=now_s) * weight(state.job.gpus, rules.width)


def further_from_end(rules: Rules) -> Key:
    """Running jobs, most expected work first. The order holds while they run, within one group."""

    ageing, known = rules.ageing, rules.known

    def key(state: JobState) -> float:
        lease = state.leases[-1]  # the open one: it runs
        if lease.turn_until_s:
            return lease.turn_until_s  # a separate group: the first loses its turn first
        started_s = lease.started_s
        assert started_s is not None
        waited_s = started_s - state.ready_s - state.run_s
        waited = ageing * waited_s if waited_s > 0 else 0.0
        if known and state.job.predicted_work_s is not None:
            left = state.job.predicted_work_s - state.kept_work_s
            if lease.before:
                since_s = max(lease.before[-1][0], started_s + lease.setup_s)
                return -(since_s + (left - lease.done_s(since_s)) / max(lease.speed, 1e-9)) + waited
            return -(started_s + lease.setup_s + left / max(lease.speed, 1e-9)) + waited
        return float(started_s - state.run_s) + waited

    return key


def further_as_of(rules: Rules, as_of_s: int) -> Key:
    """The same at one moment; jobs whose order holds while they run keep it."""
    lasting = further_from_end(rules)

    def key(state: JobState) -> float | tuple[float, ...]:
        known = rules.known and state.job.predicted_work_s is not None
        if known or state.leases[-1].turn_until_s:
            return lasting(state)
        return -aged_left_s(state, rules, now_s=as_of_s)

    return key


def latest_start(_rules: Rules) -> Key:
    def key(state: JobState) -> float:
        lease = state.open_lease
        assert lease is not None
        assert lease.started_s is not None
        return -float(lease.started_s)

    return key


def by_class(state: JobState) -> Hashable:
    """Running jobs comparable by one constant key: same class, width, and known or unknown length.

    Jobs with a deadline are separate: how soon they are due, not that key, decides which of them may stop. So
    are jobs that run because it was their turn.
    """
    job, in_turn = state.job, state.leases[-1].turn_until_s > 0
    unknown, due = job.predicted_work_s is None, job.deadline_s is not None
    return (PRIORITIES[job.priority], job.gpus, unknown, due, in_turn)


ORDERS: dict[str, Callable[[Rules], Key]] = {
    "fifo": fifo,
    "priority": priority,
    "fair": priority,
    "bid": bid,
    "index": index,
}


def waiting_in_order(fleet: Fleet, rules: Rules, first: Sequence[JobState] = (), *, now_s: int) -> Heads:
    """Waiting jobs, next one first.

    Under `index`, jobs whose turn it is (`first`, see whose_turn.py) go before their class, but after jobs
    that must start now to be in time.
    Fair share asks each time which queue has had least, with old use fading; within a queue by class and age.
    """
    as_of = fleet.turns.lifetimes.learned if rules.learn else 0
    groups, rank = (
        fleet.waiting.order_for(rules, _order_waiting, as_of).groups,
        _rank(fleet, rules, now_s=now_s),
    )
    if first and rules.order == "index":  # they appear in the order by index a second time
        groups = {**_ahead(fleet, rules, first, now_s=now_s), **groups}
    return Heads(groups, _own_first(fleet, rules, rank) if rules.quotas and rules.reclaim else rank)


def _rank(fleet: Fleet, rules: Rules, *, now_s: int) -> Rank | None:
    if rules.order == "fair":
        used = shares_used(rules.quotas, {name: usage.at(now_s) for name, usage in fleet.usage.items()})
        return lambda group, key: (used.get(group[0], UNUSED), _soon(key, now_s))
    if fleet.due and _goes_by_due(rules):
        return lambda _group, key: _soon(key, now_s)
    return _weigh(rules, now_s=now_s) if rules.order == "index" else None


def _ahead(
    fleet: Fleet, rules: Rules, first: Sequence[JobState], *, now_s: int
) -> dict[Hashable, list[Entry]]:
    """Jobs that must start now to be in time, then jobs whose turn it is."""
    ahead: dict[Hashable, list[Entry]] = {}
    group = _group(rules)
    for state in _must_start(fleet, rules, now_s=now_s) if rules.deadlines and fleet.due else ():
        key = (PRIORITIES[state.job.priority], -inf, -inf, 1.0)
        ahead.setdefault(("due", group(state)), []).append((key, state.serial, state))
    for state in first:
        key = (PRIORITIES[state.job.priority], -inf, state.ready_s, 1.0)
        ahead.setdefault(("turn", group(state)), []).append((key, state.serial, state))
    return ahead


def _own_first(fleet: Fleet, rules: Rules, rank: Rank | None) -> Rank:
    """Jobs within their queue's quota go before borrowers, within a class if the order has classes.

    Borrowers are preempted for them. If a borrower were next in order, it would take back what it gave up,
    and the two would swap forever: the GPUs counted as idle may be of another type, or on other nodes.
    """
    held = {name: usage.held for name, usage in fleet.usage.items()}
    room = {quota.queue: quota.gpus - held.get(quota.queue, 0) for quota in rules.quotas}
    has_classes = rules.order in ("priority", "index")

    def ranked(group: Any, key: Any) -> tuple[Any, ...]:  # noqa: ANN401 - defined by the order
        place = key if rank is None else rank(group, key)
        queue, shape = (group[1] if len(group) == 2 else group)[:2]
        borrows = fleet.of_shape[shape].gpus > max(0, room.get(queue, 0))
        return (place[0], borrows, *place[1:]) if has_classes else (borrows, place)

    return ranked


def first_waiting(fleet: Fleet, rules: Rules, *, gpus: int, now_s: int) -> Iterator[JobState]:
    """The first jobs in the order by index, until they ask for `gpus` GPUs; with quotas, per queue.

    So the cost of a review depends on the fleet and not on how many jobs wait.
    """
    as_of = fleet.turns.lifetimes.learned if rules.learn else 0
    order = fleet.waiting.order_as_of(as_of, ("in line", rules), index(rules), _by_width)
    lines: dict[str, dict[Hashable, list[Entry]]] = {}
    for group, entries in order.groups.items():
        queue, _ = cast(tuple[str, int], group)
        lines.setdefault(queue if rules.quotas else "", {})[group] = entries
    for groups in lines.values():
        asked = 0
        for state in Heads(groups, _weigh(rules, now_s=now_s)):
            if asked > gpus:
                break
            asked += state.job.gpus
            yield state


def _by_width(state: JobState) -> tuple[str, int]:
    return by_queue(state)[0], state.job.gpus


def _order_waiting(waiting: Ranked, rules: Rules, as_of: int) -> Order:
    return waiting.order_as_of(as_of, rules, ORDERS[rules.order](rules), _group(rules))


def _group(rules: Rules) -> Group:
    """Jobs that find a place if the first of their group does, and wait if it does not."""
    split, due = rules.order == "fair" or bool(rules.quotas), _goes_by_due(rules)
    # One class may pass where another may not: on GPUs kept for a gang (placing/reserve.py).
    classes = rules.backfill == "reserve" and rules.preempt != "none"
    if not (split or due or classes):
        return by_shape

    def group(state: JobState) -> Hashable:
        job = state.job
        queue = job.queue or job.tenant if split else ""
        return queue, state.shape, due and job.deadline_s is not None, job.priority if classes else ""

    return group


def _goes_by_due(rules: Rules) -> bool:
    return rules.deadlines and rules.order in ("priority", "fair")


def _weigh(rules: Rules, *, now_s: int) -> Rank:
    """Aged work of each group's first job now. A group has one width, so the plain key orders its jobs."""
    aged_s = rules.ageing * now_s

    def rank(_group: Any, key: Any) -> tuple[int, float, int]:  # noqa: ANN401 - defined by the order
        rank, place, came_s, weighs = key
        return (rank, (place - aged_s) * weighs, came_s)

    return rank


def by_queue(state: JobState) -> tuple[str, int]:
    return (state.job.queue or state.job.tenant, state.shape)


def _soon(key: Any, now_s: int) -> tuple[float, ...]:  # noqa: ANN401 - defined by the order
    """Class, whether it must start soon, and then when: by latest start, or by arrival."""
    if len(key) == 2:
        return (key[0], 1, key[1])
    rank, by_s, soon_s, came_s = key
    return (rank, 0, by_s) if now_s >= soon_s else (rank, 1, came_s)


def running_in_order(
    fleet: Fleet, rules: Rules, *, now_s: int
) -> dict[tuple[int, int, bool, bool, bool], list[Entry]]:
    """Running jobs by group, in each group the first to preempt first.

    What a job is expected to need, as learned, may fall while it runs: they are sorted again at each review.
    """
    as_of = (now_s - now_s % rules.rerank_s, fleet.turns.lifetimes.learned) if rules.learn else (0, 0)
    order = fleet.running.order_for(rules, _order_running, as_of)
    return cast(dict[tuple[int, int, bool, bool, bool], list[Entry]], order.groups)


def _order_running(running: Ranked, rules: Rules, as_of: tuple[int, int]) -> Order:
    if rules.preempt != "index":
        key = latest_start(rules)
    else:
        key = further_as_of(rules, as_of[0]) if rules.learn else further_from_end(rules)
    return running.order_as_of(as_of, rules, key, by_class)
