"""Deadlines that are promised at submit are kept, whatever else comes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brimful.fleet.events import DeadlineAnswered, LeaseEnded, from_record, to_record
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet
from brimful.scheduler.deadlines.promise import answer, slot_of, slots
from brimful.scheduler.policies import POLICIES
from brimful.sim.world import Arrival, rehearse
from tests.builders import AFleet, a_fleet, a_job, a_node

BRIM = POLICIES["brim"]
HOUR_S = 3600


def _due(name: str, *, work_s: float, by_s: int, gpus: int = 1, **more: object) -> Job:
    more = {"checkpoint_interval_s": 0, "within": "any", "predicted_work_s": work_s, **more}
    return a_job(name, gpus=gpus, deadline_s=by_s, **more)  # type: ignore[arg-type]


def _promised(world: AFleet, job: Job, at_s: int = 0) -> DeadlineAnswered:
    world.waiting(job, at_s=at_s)
    told = answer(world.fleet, BRIM, job, now_s=at_s)
    assert told is not None
    world.then(told)
    return told


def test_a_deadline_is_promised_beside_those_that_are_and_else_the_earliest_is_told() -> None:
    world = a_fleet(gpus_per_node=2)
    first = _promised(world, _due("first", work_s=HOUR_S, by_s=2 * HOUR_S, gpus=2))
    second = _promised(world, _due("second", work_s=HOUR_S, by_s=2 * HOUR_S, gpus=1))

    assert (first.is_promised, first.done_by_s) == (True, 2 * HOUR_S)
    # Before the first one's slot there is not an hour: with what stops and starts take, a little less.
    assert not second.is_promised
    assert second.done_by_s is not None
    assert 3 * HOUR_S < second.done_by_s <= 3 * HOUR_S + 60
    again = _due("again", work_s=HOUR_S, by_s=second.done_by_s, gpus=1)
    assert _promised(world, again).is_promised


def test_of_one_batch_each_is_answered_beside_those_before_it() -> None:
    world = a_fleet(gpus_per_node=1)
    jobs = [_due(name, work_s=HOUR_S, by_s=int(1.5 * HOUR_S)) for name in ("a", "b")]
    first = answer(world.fleet, BRIM, jobs[0], now_s=0)
    assert first is not None
    slot = slot_of(world.fleet, BRIM, jobs[0], first)
    assert slot is not None
    beside = answer(world.fleet, BRIM, jobs[1], now_s=0, beside=[slot])
    assert (first.is_promised, beside and beside.is_promised) == (True, False)


def test_nothing_is_said_where_nobody_bounds_the_run_or_the_policy_cannot_stop_others() -> None:
    world, due = a_fleet(), _due("due", work_s=HOUR_S, by_s=9 * HOUR_S)
    assert answer(world.fleet, BRIM, replace(due, predicted_work_s=None), now_s=0) is None
    assert answer(world.fleet, POLICIES["backfill"], due, now_s=0) is None
    bounded = replace(due, predicted_work_s=None, max_run_s=HOUR_S)
    told = answer(world.fleet, BRIM, bounded, now_s=0)
    assert told is not None
    assert told.is_promised


def _after(world: AFleet, lengths_s: list[int], **more: object) -> AFleet:
    """Jobs of these lengths have run on it, one after the other."""
    for i, length_s in enumerate(lengths_s):
        job = a_job(f"old{i}", checkpoint_interval_s=0, **more)  # type: ignore[arg-type]
        world.running(job, at_s=0)
        ended = LeaseEnded(at_s=length_s, lease=f"old{i}.1", exit_code=0, requeue=False, kept_work_s=length_s)
        world.then(ended)
    return world


def test_a_job_that_nobody_bounds_is_promised_with_a_chance_by_how_long_others_were() -> None:
    due = _due("due", work_s=0.0, by_s=9 * HOUR_S, predicted_work_s=None)
    nine = [600 * (i + 1) for i in range(9)]
    assert answer(_after(a_fleet(gpus_per_node=1), nine[:8]).fleet, BRIM, due, now_s=0) is None, "too few"

    world = _after(a_fleet(gpus_per_node=1), nine)
    told = _promised(world, due)

    assert (told.is_promised, told.work_s) == (True, nine[-1])
    assert told.chance == pytest.approx(0.9)
    [(_, slot)] = slots(world.fleet, BRIM, now_s=0)
    assert slot.ends_s - slot.begins_s >= nine[-1]
    # The slot is its own: for the next one there is the time before it, which is not enough.
    other = _promised(world, replace(due, job="other", deadline_s=2 * HOUR_S))
    third = _promised(world, replace(due, job="third", deadline_s=9 * HOUR_S))
    assert [other.is_promised, third.is_promised] == [True, True]
    late = _promised(world, replace(due, job="late", deadline_s=2 * HOUR_S))
    assert not late.is_promised
    assert late.done_by_s is not None
    assert late.done_by_s > 2 * HOUR_S
    kind, version, body = to_record(told)
    assert from_record(kind, version, body) == told
    assert from_record(kind, 1, {k: body[k] for k in ("at_s", "job", "is_promised")}).chance == 1.0  # type: ignore[attr-defined]


def test_promises_without_a_bound_are_kept_as_often_as_was_said() -> None:
    """600 jobs on a crowded fleet, of three names that the scheduler learns the lengths of."""
    dice, found = Random(3), list[Arrival]()
    for i in range(600):
        name, mean_s = dice.choice([("tune", 900), ("train", 5000), ("eval", 120)])
        work_s = dice.lognormvariate(0, 0.8) * mean_s
        job = a_job(
            f"j{i}",
            name=name,
            within="any",
            checkpoint_interval_s=0,
            deadline_s=300 * i + int(mean_s * dice.uniform(1, 20)),
        )
        found.append(Arrival(at_s=300 * i, job=job, work_s=work_s))
    outcome = rehearse(found, [a_node(gpus=6)], BRIM)
    told = [each for each in outcome.log if isinstance(each, DeadlineAnswered) and each.is_promised]
    kept = sum((outcome.fleet.jobs[each.job].ended_s or 0) <= (each.done_by_s or 0) for each in told)
    assert len(told) > 300
    assert sum(each.chance for each in told) / len(told) == pytest.approx(kept / len(told), abs=0.03)
    again = Fleet()
    for event in outcome.log:
        again.apply(event)
    assert again.odds == outcome.fleet.odds, "a replay learns the same"


def test_when_its_slot_begins_others_leave_and_nobody_sends_it_away() -> None:
    world = a_fleet(gpus_per_node=1).running(a_job("other", predicted_work_s=60.0, checkpoint_interval_s=0))
    told = _promised(world, _due("due", work_s=HOUR_S, by_s=10 * HOUR_S))
    [(_, slot)] = slots(world.fleet, BRIM, now_s=0)
    begins_s = int(slot.begins_s)

    before, then = (world.plan(rules=BRIM, now_s=at_s) for at_s in (begins_s - 1, begins_s + 1))

    assert told.is_promised
    assert before.stops == []
    assert before.look_again_s is not None
    assert before.look_again_s <= begins_s + 1
    assert [stop.lease for stop in then.stops] == ["other.1"]


def test_what_it_has_done_before_lets_its_slot_begin_later() -> None:
    due = _due("due", work_s=HOUR_S, by_s=10 * HOUR_S)
    world = a_fleet(gpus_per_node=1).running(due)
    world.then(*filter(None, [answer(world.fleet, BRIM, due, now_s=0)]))
    begins = [slot.begins_s for at_s in (0, 600) for _, slot in slots(world.fleet, BRIM, now_s=at_s)]
    assert begins[1] - begins[0] == pytest.approx(600)


def _crowd(dice: Random, *, bounded: bool) -> list[Arrival]:
    """Jobs that ask for more than there is, two in three with a deadline, some of them hopeless."""
    found = []
    for i in range(60):
        at_s = dice.randrange(6 * HOUR_S)
        work_s = dice.choice([30, 600, HOUR_S, 4 * HOUR_S]) * dice.random() + 1
        rates = (("new", 1.0), ("old", dice.choice([0.3, 0.9]))) if dice.random() < 0.7 else ()
        job = a_job(
            f"j{i}",
            gpus=dice.choice([1, 1, 2, 4]),
            within="any",
            rates=rates,
            checkpoint_interval_s=dice.choice([0, 0, 600, None]),
            checkpoint_cost_s=dice.choice([0, 60]),
            priority=dice.choice(["urgent", "normal", "background"]),
            deadline_s=int(at_s + work_s * (1 + 6 * dice.random())) if dice.random() < 0.67 else None,
            predicted_work_s=None if bounded else work_s,
            # As many seconds wherever it runs: at the slowest it needs three times its work.
            max_run_s=int(4 * work_s) + 60 if bounded else None,
        )
        found.append(Arrival(at_s=at_s, job=job, work_s=work_s))
    return sorted(found, key=lambda each: each.at_s)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_promise_is_kept_on_a_crowded_fleet(bounded: bool, mixed: bool) -> None:
    promised = 0
    for seed in range(12):
        types = ("new", "old" if mixed else "new")
        nodes = [replace(a_node(f"n-{i}", gpus=4, gpu=gpu), site="sim") for i, gpu in enumerate(types)]
        outcome = rehearse(_crowd(Random(seed), bounded=bounded), nodes, BRIM)
        told = [each for each in outcome.log if isinstance(each, DeadlineAnswered) and each.is_promised]
        ended = {name: state.ended_s for name, state in outcome.fleet.jobs.items()}
        late = [each.job for each in told if (ended[each.job] or 10**12) > (each.done_by_s or 0)]
        assert late == [], seed
        promised += len(told)
    assert promised > 100
