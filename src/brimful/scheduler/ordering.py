"""Who is next: the order in which waiting jobs are tried, and whom a waiting job may push aside.

A waiting job's key does not change while it waits, so the queue never has to be sorted again.

Deadlines are the same under every order that has them. A job's latest start is its deadline less what it is
expected to need and a restart. It goes first in its class once half of the time it could wait is over, the
one that must start first before others. Who is late keeps that place by class and age; under `index` it has
nothing left to save. There who must start soon may stop others of its class, and is not stopped itself until
it has as much time to spare as it has work left: one clock for those who wait and those who run, and a gap
between the two, or pairs would stop each other in turn.
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
from brimful.scheduler.rules import Rules

SPARE = 1.25  # of the expected work, to be in time


def fifo(_rules: Rules) -> Key:
    """First come, first served; the order of the log breaks ties, so equal runs stay equal."""
    return lambda state: state.ready_s


def priority(rules: Rules) -> Key:
    """Urgent before normal before background; within a class first come, first served.

    With `deadlines`, jobs that have one form groups of their own in the order in which they must
    start, and the key says from when on they go first in their class: once half of their slack is over.
    """

    def key(state: JobState) -> tuple[float, ...]:
        rank, came_s = PRIORITIES[state.job.priority], state.ready_s
        if not rules.deadlines or state.job.deadline_s is None:
            return (rank, came_s)
        by_s = start_by_s(state, expected_left_s(state, rules, now_s=state.waiting_since_s))
        return (rank, by_s, _soon_s(state, by_s), came_s)

    return key


def bid(_rules: Rules) -> Key:
    """The highest limit price first; no limit stands for the price of the day and comes before all."""
    return lambda state: (
        float("-inf")
        if state.job.limit_microusd_per_gpu_hour is None
        else -state.job.limit_microusd_per_gpu_hour,
        state.ready_s,
    )


def index(rules: Rules) -> Key:
    """Within a class the least expected work first; those with a deadline as under `priority`."""

    def key(state: JobState) -> tuple[float, ...]:
        left_s = expected_left_s(state, rules, now_s=state.waiting_since_s)
        rank, work_s = PRIORITIES[state.job.priority], left_s * weight(state.job.gpus, rules.width)
        if not rules.deadlines or state.job.deadline_s is None:
            return rank, work_s, state.ready_s
        by_s = start_by_s(state, left_s)
        return rank, by_s, _soon_s(state, by_s), state.job.deadline_s - left_s, work_s, state.ready_s

    return key


def _soon_s(state: JobState, by_s: float) -> float:
    """From when on it goes first in its class."""
    return (state.ready_s + by_s) / 2


def expected_left_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """Seconds of work a gang is expected to need yet.

    Known: the predicted work that is left (shortest remaining first). Unknown: what its kind has shown
    (fleet/hazards.py); or, where the rules do not learn, as much again as it has had, and at least `fresh_s`.
    For heavy-tailed run times the longer a job has run, the longer it will go on, which makes this least
    attained service (Nuyens and Wierman, "The foreground-background queue: a survey", 2008).
    """
    left = state.remaining_s(now_s) if rules.known else None
    if left is not None:
        return left
    if rules.learn and state.kind is not None:
        return state.kind.left_s(state.attained_work_s(now_s))
    return max(state.attained_s(now_s), rules.fresh_s)


def start_by_s(state: JobState, left_s: float) -> float:
    """When a job must run at the latest to keep its deadline, on the GPUs that suit it best.

    A quarter more than expected, and one restart: a deadline missed costs more than starting early does.
    """
    job = state.job
    assert job.deadline_s is not None
    rate = max((rate for _, rate in job.rates), default=1.0)
    return job.deadline_s - SPARE * left_s / rate - job.checkpoint_cost_s


MOST_WIDTH = 10.0  # with more, one GPU outweighs everything just the same, and floats end


@cache
def weight(gpus: int, width: float) -> float:
    """How much a gang of so many GPUs counts: a wide one keeps more others waiting."""
    found: float = max(1, gpus) ** min(width, MOST_WIDTH)
    return found


def expected_work_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """GPU-seconds a job is expected to need yet, by which gangs of different width are compared."""
    return expected_left_s(state, rules, now_s=now_s) * weight(state.job.gpus, rules.width)


def pressing_left_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """The same in seconds; nothing at all while its deadline can be kept only by running now."""
    left_s = expected_left_s(state, rules, now_s=now_s)
    deadline_s = state.job.deadline_s
    if deadline_s is None or not rules.deadlines or now_s + left_s > deadline_s:
        return left_s  # who is late already has nothing to save, and sends nobody away for it
    by_s = start_by_s(state, left_s)
    presses_s = _soon_s(state, by_s) if state.open_lease is None else by_s - left_s
    return 0.0 if now_s >= presses_s else left_s


def pressing_work_s(state: JobState, rules: Rules, *, now_s: int) -> float:
    """The same in GPU-seconds, by which gangs of different width are compared."""
    return pressing_left_s(state, rules, now_s=now_s) * weight(state.job.gpus, rules.width)


def further_from_end(rules: Rules) -> Key:
    """Running jobs, those with most expected work first. It keeps while they run, within one group."""

    known = rules.known

    def key(state: JobState) -> float:
        lease = state.leases[-1]  # the open one: it runs
        if lease.turn_until_s:
            return lease.turn_until_s  # in a group of their own: the first loses its turn first
        started_s = lease.started_s
        assert started_s is not None
        if known and state.job.predicted_work_s is not None:
            left = state.job.predicted_work_s - state.kept_work_s
            return -(started_s + lease.setup_s + left / max(lease.speed, 1e-9))
        return float(started_s - state.run_s)

    return key


def latest_start(_rules: Rules) -> Key:
    def key(state: JobState) -> float:
        lease = state.open_lease
        assert lease is not None
        assert lease.started_s is not None
        return -float(lease.started_s)

    return key


def by_class(state: JobState) -> Hashable:
    """Running jobs that can be compared by one unchanging key: same class, width, and kind of knowledge.

    Those with a deadline stand apart: how soon they are due, and not that key, says who of them may stop.
    So do those that run because it was their turn.
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
    """Waiting jobs, the next one first.

    Under `index` those whose turn it is (`first`, see whose_turn.py) come before their class, but for who
    must start soon to be in time.
    Fair share asks each time whose queue has had least, with old use fading; within a queue by class and age.
    """
    order = fleet.waiting.order_for(rules, _order_waiting)
    if rules.order == "fair":
        weights = {quota.queue: quota.weight for quota in rules.quotas}
        used = {name: usage.at(now_s) / weights.get(name, 1.0) for name, usage in fleet.usage.items()}
        return order.heads(lambda group, key: (used.get(group[0], 0.0), _soon(key, now_s)))
    if rules.order == "index":
        rank = _by_stage(now_s)
        if first:  # they stand in the order by index a second time
            group, ahead = _group(rules), dict[Hashable, list[Entry]]()
            for state in first:
                key = (PRIORITIES[state.job.priority], -inf, state.ready_s)
                ahead.setdefault(("turn", group(state)), []).append((key, state.serial, state))
            return Heads({**ahead, **order.groups}, rank)
        return order.heads(rank if fleet.due and rules.deadlines else None)
    if fleet.due and rules.deadlines:
        return order.heads(lambda _group, key: _soon(key, now_s))
    return order.heads()


def first_waiting(fleet: Fleet, rules: Rules, *, gpus: int) -> Iterator[JobState]:
    """The first in the order by index, as many as ask for so many GPUs; with quotas, so many of each queue.

    What a review costs so depends on the fleet and not on how many wait.
    """
    name = ("by work", rules)  # one line instead of one for each shape: which place suits is not asked here
    order = fleet.waiting.order(name, index(rules), _by_line(bool(rules.quotas)))
    for entries in order.groups.values():
        asked = 0
        for _, _, state in entries:
            if asked > gpus:
                break
            asked += state.job.gpus
            yield state


@cache
def _by_line(split: bool) -> Group:
    def group(state: JobState) -> Hashable:
        job = state.job
        return (job.queue or job.tenant) if split else "", job.deadline_s is not None

    return group


def _order_waiting(waiting: Ranked, rules: Rules) -> Order:
    return waiting.order(rules, ORDERS[rules.order](rules), _group(rules))


def _group(rules: Rules) -> Group:
    """Who finds a place where the first of them does, and waits where it does not."""
    split, due = rules.order == "fair" or bool(rules.quotas), rules.deadlines
    # One class may pass where another may not: on GPUs kept for a gang (placing/reserve.py).
    classes = rules.backfill == "reserve" and rules.preempt != "none"
    if not (split or due or classes):
        return by_shape

    def group(state: JobState) -> Hashable:
        job = state.job
        queue = job.queue or job.tenant if split else ""
        return queue, state.shape, due and job.deadline_s is not None, job.priority if classes else ""

    return group


def _by_stage(now_s: int) -> Rank:
    """Within a class: who must start soon, whose turn it is, and then by work."""

    def rank(_group: Any, key: Any) -> tuple[float, ...]:  # noqa: ANN401 - of the order's own making
        if len(key) == 3:
            return (key[0], 1, key[1], key[2])
        rank, by_s, soon_s, late_s, work_s, came_s = key
        return (rank, 0, by_s, came_s) if soon_s <= now_s <= late_s else (rank, 1, work_s, came_s)

    return rank


def by_queue(state: JobState) -> tuple[str, int]:
    return (state.job.queue or state.job.tenant, state.shape)


def _soon(key: Any, now_s: int) -> tuple[float, ...]:  # noqa: ANN401 - of the order's own making
    """Class, whether it must start soon, and then when: by its latest start, or by when it came."""
    if len(key) == 2:
        return (key[0], 1, key[1])
    rank, by_s, soon_s, came_s = key
    return (rank, 0, by_s) if now_s >= soon_s else (rank, 1, came_s)


def running_in_order(fleet: Fleet, rules: Rules) -> dict[tuple[int, int, bool, bool, bool], list[Entry]]:
    """Running jobs by group, in each the first to be pushed aside first."""
    order = fleet.running.order_for(rules, _order_running)
    return cast(dict[tuple[int, int, bool, bool, bool], list[Entry]], order.groups)


def _order_running(running: Ranked, rules: Rules) -> Order:
    key = further_from_end if rules.preempt == "index" else latest_start
    return running.order(rules, key(rules), by_class)
