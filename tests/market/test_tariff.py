"""A tariff is bounded, smooth and revenue-neutral, and who can wait never pays more."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from math import pi, sin

import pytest

from brimful.fleet.events import (
    Event,
    JobHeld,
    JobReleased,
    LeaseEnded,
    LeaseStarted,
    MoveRequested,
    TariffSet,
    TermsChanged,
)
from brimful.fleet.job import Job
from brimful.fleet.learned.load import TariffLine
from brimful.fleet.money.quote import Quoted
from brimful.fleet.node import Pool
from brimful.market.tariff import FLAT, HOURS, TariffTerms, curve, is_low
from brimful.scheduler.decide import decide
from brimful.scheduler.load import prices_now
from brimful.scheduler.offpeak import defer, promised
from brimful.scheduler.plan import Plan
from brimful.scheduler.rules import Rules
from tests.builders import USD, AFleet, a_fleet, a_job, a_node, code_of, granted

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
    assert promised(fleet.fleet, state, pool, posted * 13 // 10, now_s=30 * HOUR) == posted * 12 // 10


def test_a_line_keeps_quotes_of_hours_that_have_begun() -> None:
    line = TariffLine()
    line.set(a_quote(900, 1000, 1100), over=-1.0)
    line.set(a_quote(950, 1050, at_s=HOUR), over=-0.5)

    assert [line.at(h * HOUR) for h in range(4)] == [900, 950, 1050, FLAT]
    assert line.over == pytest.approx(-1.5)
    assert line.after(HOUR, until_s=2 * HOUR) == {2: 1050}


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


def priced(pool: Pool, *permille: int, at_s: int = 0) -> TariffSet:
    return TariffSet(at_s=at_s, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=permille)


def decided(fleet: AFleet, *, now_s: int) -> Plan:
    """What the loop would decide: with the prices of the hour."""
    return decide(fleet.fleet, OFF_PEAK, prices_now(fleet.fleet, now_s=now_s), now_s=now_s)


OFF_PEAK = Rules(off_peak=True, backfill="greedy", types="cheap")


def two_pools(*, rates: tuple[tuple[str, float], ...] = ()) -> tuple[AFleet, Pool, Pool, Job]:
    nodes = [a_node("cheap", gpus=1, gpu="l4", usd=1), a_node("dear", gpus=1, gpu="h100", usd=4)]
    cheap, dear = (node.pool for node in nodes)
    return AFleet(nodes), cheap, dear, a_job("later", deferrable=True, rates=rates)


@pytest.mark.parametrize(("rates", "usd"), [((), 0.7), ((("l4", 1.0), ("h100", 2.0)), 1.4)])
def test_a_job_that_ends_up_on_a_dearer_gpu_pays_no_more_for_its_work(
    rates: tuple[tuple[str, float], ...], usd: float
) -> None:
    fleet, cheap, dear, job = two_pools(rates=rates)
    fleet.then(*(priced(pool, 1000, 900, 700, 700) for pool in (cheap, dear))).waiting(job)
    assert code_of(decided(fleet, now_s=0).waits["later"]) == "scheduler.cheaper_hour"
    fleet.waiting(a_job("other")).then(granted("other", node="cheap", gpus=(0,)))

    (start,) = decided(fleet, now_s=2 * HOUR).starts

    # It was quoted $0.70 for this hour on the cheap GPU; on one twice as fast, its work costs the same.
    assert (start.node, start.microusd_per_gpu_hour) == ("dear", usd * USD)


def test_a_cheap_gpu_that_was_taken_when_the_job_came_sets_no_price() -> None:
    fleet, cheap, dear, job = two_pools()
    fleet.waiting(a_job("other")).then(granted("other", node="cheap", gpus=(0,)))
    fleet.then(*(priced(pool, 1000, 900, 700, 700) for pool in (cheap, dear))).waiting(job)

    (start,) = decided(fleet, now_s=2 * HOUR).starts

    assert (start.node, start.microusd_per_gpu_hour) == ("dear", 2.8 * USD)


@pytest.mark.parametrize("seed", range(60))
def test_no_job_that_waits_pays_more_for_its_work_than_if_it_had_started_at_once(seed: int) -> None:
    """Two pools, GPUs that come and go, and curves that are quoted again every hour."""
    rng = random.Random(seed)
    rates = (("l4", 1.0), ("h100", rng.choice([1.0, 1.7, 4.0])))
    fleet, cheap, dear, job = two_pools(rates=rates)
    pools = (cheap, dear)

    def quote(hour: int) -> None:
        for pool in pools:
            permille = [rng.randint(700, 1500) for _ in range(HOURS)]
            fleet.then(priced(pool, *permille, at_s=hour * HOUR))

    quote(0)
    fleet.waiting(job)
    at_once = AFleet([*fleet.fleet.nodes.values()])
    at_once.then(*fleet.events[2:4]).waiting(replace(job, deferrable=False))
    (now,) = decided(at_once, now_s=0).starts
    of = dict(rates)
    most = now.microusd_per_gpu_hour / of[at_once.fleet.nodes[now.node].gpu]
    taken: dict[str, str] = {}
    for hour in range(30):
        if hour:
            quote(hour)
        for node in ("cheap", "dear"):
            if node in taken and rng.random() < 0.3:
                fleet.then(LeaseEnded(at_s=hour * HOUR, lease=f"{taken.pop(node)}.1", exit_code=0))
            elif node not in taken and rng.random() < 0.6:
                name = taken[node] = f"{node}-{hour}"
                fleet.waiting(a_job(name), at_s=hour * HOUR)
                fleet.then(granted(name, node=node, gpus=(0,), at_s=hour * HOUR))
                fleet.then(LeaseStarted(at_s=hour * HOUR, lease=f"{name}.1"))
        for start in decided(fleet, now_s=hour * HOUR).starts:
            gpu = fleet.fleet.nodes[start.node].gpu
            assert start.microusd_per_gpu_hour / of[gpu] <= most
            return
    pytest.fail("it never started")


def test_a_job_starts_by_its_own_quote_beside_one_that_waits_for_its_cheap_hour() -> None:
    """Both have the same shape. The first was quoted a cheap hour, the second came when that was gone."""
    fleet = a_fleet()
    (pool,) = fleet.fleet.capacity.pools
    fleet.then(priced(pool, 1000, 1000, 700)).waiting(a_job("first", deferrable=True))
    fleet.then(priced(pool, *[1000] * 30, at_s=HOUR)).waiting(a_job("second", deferrable=True), at_s=HOUR)

    plan = decided(fleet, now_s=HOUR)

    assert [start.job for start in plan.starts] == ["second"]
    assert code_of(plan.waits["first"]) == "scheduler.cheaper_hour"


def test_what_was_quoted_for_an_hour_stands_when_it_is_quoted_again() -> None:
    fleet = a_fleet()
    (pool,) = fleet.fleet.capacity.pools
    posted = fleet.fleet.posted_prices()[pool]
    fleet.then(priced(pool, 1000, 900, 700, 900)).waiting(a_job("later", deferrable=True))
    told = decided(fleet, now_s=0).waits["later"].as_dict()
    assert told["then"] == pytest.approx(0.7)
    for hour in (1, 2):
        fleet.then(priced(pool, 1100, 1200, 1300, at_s=hour * HOUR))

    assert decided(fleet, now_s=HOUR).waits["later"].as_dict()["then"] == pytest.approx(0.7)
    (start,) = decided(fleet, now_s=2 * HOUR).starts

    assert start.microusd_per_gpu_hour == posted * 7 // 10


@pytest.mark.parametrize(
    "changes",
    [
        (JobHeld(at_s=HOUR, job="later"), JobReleased(at_s=2 * HOUR, job="later")),
        (TermsChanged(at_s=2 * HOUR, job="later", priority="urgent", deadline_s=None),),
        (MoveRequested(at_s=2 * HOUR, job="later", sites=("here",)),),
    ],
)
def test_who_changes_a_job_is_quoted_anew(changes: tuple[Event, ...]) -> None:
    fleet = a_fleet()
    (pool,) = fleet.fleet.capacity.pools
    posted = fleet.fleet.posted_prices()[pool]
    fleet.then(priced(pool, 1000, 700, 900)).waiting(a_job("later", deferrable=True))
    fleet.then(priced(pool, *[1200] * 30, at_s=2 * HOUR), *changes)

    (start,) = decided(fleet, now_s=2 * HOUR).starts

    assert start.microusd_per_gpu_hour == posted * 12 // 10


def test_a_look_reads_each_quote_of_a_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may wait, and every pool is compared with every other."""
    nodes = [replace(a_node(f"n{i}", gpus=1), site=f"s{i}") for i in range(12)]
    fleet = AFleet(nodes)
    fleet.then(*(priced(node.pool, 1000, 900, 700, 700) for node in nodes))
    fleet.waiting(a_job("later", deferrable=True))
    read: list[Quoted] = []
    lowest = Quoted.lowest

    def counted(quoted: Quoted, line: TariffLine | None, *, now_s: int) -> int:
        read.append(quoted)
        return lowest(quoted, line, now_s=now_s)

    monkeypatch.setattr(Quoted, "lowest", counted)
    assert defer(fleet.fleet.jobs["later"], fleet.fleet, free=12, now_s=HOUR) is not None
    assert len(read) == len(nodes)

    fleet.waiting(*(a_job(f"also-{i}", deferrable=True) for i in range(50)))
    read.clear()
    assert not decided(fleet, now_s=HOUR).starts
    assert len(read) == len(nodes)  # all have the same quote
