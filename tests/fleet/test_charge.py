"""What a lease owes, second by second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.fleet.charge import PARTS, Charge, change_price
from brimful.fleet.events import PoolPriced
from brimful.fleet.money.prices import PriceLine
from brimful.fleet.node import Pool

POOL = Pool("here", "h100")
STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9_000_000)), max_size=8)


def a_price(at_s: int, price: int) -> PoolPriced:
    of_pool = {"site": POOL.site, "gpu": POOL.gpu, "tier": POOL.tier}
    prices = {"microusd_per_gpu_hour": price, "cleared_microusd_per_gpu_hour": price}
    return PoolPriced(at_s=at_s, held=0, wanted=0, gpus=8, **of_pool, **prices)  # type: ignore[arg-type]


def a_charge(**more: object) -> Charge:
    given_ = {"size": 2, "gpu_milli": 1000, "microusd_per_gpu_hour": 2_000_000, "granted_s": 0, **more}
    return Charge(**given_)  # type: ignore[arg-type]


def priced(charge: Charge, steps: list[tuple[int, int]], *, from_s: int = 0) -> dict[int, int]:
    """Change the price of its pool every so many seconds; the price from each moment on."""
    lines: dict[Pool, PriceLine] = {}
    at_s, changes = from_s, {}
    for after_s, price in steps:
        at_s += after_s
        change_price(lines, a_price(at_s, price), here=[charge], everywhere=[charge])
        changes[at_s] = price
    return changes


@given(
    steps=STEPS, begins_s=st.integers(0, 60), lasts_s=st.integers(0, 300), milli=st.sampled_from([250, 1000])
)
def test_a_charge_is_the_price_of_each_of_its_seconds(
    steps: list[tuple[int, int]], begins_s: int, lasts_s: int, milli: int
) -> None:
    charge = a_charge(gpu_milli=milli, started_s=begins_s)
    changes = priced(charge, steps)
    price, by_hand = charge.microusd_per_gpu_hour, 0
    for second in range(begins_s + lasts_s):
        price = changes.get(second, price)
        by_hand += price * 2 * milli if second >= begins_s else 0

    assert charge.owed(begins_s + lasts_s) == by_hand
    charge.close(begins_s + lasts_s)
    assert charge.owed(0) == by_hand
    assert charge.cost_microusd(0) == by_hand // PARTS


@given(
    steps=STEPS,
    budget=st.integers(0, 2_000_000),
    price=st.sampled_from([0, 1, 2_000_000, 90_000_000]),
)
def test_a_budget_is_reached_at_the_first_second_that_comes_to_it(
    steps: list[tuple[int, int]], budget: int, price: int
) -> None:
    charge = a_charge(microusd_per_gpu_hour=price, started_s=0)
    last_s = max(priced(charge, steps), default=0)
    at_s = charge.reaches_s(budget)

    if at_s is None:
        assert charge.cost_microusd(last_s + 10**6) < budget
    else:
        assert charge.cost_microusd(at_s) >= budget
        assert at_s <= last_s or charge.cost_microusd(at_s - 1) < budget


def test_what_never_ran_owes_nothing_whatever_the_price() -> None:
    charge = a_charge()
    priced(charge, [(5, 9_000_000)])
    charge.close(3600)

    assert (charge.owed(0), charge.billed_s(0), charge.reaches_s(1)) == (0, 0, None)


def test_a_price_that_moves_after_the_end_changes_nothing() -> None:
    charge = a_charge(started_s=0)
    lines: dict[Pool, PriceLine] = {}
    change_price(lines, a_price(0, 3_600_000), here=[charge], everywhere=[charge])
    charge.close(1800)
    change_price(lines, a_price(900, 90_000_000), here=[], everywhere=[])

    assert charge.cost_microusd(9999) == 3_600_000  # two GPUs for half an hour
    assert charge.price_paid() == 3_600_000
