"""How long jobs run, and whose turn it is, as the fleet counts them."""

from __future__ import annotations

from random import Random

import pytest

from brimful.fleet.events import LeaseEnded, LeaseGranted, LeaseStarted, from_record, to_record
from brimful.fleet.learned.lengths import ENOUGH, LATELY, Lengths
from brimful.fleet.state import Fleet
from tests.builders import AFleet, a_fleet, a_job


def test_the_length_that_one_in_a_hundred_exceeds() -> None:
    chance, lengths = Random(3), Lengths()
    drawn = [600 * chance.paretovariate(0.9) for _ in range(5_000)]
    for length_s in drawn:
        lengths.count(length_s)

    assert lengths.long_s is not None
    longer = sum(length_s > lengths.long_s for length_s in drawn)
    assert 0.5 <= longer / 50 <= 1.1  # kept in steps of 9 %, and looked up once in a hundred


def test_a_job_counts_once_however_often_it_stops() -> None:
    lengths = Lengths()
    for _ in range(2 * ENOUGH):
        lengths.count(60)
    for had_s in range(1000, 50_000, 1000):
        lengths.count(had_s, before_s=had_s - 1000)

    assert lengths.jobs == 2 * ENOUGH + 1
    assert lengths.long_s == pytest.approx(60, rel=0.1)  # one in two hundred is no reason to wait longer


def test_too_few_jobs_say_nothing() -> None:
    lengths = Lengths()
    for _ in range(ENOUGH - 1):
        lengths.count(60)
    assert lengths.long_s is None
    lengths.count(60)
    assert lengths.long_s is not None


def test_what_jobs_were_like_long_ago_is_forgotten() -> None:
    lengths = Lengths()
    for length_s in (100_000.0, 100.0):
        for _ in range(10 * LATELY):
            lengths.count(length_s)
    assert lengths.long_s == pytest.approx(100, rel=0.1)
    assert lengths.jobs <= 2 * LATELY


def in_turn(world: AFleet, job: str, *, at_s: int) -> AFleet:
    start = LeaseGranted(
        at_s=at_s,
        lease=f"{job}.1",
        job=job,
        node="node-0",
        gpus=world.fleet.free("node-0")[:2],
        microusd_per_gpu_hour=0,
        in_turn=True,
    )
    return world.then(start, LeaseStarted(at_s=at_s, lease=start.lease))


def test_a_turn_holds_gpus_until_it_ends_or_the_job_is_long_itself() -> None:
    world = a_fleet().waiting(*[a_job(f"told-{i}", predicted_work_s=3600.0) for i in range(ENOUGH)])
    world.waiting(a_job("a", gpus=2), a_job("b", gpus=2), a_job("c", gpus=2, predicted_work_s=60.0))
    for job in ("a", "b", "c"):
        in_turn(world, job, at_s=10_000)
    turns = world.fleet.turns
    long_s = turns.lengths.long_s
    assert long_s is not None

    assert turns.gpus(10_000) == 6
    world.then(LeaseEnded(at_s=10_100, lease="a.1", exit_code=0))
    assert turns.gpus(10_100) == 4
    assert turns.gpus(10_000 + int(long_s) + 1) == 2  # `b` is as long as the longest; `c` said that it is not
    world.then(LeaseEnded(at_s=20_000, lease="b.1", exit_code=0))
    world.then(LeaseEnded(at_s=20_000, lease="c.1", exit_code=0))
    assert turns.gpus(20_000) == 0


def test_reading_changes_nothing_and_the_log_gives_the_same_again() -> None:
    """A clock that goes back, or a reader that looks ahead, leaves what is counted as it was."""
    world = a_fleet().waiting(*[a_job(f"told-{i}", predicted_work_s=3600.0) for i in range(ENOUGH)])
    in_turn(world.waiting(a_job("a", gpus=2)), "a", at_s=10_000)
    turns = world.fleet.turns

    assert turns.gpus(99_999) == 0
    assert turns.gpus(10_001) == 2
    again = Fleet()
    for event in world.events:
        again.apply(from_record(*to_record(event)))
    assert again.turns == turns


def test_a_length_without_end_is_a_length() -> None:
    lengths = Lengths()
    for _ in range(ENOUGH):
        lengths.count(float("inf"))
    assert lengths.long_s == 2.0**32


@pytest.mark.parametrize("version", [1, 2])
def test_grants_of_older_logs_were_in_nobodys_turn(version: int) -> None:
    kind, _, body = to_record(
        LeaseGranted(at_s=1, lease="a.1", job="a", node="n", gpus=(0,), microusd_per_gpu_hour=0)
    )
    for name in ("in_turn", "rest")[: 3 - version]:
        body.pop(name, None)
    read = from_record(kind, version, body)
    assert isinstance(read, LeaseGranted)
    assert not read.in_turn
    assert read.rest == ()
