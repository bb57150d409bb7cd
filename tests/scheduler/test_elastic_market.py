"""Elastic gangs in a market pool: clearing decides their size, and a restart is part of its worth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from brimful.fleet.events import BudgetSet, LeaseGranted, NoticeGiven
from brimful.fleet.job import sizes_of
from brimful.fleet.state import Fleet
from brimful.market.pools import Market
from brimful.scheduler.rules import Quota
from brimful.sim.world import Arrival, Outcome, rehearse
from tests.builders import USD, code_of
from tests.scheduler.test_auction import RULES, TERMS, arrival, check, nodes, of, run

LINEAR = (("", ((1, 1.0), (16, 16.0))),)


def elastic(job: str, least: int, most: int, **more: object) -> Arrival:
    given = {"curves": LINEAR, "checkpoint_cost_s": 30, "work_s": 20_000.0} | more
    return arrival(job, gpus=least, min_gpus=least, max_gpus=most, **given)  # type: ignore[arg-type]


def sizes(done: Outcome, job: str) -> list[int]:
    return [lease.size for lease in done.fleet.jobs[job].leases]


def test_a_gang_starts_wide_is_outbid_for_a_part_and_grows_again() -> None:
    done = run(
        [
            elastic("wide", 1, 4, limit_microusd_per_gpu_hour=2 * USD),
            arrival("rival", at_s=1200, gpus=2, work_s=1800, limit_microusd_per_gpu_hour=6 * USD),
        ],
        nodes(gpus=4),
    )
    assert sizes(done, "wide") == [4, 2, 4]
    assert done.fleet.jobs["rival"].phase == done.fleet.jobs["wide"].phase == "finished"
    assert [code_of(event.reason) for event in of(done.log, NoticeGiven)] == ["scheduler.resized"] * 2  # type: ignore[attr-defined]
    wide = done.fleet.jobs["wide"]
    billed = sum(lease.cost_microusd(0) for lease in wide.leases)
    assert abs(done.ledger.spent_microusd["wide"] - billed) <= len(wide.leases)


def test_a_gang_alone_is_not_resized_again() -> None:
    done = run([elastic("a", 1, 4), elastic("b", 1, 4)], nodes(gpus=8))
    assert (sizes(done, "a"), sizes(done, "b")) == ([4], [4])


def test_nobody_starts_on_gpus_that_a_gang_leaves_in_order_to_grow() -> None:
    done = run(
        [
            arrival("first", gpus=4, work_s=1200, limit_microusd_per_gpu_hour=5 * USD),
            elastic("wide", 4, 8, limit_microusd_per_gpu_hour=3 * USD),
            arrival("low", at_s=60, gpus=4, work_s=600, limit_microusd_per_gpu_hour=USD),
        ],
    )
    assert sizes(done, "wide")[0] == 4
    for event in of(done.log, LeaseGranted):
        assert isinstance(event, LeaseGranted)
    assert done.fleet.jobs["low"].phase == "finished"
    assert len(sizes(done, "wide")) <= 3


def test_it_grows_no_further_than_its_queue_and_its_budget_allow() -> None:
    rules = replace(RULES, quotas=(Quota(queue="q", gpus=2, borrow_gpus=0), Quota(queue="r", gpus=6)))
    done = rehearse(
        [elastic("a", 1, 8, queue="q", work_s=3600), elastic("b", 1, 4, queue="r", work_s=3600)],
        nodes(),
        rules,
        market=Market(terms=TERMS),
    )
    check(done.log)
    assert set(sizes(done, "a")) == {2}
    poor = rehearse(
        [elastic("a", 1, 8, tenant="a", work_s=600, limit_microusd_per_gpu_hour=6 * USD)],
        nodes(),
        RULES,
        market=Market(terms=TERMS),
        before=[BudgetSet(at_s=0, tenant="a", microusd=45 * USD // 100)],  # a minute of 4 costs 40 cents
    )
    check(poor.log)
    assert sizes(poor, "a")[0] == 4


@pytest.mark.parametrize("make", [arrival, lambda job, **more: elastic(job, 2, 8, **more)])
@pytest.mark.parametrize("pools", [1, 2])
def test_bids_of_one_queue_win_no_more_together_than_it_may_hold(
    make: Callable[..., Arrival], pools: int
) -> None:
    """Each alone would be within the quota. In two pools too: a winner in the first counts in the second."""
    rules = replace(RULES, quotas=(Quota(queue="q", gpus=4, borrow_gpus=2),))
    bids = [
        make(job, queue="q", work_s=3600, limit_microusd_per_gpu_hour=int(usd * USD))
        for job, usd in (("low", 2), ("high", 3), ("middle", 2.5))
    ]
    bids = [replace(bid, job=replace(bid.job, gpus=bid.job.min_gpus or 4)) for bid in bids]
    where = [
        replace(node, gpu=gpu) for node, gpu in zip(nodes(pools, gpus=8), ("h100", "a100"), strict=False)
    ]
    done = rehearse(bids, where, rules, market=Market(terms=TERMS))
    fleet, most = Fleet(), 0
    for event in done.log:
        fleet.apply(event)
        most = max(most, fleet.usage["q"].held if "q" in fleet.usage else 0)
    assert 4 <= most <= 6
    assert {state.phase for state in done.fleet.jobs.values()} == {"finished"}
    starts = [event.job for event in done.log if isinstance(event, LeaseGranted)]
    assert starts[0] == "high"


def test_random_markets_with_elastic_gangs_keep_every_promise() -> None:
    resized = 0
    for seed in range(8):
        r = random.Random(seed)
        arrivals = [_drawn(r, i) for i in range(30)]
        before = [BudgetSet(at_s=0, tenant="a", microusd=r.randrange(USD, 100 * USD))]
        where = nodes(r.choice((1, 2)), gpus=8)
        done = rehearse(arrivals, where, RULES, market=Market(terms=TERMS), before=before)
        check(done.log)
        _check_sizes(done)
        for state in done.fleet.jobs.values():
            if state.job.tenant != "a":
                assert state.phase == "finished", (seed, state.job)
            resized += sum(
                code_of(each.notice) == "scheduler.resized" for each in state.leases if each.notice
            )
        if seed < 2:
            again = rehearse(arrivals, where, RULES, market=Market(terms=TERMS), before=before)
            assert again.log == done.log
    assert resized > 10


def _drawn(r: random.Random, i: int) -> Arrival:
    least, most = r.choice(((0, 0), (1, 4), (1, 8), (2, 6), (2, 8), (3, 6)))
    more: dict[str, object] = {
        "at_s": r.randrange(0, 20_000),
        "work_s": r.randrange(60, 9000),
        "tenant": r.choice("abc"),
        "limit_microusd_per_gpu_hour": r.choice((None, r.randrange(USD, 6 * USD))),
        "within": r.choice(("node", "any")),
        "priority": r.choice(("urgent", "normal", "background")),
    }
    if not most:
        return arrival(f"j{i}", gpus=r.choice((1, 2, 4, 8)), **more)  # type: ignore[arg-type]
    return elastic(f"j{i}", least, most, **more)


def _check_sizes(done: Outcome) -> None:
    """Sizes divide the largest, and no GPU has two tenants (`Fleet.apply` checks that too)."""
    fleet = Fleet()
    for event in done.log:
        fleet.apply(event)
        if isinstance(event, LeaseGranted):
            held = [(n, i) for lease in fleet.open_leases.values() for n, gpus in lease.parts for i in gpus]
            assert len(held) == len(set(held))
    for state in done.fleet.jobs.values():
        assert all(lease.size in sizes_of(replace(state.job)) for lease in state.leases)
        assert len(state.leases) < 25, state.job
