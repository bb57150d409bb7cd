"""Promised deadlines: whether one more can be kept beside those already promised, and when its slot begins.

A promise is a slot: a job's GPUs in one pool until the slot's end, starting as early as the work left may
need. At no moment do the slots of a pool ask for more than it has. So every job with a promise gets its GPUs
when its slot begins, from jobs without one. It may run earlier, anywhere; the progress it keeps makes its
slot begin later, never earlier, so one promise never breaks another.

A promise needs a bound on the run time: predicted work, or a longest run. Without one the slot has room for
nine in ten of the most similar jobs (`fleet/learned/odds.py`), and the promise states how likely it is to be
kept.

Leaves out: nodes that fail, gangs that must be on one node beside promised jobs scattered over all of them
(whole nodes are counted for these gangs), quotas, arrays, jobs that come after others, and fleets with spot,
where `finish.py` plans. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import NamedTuple

from brimful.fleet.events import DeadlineAnswered
from brimful.fleet.job import Job
from brimful.fleet.learned.odds import SURE, run_of
from brimful.fleet.lease import JobState
from brimful.fleet.memory import too_small
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler.placing.place import ONE_NODE
from brimful.scheduler.rules import Rules

LOOK_S = 5  # from one look of the loop to the next, plus the time for its orders to take effect


class Slot(NamedTuple):
    pool: Pool
    gpus: int
    begins_s: float
    ends_s: int


def promises(rules: Rules) -> bool:
    """Only a policy that preempts can promise; what a quota holds back is not promised."""
    return rules.deadlines and rules.preempt == "index" and not rules.quotas


def answer(
    fleet: Fleet,
    rules: Rules,
    job: Job,
    *,
    now_s: int,
    sold: Collection[Pool] = (),
    beside: Sequence[Slot] = (),
) -> DeadlineAnswered | None:
    """Whether its deadline is promised, and if not, by when it could be. None: no answer is possible.

    `beside` are slots promised a moment ago that are not in the log yet.
    """
    if job.deadline_s is None or job.after or job.array or not promises(rules):
        return None
    if fleet.spot or fleet.queues or not fleet.capacity.pools:  # the last test: no node has been seen yet
        return None
    taken = [*beside, *(slot for _, slot in slots(fleet, rules, now_s=now_s))]
    if _is_bounded(job, rules):
        return _answer_for(fleet, rules, job, taken, now_s=now_s, sold=sold)[0]
    alike = _similar_lengths(fleet, job, now_s=now_s)
    work_s = next((length_s for length_s, likely in alike if likely >= SURE), None)
    if work_s is None:
        return None
    told, pool = _answer_for(fleet, rules, job, taken, now_s=now_s, sold=sold, work_s=work_s)
    room_s = work_s
    if pool is not None and told.done_by_s is not None and fleet.capacity.pools[pool].free >= job.gpus:
        # It can start at once, and then has all the time until its deadline.
        room_s = (told.done_by_s - now_s - _spare_s(job, rules)) * _rate(job, pool)
    by_lengths = max((likely for length_s, likely in alike if length_s <= room_s), default=SURE)
    chance = fleet.odds.corrected(by_lengths, now_s=now_s)
    return replace(told, work_s=work_s, by_lengths=by_lengths, chance=chance)


def _answer_for(
    fleet: Fleet,
    rules: Rules,
    job: Job,
    taken: Sequence[Slot],
    *,
    now_s: int,
    sold: Collection[Pool],
    work_s: float | None = None,
) -> tuple[DeadlineAnswered, Pool | None]:
    """The answer, and the pool of its slot; `work_s`: the work that the slot must have room for."""
    assert job.deadline_s is not None
    best: tuple[float, int, Pool] | None = None  # the slot that begins last
    earliest_s = inf
    for pool in fleet.capacity.pools:
        if pool in sold or not _could_run(fleet, job, pool):
            continue
        run_s = _longest_s(job, pool, rules, work_s=work_s)
        # A node that a provider made for a job is for that job only, and will be returned.
        bought = sum(each.order.gpus for each in fleet.cloud.machines.values() if each.pool == pool)
        spare = fleet.capacity.pools[pool].gpus - bought - _counted(fleet, job, pool)
        for from_s, until_s in _gaps([slot for slot in taken if slot.pool == pool], spare, now_s=now_s):
            need_s = run_s + _spare_s(job, rules)
            if from_s == now_s and min(until_s, job.deadline_s) - now_s < need_s:
                need_s -= job.checkpoint_cost_s  # it starts at once, so it never has to restart
            if until_s - from_s >= need_s:
                earliest_s = min(earliest_s, from_s + need_s)
                ends_s = min(until_s, job.deadline_s)
                if ends_s - need_s >= from_s and (best is None or ends_s - need_s > best[0]):
                    best = (ends_s - need_s, int(ends_s), pool)
    if best is None:
        done_by_s = None if earliest_s == inf else ceil(earliest_s)
        return DeadlineAnswered(at_s=now_s, job=job.job, done_by_s=done_by_s), None
    _, ends_s, pool = best
    told = DeadlineAnswered(
        at_s=now_s,
        job=job.job,
        is_promised=True,
        done_by_s=ends_s,
        site=pool.site,
        gpu=pool.gpu,
        tier=pool.tier,
    )
    return told, pool


def slots(fleet: Fleet, rules: Rules, *, now_s: int) -> Iterator[tuple[JobState, Slot]]:
    """The slots of all promises that can still be kept."""
    for state in fleet.due.values():
        told = fleet.told.get(state.job.job)
        if told is None or not told.is_promised or told.done_by_s is None or now_s > told.done_by_s:
            continue
        done, ran_s = _secured_s(state, now_s=now_s), state.attained_s(now_s)
        slot = slot_of(fleet, rules, state.job, told, done=done, ran_s=ran_s)
        if slot is not None:
            yield state, slot


def slot_of(
    fleet: Fleet, rules: Rules, job: Job, told: DeadlineAnswered, *, done: float = 0.0, ran_s: float = 0.0
) -> Slot | None:
    """The slot of a promise, given the work done so far; None: it has none, or its pool is gone."""
    pool = Pool(site=told.site, gpu=told.gpu, tier=told.tier)
    if not told.is_promised or told.done_by_s is None or pool not in fleet.capacity.pools:
        return None
    left_s = _longest_s(job, pool, rules, work_s=told.work_s, done=done, ran_s=ran_s)
    begins_s = told.done_by_s - left_s - _spare_s(job, rules)
    return Slot(pool, _counted(fleet, job, pool), begins_s, told.done_by_s)


def _gaps(taken: Sequence[Slot], spare: int, *, now_s: int) -> Iterator[tuple[float, float]]:
    """When slots leave room for one more, from now on: while they hold at most `spare` GPUs."""
    if spare < 0:
        return
    changes: list[tuple[float, int]] = []
    for slot in taken:
        changes += [(max(slot.begins_s, now_s), slot.gpus), (slot.ends_s, -slot.gpus)]
    held, from_s, is_open = 0, float(now_s), True
    for at_s, more in sorted(changes):
        held += more
        if held > spare and is_open:
            if at_s > from_s:
                yield from_s, at_s
            is_open = False
        elif held <= spare and not is_open:
            from_s, is_open = at_s, True
    yield from_s, inf  # all slots have ended


def _similar_lengths(fleet: Fleet, job: Job, *, now_s: int) -> list[tuple[float, float]]:
    """How long similar jobs were, and the chance that this one is no longer than each."""
    going = [
        run_of(s.job, submitted_s=s.submitted_s, work_s=done, is_over=False)
        for s in fleet.due.values()
        if (done := _secured_s(s, now_s=now_s)) > 0
    ]
    asked = run_of(job, submitted_s=now_s, work_s=0.0, is_over=False)
    return fleet.odds.like(asked, going)


def _is_bounded(job: Job, rules: Rules) -> bool:
    return job.max_run_s is not None or (rules.known and job.predicted_work_s is not None)


def _longest_s(
    job: Job, pool: Pool, rules: Rules, *, work_s: float | None, done: float = 0.0, ran_s: float = 0.0
) -> float:
    """How long it may still run there: by its longest run, its prediction, or its slot."""
    bounds: list[float] = []
    if job.max_run_s is not None:
        bounds.append(job.max_run_s - ran_s)
    if rules.known and job.predicted_work_s is not None:
        work_s = job.predicted_work_s
    if work_s is not None:
        rate = _rate(job, pool)
        bounds.append((work_s - done) / rate if rate > 0 else inf)
    return max(0.0, min(bounds, default=0.0))


def _rate(job: Job, pool: Pool) -> float:
    spread = job.spread_rate if job.gpus > 1 and job.within not in ONE_NODE else 1.0
    return job.rate(pool.gpu) * min(1.0, spread)


def _spare_s(job: Job, rules: Rules) -> int:
    """Time for others to stop, for the loop to look, and for a restart if the job ran before its slot."""
    return rules.grace_s + LOOK_S + job.checkpoint_cost_s


def _secured_s(state: JobState, *, now_s: int) -> float:
    """Useful work that would survive if it were stopped now."""
    lease, every_s = state.open_lease, state.job.checkpoint_interval_s
    if lease is None or lease.started_s is None or every_s is None:
        return state.kept_work_s
    worked_s = max(0, now_s - lease.started_s - lease.setup_s)
    return state.kept_work_s + lease.speed * (worked_s - worked_s % every_s if every_s else worked_s)


def _counted(fleet: Fleet, job: Job, pool: Pool) -> int:
    """GPUs that a promise counts: whole nodes for a gang that must be close together."""
    largest = fleet.capacity.pools[pool].largest
    if job.gpus <= 1 or job.within in ("site", "any") or not largest:
        return job.gpus
    return ceil(job.gpus / largest) * largest


def _could_run(fleet: Fleet, job: Job, pool: Pool) -> bool:
    limit, price = job.limit_microusd_per_gpu_hour, fleet.posted_prices().get(pool, 0)
    return (
        job.may_be_in(site=pool.site, tier=pool.tier)
        and job.rate(pool.gpu) > 0.0
        and (limit is None or price <= limit)
        and too_small(job, pool.gpu) is None
        and fleet.capacity.could_hold(job, pool)
    )


def pressing(all_slots: Iterable[tuple[JobState, Slot]], *, now_s: int) -> list[tuple[JobState, Slot]]:
    """Jobs whose slot has begun, earliest first."""
    begun = [each for each in all_slots if each[1].begins_s <= now_s]
    return sorted(begun, key=lambda each: (each[1].begins_s, each[0].serial))
