"""Clearing: a hundred pools at once, one very long book, and small ones beside trying every allocation.

make bench ARGS=market     with 20,000 small books: some ten CPU seconds
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.document import judged, markdown
from bench.measure import Benchmark, body
from brimful.market.auction import clear
from brimful.market.bid import Bid, Book, Step
from tests.market.books import brute_force, small_book, worth_of_all

TITLE = "Market"
TABLES = ("market-books",)
SEEDS = range(2_000, 22_000)  # the tests try the first 2,000
# Promised CPU seconds.
CLEARING_S = 2.0


def benchmarks() -> Iterator[Benchmark]:
    pools = [a_book(1_000, 256, seed=seed, elastic=0.2) for seed in range(100)]
    yield _promised("clear 100 pools of 256 GPUs with 1,000 bids each", pools)
    yield _promised("clear 10,000 gangs for 1,024 GPUs", [a_book(10_000, 1_024, seed=0, elastic=0.0)])
    yield _promised("clear 10,000 elastic bids for 1,024 GPUs", [a_book(10_000, 1_024, seed=0, elastic=1.0)])


def tables() -> dict[str, str]:
    return {"market-books": table_of(SEEDS)}


def table_of(seeds: range) -> str:
    """Small books, half of them with bought supply; with bids that run and would lose work."""
    worse = running = 0
    for seed in seeds:
        book = small_book(seed)
        running += any(bid.running and bid.loss_s for bid in book.bids)
        worse += worth_of_all(clear(book), book) != brute_force(book)
    rows = [
        ("small books", f"{len(seeds):,}", ""),
        ("with a bid that would lose work", f"{running:,}", judged("> 0", is_met=running > 0)),
        ("not worth as much as the best of all allocations", str(worse), judged("0", is_met=worse == 0)),
    ]
    return markdown(("cleared", "", "bar"), rows)


def _promised(name: str, books: list[Book]) -> Benchmark:
    def run() -> None:
        for book in books:
            clear(book)

    return Benchmark(name=name, subject=body(run), peer_name="promise", peer=lambda: CLEARING_S, bar=1)


def a_book(bids: int, units: int, *, seed: int, elastic: float) -> Book:
    """Sizes from 1 to 64, limits as spread out as real ones, a tenth running."""
    r = random.Random(seed)

    def bid(i: int) -> Bid:
        quantity = r.randint(1, 64)
        return Bid(
            bid=f"b{i}",
            quantity=quantity,
            min_quantity=r.randint(1, quantity) if r.random() < elastic else quantity,
            limit=1 + int(r.lognormvariate(0.7, 0.5) * 1e6),
            arrival=i,
            running=r.random() < 0.1,
        )

    return Book(pool="p", supply=(Step(quantity=units, ask=10_000),), bids=tuple(map(bid, range(bids))))
