"""How long a job goes on, learned from others of its kind."""

from __future__ import annotations

from random import Random

import pytest

from brimful.fleet.events import LeaseEnded, from_record, to_record
from brimful.fleet.hazards import FRESH_S, STARTS, Kind, Kinds
from brimful.fleet.state import Fleet
from tests.builders import a_fleet, a_job


def test_nobody_seen_a_job_goes_on_for_as_long_again_and_a_new_one_for_half_an_hour() -> None:
    kind = Kind()
    assert kind.left_s(0) == pytest.approx(FRESH_S, rel=0.01)
    for had_s in STARTS[6:15]:
        assert kind.left_s(had_s) == pytest.approx(1.5 * had_s, rel=0.05)  # in steps of a doubling


def test_where_all_are_as_long_whoever_has_run_is_nearer_its_end() -> None:
    """First come, first served: the one that runs is never sent away for a new one."""
    kind = Kind()
    for i in range(200):
        kind.count(0, 7000 + i, over=True)
    lefts = [kind.left_s(had_s) for had_s in (0, 1000, 3000, 5000)]
    assert lefts == sorted(lefts, reverse=True)
    assert kind.left_s(0) == pytest.approx(7100, rel=0.2)


def test_where_tails_are_heavy_whoever_has_run_is_further_from_its_end() -> None:
    """Least attained service."""
    chance, kind = Random(5), Kind()
    for _ in range(2000):
        kind.count(0, 60 * chance.paretovariate(0.8), over=True)
    lefts = [kind.left_s(had_s) for had_s in (0, 300, 3000, 30_000)]
    assert lefts == sorted(lefts)


def test_a_kind_is_told_from_others_and_falls_back_on_them() -> None:
    kinds = Kinds()
    short, long = a_job("a", name="short"), a_job("b", name="long")
    for _ in range(50):
        kinds.of(short).count(0, 120, over=True)
        kinds.of(long).count(0, 50_000, over=True)
    assert kinds.of(short).left_s(0) < 300
    assert kinds.of(long).left_s(0) > 3000
    new = kinds.of(a_job("c", name="never seen")).left_s(0)
    assert kinds.of(short).left_s(0) <= new < 1000  # one in two of its width is short


def test_a_job_counts_once_however_often_it_stops() -> None:
    at_once, in_parts = Kind(), Kind()
    for _ in range(50):
        at_once.count(0, 5000, over=True)
        in_parts.count(0, 700, over=False)
        in_parts.count(700, 3000, over=False)
        in_parts.count(3000, 5000, over=True)
    at_once._look()
    in_parts._look()
    assert at_once.share == in_parts.share


def test_a_log_that_is_read_again_has_taught_the_same() -> None:
    world = a_fleet().running(*[a_job(f"job-{i}") for i in range(8)])
    world.then(*[LeaseEnded(at_s=1000 + i, lease=f"job-{i}.1", exit_code=0) for i in range(5)])
    world.then(LeaseEnded(at_s=2000, lease="job-5.1", exit_code=None, requeue=True))
    again = Fleet()
    for event in world.events:
        again.apply(from_record(*to_record(event)))
    for had_s in (0, 900, 1500):
        mine, other = (each.backlog.kinds.of(a_job("x")) for each in (world.fleet, again))
        assert mine.left_s(had_s) == other.left_s(had_s)
        assert mine.mean_left_s(had_s) == other.mean_left_s(had_s)
    assert world.fleet.backlog == again.backlog
