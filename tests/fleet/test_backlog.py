"""How long jobs would take in the order they came, as the fleet reckons it."""

from __future__ import annotations

import pytest

from brimful.fleet.events import CancelRequested, LeaseEnded
from tests.builders import AFleet, a_fleet, a_job


def ahead_s(world: AFleet, *, at_s: int) -> float:
    """Of one that comes now."""
    return (
        world.waiting(a_job(f"probe-{at_s}", predicted_work_s=0.0), at_s=at_s)
        .fleet.jobs[f"probe-{at_s}"]
        .ahead_s
    )


def test_work_ahead_is_what_is_left_of_all_who_are_here_over_all_gpus() -> None:
    world = a_fleet().running(a_job("wide", gpus=4, predicted_work_s=8000.0))
    world.waiting(a_job("narrow", gpus=2, predicted_work_s=4000.0))
    assert ahead_s(world, at_s=0) == pytest.approx((4 * 8000 + 2 * 4000) / 8)
    assert ahead_s(world, at_s=1000) == pytest.approx((4 * 7000 + 2 * 4000) / 8)  # one of them runs
    world.then(LeaseEnded(at_s=2000, lease="wide.1", exit_code=None, kept_work_s=1500.0, requeue=True))
    assert ahead_s(world, at_s=2000) == pytest.approx((4 * 6500 + 2 * 4000) / 8)  # 500 s were lost
    assert ahead_s(world, at_s=9000) == pytest.approx((4 * 6500 + 2 * 4000) / 8)  # nobody runs
    world.then(CancelRequested(at_s=9000, job="narrow"), CancelRequested(at_s=9000, job="wide"))
    assert ahead_s(world, at_s=9001) == pytest.approx(0.0)


def test_of_unknown_lengths_the_mean_of_those_seen_is_owed_and_nothing_once_they_are_over() -> None:
    world = a_fleet().running(*[a_job(f"job-{i}") for i in range(8)])
    world.then(*[LeaseEnded(at_s=6000, lease=f"job-{i}.1", exit_code=0) for i in range(8)])
    assert ahead_s(world, at_s=6000) == pytest.approx(0.0)
    world.waiting(*[a_job(f"more-{i}") for i in range(8)], at_s=6000)
    assert 3000 < ahead_s(world, at_s=6001) < 7000


def test_a_prediction_without_end_owes_half_a_year() -> None:
    world = a_fleet().waiting(a_job("endless", predicted_work_s=float("inf")))
    assert 0 < ahead_s(world, at_s=1) < float("inf")
    world.then(CancelRequested(at_s=2, job="endless"))
    assert ahead_s(world, at_s=3) == 0.0
