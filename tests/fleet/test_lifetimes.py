"""How much a job has left, by what others did: the index in cases where the right order is known."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from brimful.fleet.learned.lifetimes import EDGES_S, FRESH_S, LATELY, Kind, Lifetimes, step_of
from brimful.units import HOUR_S
from tests.builders import a_fleet, a_job


def learned(lengths_s: list[float], going_s: list[float] | None = None) -> Kind:
    found = Lifetimes()
    for length_s in lengths_s:
        found.left(1, before_s=0, ran_s=length_s, is_over=True)
    found.learn((1, had_s) for had_s in going_s or ())
    return found.kind_of(1)


def drawn(draw: str, n: int = 4000) -> list[float]:
    rng = Random(7)
    draws: dict[str, Callable[[], float]] = {
        "alike": lambda: HOUR_S * rng.uniform(0.9, 1.1),
        "memoryless": lambda: rng.expovariate(1 / (2 * HOUR_S)),
        "heavy": lambda: 60 * rng.paretovariate(0.8),
        "short or a day": lambda: rng.choice([600.0, 24.0 * HOUR_S]) * rng.uniform(0.9, 1.1),
    }
    return [draws[draw]() for _ in range(n)]


def test_before_any_job_has_ended_one_goes_on_for_as_long_again_as_it_has_run() -> None:
    unseen = Lifetimes().kind_of(1)
    assert unseen.left_s(0) == pytest.approx(FRESH_S, rel=0.1)
    for hours in (2, 8, 32):
        assert unseen.left_s(hours * HOUR_S) == pytest.approx(hours * HOUR_S, rel=0.2)


def test_where_all_jobs_are_alike_the_one_that_has_run_longest_is_nearest_to_its_end() -> None:
    kind = learned(drawn("alike"))
    assert kind.left_s(0) == pytest.approx(HOUR_S, rel=0.2)
    left = [kind.left_s(had_s) for had_s in range(0, int(0.8 * HOUR_S), 300)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] / 2


def test_where_jobs_have_no_memory_all_have_as_much_left() -> None:
    kind = learned(drawn("memoryless"))
    for had_s in (0, HOUR_S, 2 * HOUR_S, 4 * HOUR_S):
        assert kind.left_s(had_s) == pytest.approx(2 * HOUR_S, rel=0.25)


def test_where_lengths_are_heavy_tailed_the_one_that_has_run_longest_has_most_left() -> None:
    kind = learned(drawn("heavy", 20_000))
    left = [kind.left_s(had_s) for had_s in (0, 1000, 4000, 16_000, 64_000)]
    assert left == sorted(left)


def test_where_some_end_at_once_and_others_run_for_a_day_each_is_tried_and_then_left_to_run() -> None:
    kind = learned(drawn("short or a day"))
    assert kind.left_s(0) < 0.5 * HOUR_S
    assert kind.left_s(HOUR_S) == pytest.approx(23 * HOUR_S, rel=0.15)
    assert kind.left_s(12 * HOUR_S) < 0.7 * kind.left_s(HOUR_S)


def test_jobs_that_still_run_count_as_longer_than_so_far() -> None:
    """Otherwise the first to end would make all look short."""
    short = [600.0] * 50
    assert learned(short).left_s(0) == pytest.approx(600, rel=0.3)
    # One in ten ends after ten minutes: a hundred minutes for each that ends.
    assert learned(short, going_s=[HOUR_S] * 450).left_s(0) == pytest.approx(6000, rel=0.2)


def test_a_job_that_was_stopped_often_is_one_job() -> None:
    found = Lifetimes()
    for _ in range(200):
        found.left(1, before_s=0, ran_s=1000, is_over=False)
        found.left(1, before_s=1000, ran_s=1000, is_over=False)
        found.left(1, before_s=2000, ran_s=1000, is_over=True)
    found.learn(())
    whole = learned([3000.0] * 200)
    assert found.kind_of(1).left_s(0) == pytest.approx(whole.left_s(0))


def test_a_width_that_few_jobs_had_is_judged_by_all_and_one_that_many_had_by_its_own() -> None:
    found = Lifetimes()
    for _ in range(2000):
        found.left(1, before_s=0, ran_s=600, is_over=True)
    for gpus, jobs in ((8, 2), (16, 500)):
        for _ in range(jobs):
            found.left(gpus, before_s=0, ran_s=10 * HOUR_S, is_over=True)
    found.learn(())
    one, few, many = (found.kind_of(gpus).left_s(0) for gpus in (1, 8, 16))
    assert one < few < 2 * one
    assert many == pytest.approx(10 * HOUR_S, rel=0.25)


def test_what_jobs_did_long_ago_is_forgotten() -> None:
    found = Lifetimes()
    for length_s in (10 * HOUR_S, 600):
        for _ in range(8 * LATELY):
            if found.left(1, before_s=0, ran_s=length_s, is_over=True):
                found.learn(())
    assert found.kind_of(1).left_s(0) < 0.4 * HOUR_S


@pytest.mark.parametrize("draw", ["alike", "memoryless", "heavy", "short or a day"])
def test_the_index_is_the_least_service_paid_per_job_that_ends(draw: str) -> None:
    """Against plain sums over the lengths themselves, with the horizons that the steps allow."""
    lengths_s = drawn(draw)
    kind = learned(lengths_s)
    for had_s in (0.0, 900.0, 7200.0):
        from_s = EDGES_S[step_of(had_s)]
        ahead = [length_s - from_s for length_s in lengths_s if length_s > from_s]
        if len(ahead) < 200:
            continue  # there the prior decides
        costs = []
        for edge_s in EDGES_S:
            ended = sum(left_s <= edge_s - from_s for left_s in ahead)
            if edge_s - from_s >= 300 and ended >= 20:
                costs.append(sum(min(left_s, edge_s - from_s) for left_s in ahead) / ended)
        assert kind.left_s(had_s) == pytest.approx(min(costs), rel=0.2)


def test_jobs_of_one_width_know_what_was_learned_after_they_came() -> None:
    world = a_fleet(nodes=1, gpus_per_node=8).waiting(a_job("job", gpus=2))
    state = world.fleet.jobs["job"]
    before_s = state.kin.left_s(0) if state.kin else 0.0
    for _ in range(100):
        world.fleet.turns.lifetimes.left(2, before_s=0, ran_s=5 * HOUR_S, is_over=True)
    world.fleet.turns.lifetimes.learn(())
    assert state.kin is not None
    assert state.kin.left_s(0) > 3 * before_s
