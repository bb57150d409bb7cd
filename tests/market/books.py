"""Random books, unit and gang, from a seed: the same seed gives the same book."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

from brimful.market.auction import Cleared
from brimful.market.bid import Bid, Book, Step

USD = 1_000_000


def a_bid(bid: str, quantity: int = 1, *, usd: float = 2.0, low: int | None = None, **more: object) -> Bid:
    arrival = more.pop("arrival", 0)
    return Bid(
        bid=bid,
        quantity=quantity,
        min_quantity=quantity if low is None else low,
        limit=round(usd * USD),
        arrival=arrival,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def a_book(*bids: Bid, units: int = 8, floor_usd: float = 0.01) -> Book:
    return Book(pool="p", supply=(Step(quantity=units, ask=round(floor_usd * USD)),), bids=bids)


def random_book(
    seed: int, *, unit: bool = False, small: bool = False, steps: bool = False, fine: bool = False
) -> Book:
    """Few distinct limits, so that ties are common; some bids run already and would lose work by a stop, some
    are elastic. `fine`: limits and losses hardly ever tie, so that a slightly different bonus shows.
    """
    r, lost = random.Random(seed), random.Random(f"{seed} lost")
    units = r.randint(1, 8 if small else 24)
    bids = []
    for i in range(r.randint(0, 6 if small else 16)):
        quantity = 1 if unit else r.choice((1, 1, 2, 3, 4, 6, 8, 12))
        low = r.randint(1, quantity) if not unit and r.random() < 0.3 else quantity
        bid = a_bid(f"b{i}", quantity, low=low, usd=r.randint(1, 12) / 4, arrival=i, running=r.random() < 0.3)
        loss_s = lost.randint(0, 1_200) if fine else lost.choice((0, 0, 300, 600, 3600))
        limit = round(bid.limit * lost.uniform(0.75, 1.25)) if fine else bid.limit
        bids.append(replace(bid, limit=limit, loss_s=loss_s if bid.running else 0))
    supply = [Step(quantity=units, ask=r.choice((10_000, USD // 2, USD)))]
    while steps and len(supply) < 3 and r.random() < 0.7:
        last = supply[-1]
        supply.append(
            Step(quantity=r.randint(1, 6), ask=last.ask + r.randint(0, USD), bought=r.random() < 0.8)
        )
    return Book(pool=f"pool-{seed}", supply=tuple(supply), bids=tuple(bids))


def worth_of(bid: Bid) -> int:
    """What a unit counts for, in hundredths of a micro-dollar, as the page of the market states it.

    Written here once more: `Book.weight` is what is tested.
    """
    if not bid.running:
        return 100 * bid.limit
    lost_percent = bid.loss_s * 100 // 3600  # of the next hour
    return (125 + min(25, lost_percent)) * bid.limit


def worth_of_all(cleared: Cleared, book: Book) -> int:
    """Of what was given, minus the cost of what was bought for it."""
    worth, left = sum(win.units * worth_of(win.bid) for win in cleared.wins), cleared.units
    for step in book.supply:
        worth -= 100 * step.ask * max(0, min(step.quantity, left)) if step.bought else 0
        left -= step.quantity
    return worth


def small_book(seed: int) -> Book:
    """For `brute_force`: every second one has steps of supply, every second two are fine."""
    return random_book(seed, small=True, steps=seed % 2 == 0, fine=seed % 4 < 2)


def brute_force(book: Book) -> int:
    """The best net worth of any allocation that is allowed at all, by trying every one."""
    best = 0
    worths = [worth_of(bid) for bid in book.bids]
    choices = [(0, *range(bid.min_quantity, bid.quantity + 1)) for bid in book.bids]
    for units in product(*choices):
        used = sum(units)
        if used > book.units:
            continue
        cost, ask, left = 0, 0, used
        for step in book.supply:
            taken = min(step.quantity, left)
            left -= taken
            if taken:
                ask = step.ask
                cost += 100 * step.ask * taken if step.bought else 0
        if any(n and bid.limit < ask for bid, n in zip(book.bids, units, strict=True)):
            continue
        worth = sum(n * worth for n, worth in zip(units, worths, strict=True))
        best = max(best, worth - cost)
    return best
