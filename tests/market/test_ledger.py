"""Money: held, posted, given back, and never made or lost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brimful.fleet.events import CancelRequested, LeaseEnded, LeaseEnding, LeaseStarted
from brimful.language import verbatim
from brimful.market.ledger import Ledger
from tests.builders import USD, AFleet, a_fleet, a_job, granted


def ledger_of(world: AFleet) -> Ledger:
    ledger = Ledger()
    for event in world.events:
        ledger.apply(event)
    assert sum(ledger.balances.values()) == 0
    return ledger


def test_a_lease_is_billed_by_gpus_seconds_and_rate() -> None:
    world = a_fleet().running(a_job("a", gpus=2))  # two GPUs at $2 an hour
    world.then(LeaseEnded(at_s=1800, lease="a.1", exit_code=0))
    ledger = ledger_of(world)
    assert ledger.balance("tenant:default") == -2 * USD
    assert ledger.balance("site:here") == 2 * USD


def test_a_lease_that_never_ran_costs_nothing() -> None:
    world = a_fleet().waiting(a_job("a")).then(granted("a", gpus=(0,)))
    world.then(LeaseEnded(at_s=1800, lease="a.1", exit_code=127))
    assert ledger_of(world).spent_microusd == {"a": 0}


def test_a_budget_is_held_at_submit_and_the_rest_given_back() -> None:
    world = a_fleet().running(a_job("a", budget_microusd=5 * USD))
    assert ledger_of(world).balance("hold:a") == 5 * USD
    world.then(LeaseEnded(at_s=3600, lease="a.1", exit_code=0))
    ledger = ledger_of(world)
    assert ledger.balance("hold:a") == 0
    assert ledger.balance("tenant:default") == -2 * USD


def test_a_hard_budget_is_never_crossed_and_the_site_is_still_paid() -> None:
    world = a_fleet().running(a_job("a", budget_microusd=1 * USD))
    world.then(LeaseEnded(at_s=3600, lease="a.1", exit_code=143))
    ledger = ledger_of(world)
    assert ledger.balance("tenant:default") == -1 * USD
    assert ledger.balance("operator:overrun") == -1 * USD
    assert ledger.balance("site:here") == 2 * USD


def test_a_preempted_job_keeps_its_hold_until_it_ends() -> None:
    world = a_fleet().running(a_job("a", budget_microusd=5 * USD))
    world.then(LeaseEnding(at_s=3600, lease="a.1", reason=verbatim("preempted"), requeue=True))
    world.then(LeaseEnded(at_s=3600, lease="a.1", exit_code=143))
    assert ledger_of(world).balance("hold:a") == 3 * USD


def test_cancelling_gives_the_hold_back_once() -> None:
    world = a_fleet().waiting(a_job("a", budget_microusd=USD))
    world.then(CancelRequested(at_s=1, job="a"), CancelRequested(at_s=2, job="a"))
    ledger = ledger_of(world)
    assert ledger.balance("tenant:default") == 0
    assert [t.kind for t in ledger.transfers] == ["hold", "void"]


@given(
    rate=st.integers(0, 10**9),
    gpus=st.integers(1, 64),
    milli=st.integers(1, 1000),
    pieces=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
)
def test_rounding_keeps_every_remainder(rate: int, gpus: int, milli: int, pieces: list[int]) -> None:
    """A job that is stopped again and again pays for its seconds, and its seller gets every part of them."""
    job = a_job("a", gpus=1 if milli < 1000 else gpus, gpu_milli=milli)
    world = a_fleet(gpus_per_node=64).waiting(job)
    now_s = 0
    for i, seconds in enumerate(pieces, start=1):
        lease = f"a.{i}"
        given_ = replace(
            granted("a", gpus=range(job.gpus), at_s=now_s), lease=lease, microusd_per_gpu_hour=rate
        )
        world.then(given_, LeaseStarted(at_s=now_s, lease=lease))
        now_s += seconds
        world.then(LeaseEnded(at_s=now_s, lease=lease, exit_code=1, requeue=True))
    ledger = ledger_of(world)
    exact = rate * job.gpus * milli * now_s
    earned = ledger.balance("site:here") * 3_600_000 + ledger.rounding
    assert earned == exact
    assert exact - len(pieces) * 3_600_000 < ledger.spent_microusd["a"] * 3_600_000 <= exact


def test_a_share_of_a_gpu_pays_that_share_and_its_budget_lasts_as_much_longer() -> None:
    half = a_job("half", gpu_milli=500, budget_microusd=USD)
    world = a_fleet().waiting(half).then(granted("half", gpus=(0,)), LeaseStarted(at_s=0, lease="half.1"))
    assert world.fleet.limits.next_s(0) == 3600  # half of 2 USD an hour
    world.then(LeaseEnded(at_s=1800, lease="half.1", exit_code=0))
    assert ledger_of(world).spent_microusd == {"half": USD // 2}


@given(seconds=st.integers(0, 10**6), budget=st.none() | st.integers(1, 10**9), started=st.booleans())
def test_accounts_always_sum_to_zero(seconds: int, budget: int | None, started: bool) -> None:
    world = a_fleet().waiting(a_job("a", budget_microusd=budget)).then(granted("a", gpus=(0,)))
    if started:
        world.then(LeaseStarted(at_s=0, lease="a.1"))
    world.then(LeaseEnded(at_s=seconds, lease="a.1", exit_code=0))
    paid = -ledger_of(world).balance("tenant:default")
    assert 0 <= paid <= (10**12 if budget is None else budget)
