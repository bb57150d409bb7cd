"""Forecasts learn from the past alone, and their scores say how well they do."""

from __future__ import annotations

import random
from math import inf, pi, sin

import pytest

from brimful.fleet.events import LoadSeen
from brimful.fleet.learned.load import LoadLine
from brimful.fleet.node import Pool
from brimful.market.forecast import (
    BrierScore,
    Forecasts,
    LoadForecaster,
    PriceForecaster,
    PriceSeries,
    Situation,
    pooled,
    score_prices,
)
from brimful.market.spells import spells_of


def a_load(days: int, *, seed: int, swing: float = 20.0, drift: float = 1.0) -> list[float]:
    """A day's wave over a level that wanders."""
    rng, level, loads = random.Random(seed), 100.0, []
    for hour in range(24 * days):
        level = max(40.0, level + rng.gauss(0, drift))
        loads.append(max(0.0, level + swing * sin(2 * pi * hour / 24) + rng.gauss(0, 3)))
    return loads


def told(loads: list[float]) -> LoadForecaster:
    forecaster = LoadForecaster()
    for load in loads:
        forecaster.tell(load)
    return forecaster


@pytest.mark.parametrize("seed", range(3))
def test_a_wave_is_forecast_better_than_by_yesterday_or_by_now(seed: int) -> None:
    score = told(a_load(60, seed=seed)).score

    assert score.hours == 56 * 24
    assert score.skill is not None
    assert score.skill > 0.12
    assert score.skill_over_persistence is not None
    assert score.skill_over_persistence > 0.0
    assert score.coverage is not None
    assert 0.75 <= score.coverage <= 0.85


def test_a_forecast_knows_nothing_of_the_hours_after_it() -> None:
    loads = a_load(20, seed=1)
    ahead = told(loads[:400]).ahead(48)
    other = told(loads[:400])

    assert other.ahead(48) == ahead
    for load in (0.0, 5000.0):
        other.tell(load)
    assert told(loads[:400]).ahead(48) == ahead
    assert all(band.low <= band.likely <= band.high for band in ahead)


def test_a_constant_load_is_forecast_exactly() -> None:
    forecaster = told([7.0] * 24 * 10)

    assert all(band == pytest.approx((7.0, 7.0, 7.0)) for band in forecaster.ahead(48))


def test_nothing_is_said_before_there_are_four_days() -> None:
    assert told(a_load(3, seed=0)).ahead(1) == []
    assert len(told(a_load(4, seed=0)).ahead(24)) == 24


def test_hours_in_which_nobody_looked_are_like_the_one_before() -> None:
    line, pool = LoadLine(), Pool("here", "h100", "owned")
    for at_s, held in ((0, 3), (3600 * 4 + 7, 5), (3600 * 4 + 9, 6)):
        line.add(LoadSeen(at_s=at_s, site="here", gpu="h100", tier="owned", held=held, wanted=1, gpus=8))

    assert line.loads == [4.0, 4.0, 4.0, 4.0, 7.0]
    assert line.next_hour == 5
    forecasts = Forecasts()
    assert forecasts.of(pool, line).told == 5
    line.add(LoadSeen(at_s=3600 * 5, site="here", gpu="h100", tier="owned", held=1, wanted=0, gpus=8))
    assert forecasts.of(pool, line).told == 6


def test_a_rising_price_is_less_likely_to_stay_low_than_a_still_one() -> None:
    forecaster = PriceForecaster(24)
    still, rising = Situation(1.0, 0.0, 0.0, 0.0), Situation(1.0, 0.04, 0.04, 0.1)
    for _ in range(50):
        forecaster.tell(still, 1.0)
        forecaster.tell(rising, 1.06)

    chances = [forecaster.stays_below(then, 1.01) for then in (still, rising)]
    assert chances[0] is not None
    assert chances[1] is not None
    assert chances[0] > 0.9 > 0.1 > chances[1]
    assert forecaster.stays_below(None, 1.01, price=1.0) == pytest.approx(0.5)
    assert forecaster.stays_below(still, 0.99) == 0.0
    assert forecaster.stays_below(rising, 2.0) == pytest.approx(1.0)


def test_a_chance_never_falls_as_the_limit_rises() -> None:
    rng, forecaster = random.Random(3), PriceForecaster(72)
    for _ in range(500):
        change = rng.gauss(0, 0.03)
        then = Situation(1.0, change, abs(change), 2 * change)
        forecaster.tell(then, inf if rng.random() < 0.01 else 1.0 + max(0.0, rng.gauss(change, 0.05)))
    for change in (-0.1, 0.0, 0.002, 0.08):
        then = Situation(1.0, change, abs(change), 2 * change)
        chances = [forecaster.stays_below(then, 1 + i / 200) or 0.0 for i in range(100)]
        assert chances == sorted(chances)
        assert chances[-1] <= 1.0


def test_a_price_that_is_delisted_did_not_stay() -> None:
    series = PriceSeries([0.0, 80.0, 100.0, 200.0], [1.0, 1.1, None, 1.0])

    assert series.peak(70.0, 5.0) == 1.0
    assert series.peak(70.0, 15.0) == 1.1
    assert series.peak(90.0, 20.0) == inf
    assert series.peak(190.0, 24.0) is None  # nobody knows
    assert series.situation(150.0) is None
    assert [case.peak for case in series.cases(24)] == [1.1, inf]


def test_prices_with_momentum_are_forecast_better_than_by_what_is_usual() -> None:
    lines = []
    for seed in range(6):
        rng, price, push, at_h, prices = random.Random(seed), 1.0, 0.0, [], []
        for step in range(4 * 400):
            push = 0.95 * push + rng.gauss(0, 0.001)
            price *= 1 + push
            at_h.append(6.0 * step)
            prices.append(price)
        lines.append(PriceSeries(at_h, prices))
    skill = pooled(score_prices(lines, 24, cut_h=300 * 24).values()).skill

    assert skill is not None
    assert skill > 0.25
    assert BrierScore().skill is None


def test_spot_that_went_often_is_not_expected_to_last() -> None:
    hour = 3600
    restless = spells_of([t * hour for t in range(60)], until_s=60 * hour)
    steady = spells_of([0], until_s=60 * hour)

    assert restless.expected_hours(0) < 3 < steady.expected_hours(60 * hour)
    assert restless.stays(0, 6) < 0.1 < steady.stays(60 * hour, 6)
    assert steady.stays(0, 0) == 1.0
