"""Random histories of reservations through the production loop; `make bench ARGS=reservations`: 10,000."""

from __future__ import annotations

import pytest

from bench.histories import try_histories


def test_random_histories_credit_and_sell_no_hour_twice_and_owners_have_theirs_back_in_time() -> None:
    """The watcher of bench/histories.py asserts the rest: accounts of zero, credits by hand, equal bytes."""
    found = try_histories(range(20_000, 20_150))
    assert found.histories == 150
    assert len(found.waits_s) > 100
    assert found.crashes > 100
    assert found.lent_microusd > 0
    assert found.in_time >= 0.999


def test_so_do_histories_of_quotas_that_earn_tokens() -> None:
    """Besides: what each lender earns is its part of every second that a borrower paid for, and no more."""
    found = try_histories(range(30_000, 30_100), tokens=True)
    assert found.token_microusd > 0
    assert found.crashes > 60
    assert found.in_time >= 0.999


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3993, id="the borrower that leaves is a job of the owner too"),
        pytest.param(2526, id="a borrowed gang lies across the nodes"),
    ],
)
def test_an_owner_never_waits_for_a_second_notice(seed: int) -> None:
    assert try_histories(range(seed, seed + 1)).in_time == 1
