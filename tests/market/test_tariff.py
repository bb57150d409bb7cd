"""A tariff is bounded, smooth and revenue-neutral, and who can wait never pays more."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from math import pi, sin

import pytest

from brimful.fleet.events import JobHeld, JobReleased, TariffSet
from brimful.fleet.learned.load import TariffLine
from brimful.market.tariff import FLAT, HOURS, TariffTerms, curve, is_low, paid
from brimful.scheduler.load import prices_now, promised
from brimful.scheduler.rules import Rules
from tests.builders import a_fleet, a_job, code_of, granted

HOUR = 3600
TERMS = TariffTerms()


def a_day(seed: int, *, mean: float = 0.8) -> list[float]:
    rng = random.Random(seed)
    swing = rng.uniform(0.0, 0.5)
    wave = (mean + swing * sin(2 * pi * h / 24) + rng.gauss(0, 0.05) for h in range(HOURS))
    return [max(0.0, 100 * each) for each in wave]


@pytest.mark.parametrize("seed", range(40))
def test_a_curve_is_bounded_and_smooth_whatever_comes(seed: int) -> None:
    rng = random.Random(seed)
    last = rng.randint(TERMS.least, TERMS.most)
    found = curve(a_day(seed, mean=rng.uniform(0.0, 1.5)), 100, last=last, over=rng.uniform(-5000, 5000))

    assert len(found) == HOURS
    assert all(TERMS.least <= each <= TERMS.most for each in found)
    for a, b in pairwise([last, *found]):
        assert b * FLAT <= a * (FLAT + TERMS.step)
        assert a * FLAT <= b * (FLAT + TERMS.step)


@pytest.mark.parametrize("seed", range(20))
def test_the_forecast_load_pays_what_it_would_at_the_flat_price(seed: int) -> None:
    loads = a_day(seed)
    paid_in_all = sum(m * load for m, load in zip(curve(loads, 100), loads, strict=True))

    assert paid_in_all == pytest.approx(FLAT * sum(loads), rel=0.005)


def test_busier_hours_cost_more_and_a_level_load_costs_the_same_at_all_hours() -> None:
    found = curve([50.0] * 12 + [100.0] * 12, 100)

    assert max(found[:8]) < min(found[14:])
    assert set(curve([80.0] * HOURS, 100)) == {FLAT}
    assert curve([], 100) == []


def test_what_was_collected_beyond_the_flat_price_is_given_back() -> None:
    loads = a_day(3)

    assert sum(curve(loads, 100, over=100.0)) < sum(curve(loads, 100)) < sum(curve(loads, 100, over=-100.0))


def test_who_can_wait_waits_only_for_more_than_a_step() -> None:
    assert is_low(1000, [])
    assert is_low(1000, [950, 1200])
    assert not is_low(1000, [1200, 880])
    assert paid(900, 1100) == paid(1100, 900) == 900


def a_quote(*permille: int, at_s: int = 0) -> TariffSet:
    return TariffSet(at_s=at_s, site="local", gpu="h100", tier="owned", permille=permille)


def test_a_deferrable_job_waits_for_the_cheap_hour_and_pays_no_more_than_at_once() -> None:
    fleet = a_fleet().waiting(a_job("now"), a_job("later", deferrable=True))
    (pool,) = fleet.fleet.capacity.pools
    quote = TariffSet(at_s=0, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=(1000, 900, 700, 1100))
    fleet.then(quote)
    rules = Rules(off_peak=True, backfill="greedy")

    plan = fleet.plan(rules=rules)

    assert [start.job for start in plan.starts] == ["now"]
    assert code_of(plan.waits["later"]) == "scheduler.cheaper_hour"
    then = 2 * HOUR
    prices = prices_now(fleet.fleet, now_s=then)
    assert prices[pool] == fleet.fleet.posted_prices()[pool] * 7 // 10
    (start,) = [start for start in fleet.plan(rules=rules, now_s=then).starts if start.job == "later"]
    assert start.microusd_per_gpu_hour <= fleet.fleet.posted_prices()[pool]


def test_a_job_that_could_not_start_in_time_keeps_the_price_of_the_hour_it_came() -> None:
    fleet = a_fleet().waiting(a_job("later", deferrable=True))
    (pool,) = fleet.fleet.capacity.pools
    quote = TariffSet(
        at_s=0, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=(900,) * 2 + (1100,) * 40
    )
    fleet.then(quote)

    (start,) = fleet.plan(rules=Rules(off_peak=True), now_s=30 * HOUR).starts

    assert start.microusd_per_gpu_hour == fleet.fleet.posted_prices()[pool] * 9 // 10


def test_a_job_on_hold_keeps_no_price_and_waits_for_a_cheap_hour_once_released() -> None:
    fleet = a_fleet().waiting(a_job("later", deferrable=True))
    (pool,) = fleet.fleet.capacity.pools
    permille = (900,) * 2 + (1200,) * 30 + (800,) * 10
    fleet.then(TariffSet(at_s=0, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=permille))
    fleet.then(JobHeld(at_s=0, job="later"), JobReleased(at_s=30 * HOUR, job="later"))
    rules, posted = Rules(off_peak=True), fleet.fleet.posted_prices()[pool]

    assert code_of(fleet.plan(rules=rules, now_s=30 * HOUR).waits["later"]) == "scheduler.cheaper_hour"
    state = fleet.fleet.jobs["later"]
    assert promised(fleet.fleet, state, pool, posted * 13 // 10) == posted * 12 // 10


def test_a_line_keeps_quotes_of_hours_that_have_begun() -> None:
    line = TariffLine()
    line.set(a_quote(900, 1000, 1100), over=-1.0)
    line.set(a_quote(950, 1050, at_s=HOUR), over=-0.5)

    assert [line.at(h * HOUR) for h in range(4)] == [900, 950, 1050, FLAT]
    assert line.over == pytest.approx(-1.5)
    assert line.after(HOUR, until_s=2 * HOUR) == [1050]


def test_what_leases_pay_is_reckoned_and_not_what_the_hour_costs() -> None:
    """A lease keeps the price of its first hour, so a long one that began at night pays too little by day."""
    fleet = a_fleet().waiting(a_job("long"))
    (pool,) = fleet.fleet.capacity.pools
    night = fleet.fleet.posted_prices()[pool] * 8 // 10
    fleet.then(replace(granted("long", gpus=(0,)), microusd_per_gpu_hour=night))
    for hour in (1, 2):
        quote = TariffSet(
            at_s=hour * HOUR, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=(1200, 1300)
        )
        fleet.then(quote)

    size = fleet.fleet.open_leases["long.1"].size
    assert fleet.fleet.tariffs[pool].over == pytest.approx(2 * size * -0.2)
