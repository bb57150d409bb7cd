"""Bids that only some numbers of units help: the exact optimum, and what a restart is worth."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

from brimful.market.auction import clear
from brimful.market.bid import Bid, Book
from brimful.market.optimum import Item, Optimum
from tests.market.books import USD, a_bid, a_book, random_book

SIZES = ((1, 2), (1, 2, 4), (2, 4), (1, 3, 6), (2, 3, 4, 6, 12))


def sized_book(seed: int, *, steps: bool = False) -> Book:
    """A small random book in which half of the bids have sizes, and some of those run at one of them."""
    r = random.Random(f"{seed} sizes")

    def sized(bid: Bid) -> Bid:
        if r.random() < 0.5:
            return bid
        sizes = r.choice(SIZES)
        held = r.choice(sizes) if bid.running else 0
        return replace(bid, quantity=sizes[-1], min_quantity=sizes[0], sizes=sizes, held=held)

    book = random_book(seed, small=True, steps=steps)
    return replace(book, bids=tuple(sized(bid) for bid in book.bids))


def worth(book: Book, bid: Bid, units: int) -> int:
    restarts = bool(bid.held) and units != bid.held
    return units * (bid.limit * 100 if restarts else book.weight(bid))


def cost_and_ask(book: Book, used: int) -> tuple[int, int]:
    cost = ask = 0
    for step in book.supply:
        taken = min(step.quantity, used)
        used -= taken
        ask = step.ask if taken else ask
        cost += 100 * step.ask * taken if step.bought else 0
    return cost, ask


def best(book: Book) -> int:
    """The best net worth of any allocation, by trying every one."""
    found = 0
    for units in product(*((0, *bid.units) for bid in book.bids)):
        if sum(units) > book.units:
            continue
        cost, ask = cost_and_ask(book, sum(units))
        given = [(bid, n) for bid, n in zip(book.bids, units, strict=True) if n]
        if all(bid.limit >= ask for bid, _ in given):
            found = max(found, sum(worth(book, bid, n) for bid, n in given) - cost)
    return found


def test_the_winners_are_worth_as_much_as_the_best_of_all_allocations() -> None:
    for seed in range(600):
        book = sized_book(seed, steps=seed % 2 == 0)
        cleared = clear(book)
        assert cleared.units <= book.units
        assert all(win.units in win.bid.units and cleared.price <= win.bid.limit for win in cleared.wins)
        net = sum(worth(book, win.bid, win.units) for win in cleared.wins)
        assert net - cost_and_ask(book, cleared.units)[0] == best(book), seed
        assert clear(replace(book, bids=book.bids[::-1])) == cleared


def test_both_twins_of_the_optimum_agree() -> None:
    for seed in range(300):
        book = sized_book(seed)
        items = [Item(b.min_quantity, b.quantity, book.weight(b), book.choices(b)) for b in book.ranked()]
        plain, columns = (Optimum(items, book.units, columns=c) for c in (False, True))
        assert plain.worth == columns.worth
        for twin in (False, True):
            since = max(0, book.units - 4)
            short = Optimum(items, book.units, since=since, columns=twin)
            for units in range(since, book.units + 1):
                assert short.chosen(units) == plain.chosen(units) == columns.chosen(units)


def test_a_shadow_price_is_the_limit_at_which_a_loser_draws_level() -> None:
    checked = 0
    for seed in range(300):
        book = sized_book(seed)
        for loss in clear(book).losses:
            if loss.shadow_price is None:
                continue
            for limit, wins in ((loss.shadow_price + 1, True), (loss.shadow_price - 1, False)):
                bids = tuple(replace(b, limit=limit) if b.bid == loss.bid.bid else b for b in book.bids)
                if limit >= 1:
                    won = {win.bid.bid for win in clear(replace(book, bids=bids)).wins}
                    assert (loss.bid.bid in won) == wins, (seed, loss)
                    checked += 1
    assert checked > 200


def test_a_running_bid_shrinks_where_a_gang_would_be_evicted() -> None:
    wide = a_bid("wide", 4, low=1, sizes=(1, 2, 4), held=4, running=True, usd=2)
    for rival, wins in ((3.1, {"wide": 2, "rival": 2}), (2.9, {"wide": 4})):
        book = a_book(wide, a_bid("rival", 2, usd=rival, arrival=1), units=4)
        cleared = clear(book)
        assert {win.bid.bid: win.units for win in cleared.wins} == wins
        assert cleared.price <= 2 * USD


def test_a_bid_refused_at_one_size_wins_a_smaller_one() -> None:
    book = a_book(a_bid("a", 4, low=1, sizes=(1, 2, 4)), units=8)
    cleared = clear(book, placeable=lambda won: [bid.bid for bid, units in won if units > 2])
    assert [(win.bid.bid, win.units) for win in cleared.wins] == [("a", 2)]
    none = clear(book, placeable=lambda won: [bid.bid for bid, _ in won])
    assert [(loss.bid.bid, loss.reason) for loss in none.losses] == [("a", "unplaceable")]


def test_an_unchanged_book_resizes_each_bid_a_few_times_at_most() -> None:
    """Every change of the winners raises what their limits are worth together, which has a maximum."""
    for seed in range(300):
        book, changes = sized_book(seed), 0
        while True:
            cleared = clear(book)
            won = {win.bid.bid: win.units for win in cleared.wins}
            after = tuple(
                replace(bid, running=bid.bid in won, held=won.get(bid.bid, 0) if bid.sizes else 0)
                for bid in book.bids
            )
            if after == book.bids:
                break
            book, changes = replace(book, bids=after), changes + 1
            assert changes < 5, seed
