"""Clearing: every promise on ten thousand random books, and a rule that is known to break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from brimful.language import Several, count, say
from brimful.market.auction import Cleared, clear
from brimful.market.bid import Bid, Book, Step
from brimful.market.optimum import Item, Optimum
from tests.market.books import USD, a_bid, a_book, brute_force, random_book, small_book, worth_of_all

BOOKS = 10_000


@cache
def cleared_book(seed: int, unit: bool) -> tuple[Book, Cleared]:
    book = random_book(seed, unit=unit)
    return book, clear(book)


def naive(cleared: Cleared) -> Cleared:
    """The rule that is usually stated: everybody pays the highest losing bid."""
    if not cleared.wins:
        return cleared
    return replace(cleared, price=max([cleared.floor, *(loss.bid.limit for loss in cleared.losses)]))


def broken_promises(book: Book, cleared: Cleared) -> list[str]:
    """What this outcome breaks of what is promised of any book."""
    broken = []
    if any(cleared.price > win.bid.limit for win in cleared.wins):
        broken.append("a winner pays above its limit")
    if cleared.units > book.units:
        broken.append("more is given than there is")
    if any(not win.bid.min_quantity <= win.units <= win.bid.quantity for win in cleared.wins):
        broken.append("a gang is split")
    names = sorted([win.bid.bid for win in cleared.wins] + [loss.bid.bid for loss in cleared.losses])
    if names != sorted(bid.bid for bid in book.bids):
        broken.append("a bid has no answer, or two")
    for loss in cleared.losses:
        above = loss.bid.limit > cleared.price and loss.shadow_price is not None
        if above and not loss.displaced_by and loss.short == 0:
            broken.append("a loser above the price has no reason")
    used = cleared.units
    for step in book.supply:
        if used > 0 and cleared.price < step.ask:
            broken.append("a seller gets less than its ask")
        used -= step.quantity
    return broken


@pytest.mark.parametrize("kind", ["unit", "gang", "steps"])
def test_no_promise_is_broken_on_any_book(kind: str) -> None:
    for seed in range(BOOKS):
        if kind == "steps":
            book = random_book(seed, steps=True)
            assert not broken_promises(book, clear(book)), seed
        else:
            assert not broken_promises(*cleared_book(seed, kind == "unit")), seed


def test_the_naive_rule_charges_winners_above_their_limits() -> None:
    outcomes = (cleared_book(seed, False) for seed in range(BOOKS))
    broken = sum(bool(broken_promises(book, naive(cleared))) for book, cleared in outcomes)
    assert broken > BOOKS // 5  # the same test bites


def test_on_unit_books_a_loser_is_below_the_price_or_everything_was_gone_at_its_turn() -> None:
    for seed in range(BOOKS):
        book, cleared = cleared_book(seed, True)
        won = {win.bid.bid for win in cleared.wins}
        left = book.units
        for bid in book.ranked():
            left -= bid.bid in won
            assert bid.bid in won or bid.limit <= cleared.price or left == 0, seed


def test_on_unit_books_more_supply_never_raises_the_price() -> None:
    for seed in range(BOOKS):
        book, cleared = cleared_book(seed, True)
        more = replace(book, supply=(replace(book.supply[0], quantity=book.units + 1),))
        assert clear(more).price <= cleared.price, seed


@pytest.mark.parametrize("unit", [True, False])
def test_raising_ones_limit_never_turns_a_win_into_a_loss(unit: bool) -> None:
    def raised(book: Book, bid: Bid) -> Book:
        return replace(
            book, bids=tuple(replace(b, limit=b.limit + USD // 4) if b is bid else b for b in book.bids)
        )

    _every_book(
        unit,
        lambda book, cleared: all(
            win.bid.bid in {w.bid.bid for w in clear(raised(book, win.bid)).wins} for win in cleared.wins[-1:]
        ),
    )


@pytest.mark.parametrize("unit", [True, False])
def test_taking_a_loser_away_changes_no_winner(unit: bool) -> None:
    def without(book: Book, bid: Bid) -> Book:
        return replace(book, bids=tuple(b for b in book.bids if b is not bid))

    _every_book(
        unit,
        lambda book, cleared: all(
            clear(without(book, loss.bid)).wins == cleared.wins for loss in cleared.losses[:1]
        ),
    )


@pytest.mark.parametrize("unit", [True, False])
def test_the_order_in_which_a_book_is_written_does_not_matter(unit: bool) -> None:
    _every_book(unit, lambda book, cleared: clear(replace(book, bids=book.bids[::-1])) == cleared)


def _every_book(unit: bool, holds: Callable[[Book, Cleared], bool]) -> None:
    for seed in range(BOOKS):
        assert holds(*cleared_book(seed, unit)), seed


def test_the_winners_are_worth_as_much_as_the_best_of_all_allocations() -> None:
    for seed in range(2_000):
        book = small_book(seed)
        assert worth_of_all(clear(book), book) == brute_force(book), seed


@pytest.mark.parametrize("why", ["its owner lends", "it is larger than the pool"])
def test_a_bid_that_may_not_set_the_price_moves_it_at_no_limit(why: str) -> None:
    for seed in range(500):
        book = random_book(seed, small=True, steps=seed % 2 == 0)
        size = 1 if why == "its owner lends" else book.units + 1
        shill = a_bid("shill", size, usd=1, arrival=999)
        before = clear(book)
        for win in before.wins:
            bid = replace(shill, limit=win.bid.limit, sets_price=why != "its owner lends")
            after = clear(replace(book, bids=(*book.bids, bid)))
            if "shill" not in {each.bid.bid for each in after.wins}:
                assert after.price == before.price, seed


def test_a_shadow_price_is_the_limit_at_which_a_loser_draws_level() -> None:
    checked = 0
    for seed in range(600):
        book = random_book(seed, steps=seed % 4 == 0)
        for loss in clear(book).losses:
            if loss.shadow_price is None:
                continue
            for limit, wins in ((loss.shadow_price + 1, True), (loss.shadow_price - 1, False)):
                if limit < 1:
                    continue
                tried = replace(
                    book, bids=tuple(replace(b, limit=limit) if b is loss.bid else b for b in book.bids)
                )
                assert (loss.bid.bid in {w.bid.bid for w in clear(tried).wins}) == wins, (seed, loss)
                checked += 1
    assert checked > 2_000


def test_both_twins_of_the_optimum_agree() -> None:
    for seed in range(1_000):
        book = random_book(seed)
        items = [Item(b.min_quantity, b.quantity, book.weight(b)) for b in book.ranked()]
        plain, columns = (Optimum(items, book.units, columns=c) for c in (False, True))
        assert plain.worth == columns.worth
        since = max(0, book.units - 4)
        for twin in (False, True):
            short = Optimum(items, book.units, since=since, columns=twin)
            for units in range(since, book.units + 1):
                assert short.chosen(units) == plain.chosen(units) == columns.chosen(units)


def test_ties_go_to_whoever_came_first() -> None:
    book = a_book(a_bid("late", 4, arrival=2), a_bid("early", 4, arrival=1), units=4)
    assert [win.bid.bid for win in clear(book).wins] == ["early"]


def test_the_price_is_the_highest_losing_limit_that_no_winner_is_below() -> None:
    book = a_book(
        a_bid("a", 6, usd=5), a_bid("b", 2, usd=3), a_bid("gang", 8, usd=4), a_bid("c", 1, usd=2), units=8
    )
    cleared = clear(book)
    assert [win.bid.bid for win in cleared.wins] == ["a", "b"]
    assert cleared.price == 2 * USD
    gang = next(loss for loss in cleared.losses if loss.bid.bid == "gang")
    assert (gang.reason, gang.displaced_by) == ("blocked_by_size", ("a", "b"))
    assert gang.shadow_price == 4_500_000  # 6 x $5 + 2 x $3 over 8
    told = gang.detail.as_dict()
    assert (told["code"], told["gpus"]["n"], told["left"]) == ("market.outweighed", 8, 0)
    assert (told["others"], told["short"]) == (["a", "b"], 500_000)


def test_a_running_bid_keeps_its_place_against_a_slightly_higher_one() -> None:
    book = a_book(a_bid("old", 8, usd=2, running=True), a_bid("new", 8, usd=2.4), units=8)
    cleared = clear(book)
    assert [win.bid.bid for win in cleared.wins] == ["old"]
    assert (cleared.losses[0].reason, cleared.losses[0].shadow_price) == ("displaced", 2_500_000)


def test_cloud_capacity_is_bought_only_when_somebody_pays_for_it() -> None:
    supply = (Step(quantity=2, ask=10_000), Step(quantity=4, ask=3 * USD, bought=True, seller="cloud"))
    book = Book(pool="p", supply=supply, bids=(a_bid("a", 2, usd=2), a_bid("b", 2, usd=2.5)))
    assert [win.bid.bid for win in clear(book).wins] == ["b"]
    book = replace(book, bids=(a_bid("a", 2, usd=3.5), a_bid("b", 2, usd=4)))
    cleared = clear(book)
    assert (cleared.units, cleared.price) == (4, 3 * USD)


def test_nobody_bids_on_their_own_supply() -> None:
    supply = (Step(quantity=4, ask=USD, seller="acme"),)
    book = Book(pool="p", supply=supply, bids=(a_bid("pump", usd=9, owner="acme"), a_bid("b", 4, usd=2)))
    cleared = clear(book)
    assert [win.bid.bid for win in cleared.wins] == ["b"]
    assert (cleared.price, cleared.losses[0].reason) == (USD, "own_supply")


def test_a_gang_that_cannot_be_placed_cannot_win() -> None:
    book = a_book(a_bid("gang", 4, usd=9), a_bid("b", 2, usd=2), a_bid("c", 2, usd=1), units=4)
    cleared = clear(book, placeable=lambda wins: [bid.bid for bid, units in wins if units > 2])
    assert [win.bid.bid for win in cleared.wins] == ["b", "c"]
    assert cleared.losses[0].reason == "unplaceable"


def test_a_gang_as_large_as_a_pool_that_is_kept_for_another_is_not_called_larger() -> None:
    book = a_book(a_bid("waited", 4, usd=2), a_bid("new", 4, usd=9), units=4)
    cleared = clear(book, first=["waited"])
    assert [win.bid.bid for win in cleared.wins] == ["waited"]
    (loss,) = cleared.losses
    assert loss.detail == say("market.kept_for", gpus=count("gpu", 4), left=0, others=Several(("waited",)))


def test_a_gang_larger_than_the_pool_is_told_so() -> None:
    cleared = clear(a_book(a_bid("huge", 16), units=8))
    assert (cleared.price, cleared.losses[0].shadow_price) == (10_000, None)
    assert cleared.losses[0].detail == say("market.larger_than_pool", gpus=count("gpu", 16))
