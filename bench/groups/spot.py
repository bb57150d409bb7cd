"""A market pool over many ticks, in many kinds of markets: preemptions, the billed price, large gangs.

make bench ARGS=spot     some two CPU minutes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from bench.document import judged, markdown
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.market.spot import Terms
from tests.market.books import a_bid
from tests.market.test_spot import TICK_S, UNITS, a_day, moves

TITLE = "Market pools over time"
TABLES = ("spot-markets", "spot-floors")
CENT, USD = 10_000, 1_000_000
SPREADS = (0.1, 0.2, 0.4, 0.6)
FLOORS = (CENT, USD // 2, USD)
SAVED = {"0.6": 0.25, "all": 0.4}  # least share of preemptions that the bonus avoids
BILLED, MOVES = 0.92, 10  # least of what was cleared, at any floor; most moves of the bill a day
SEEDS = 2
WAIT_S = 2 * 3600


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="100 ticks of a pool of 64 GPUs",
        subject=body(lambda: a_day(0, ticks=100)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


_SUMS = (
    "without",
    "with_it",
    "raw",
    "billed",
    "revenue",
    "cleared",
    "gangs",
    "late",
    "waits",
    "usual",
    "ticks",
)


@dataclass(slots=True)
class _Row:
    without: int = 0  # preemptions without the bonus
    with_it: int = 0
    fill: float = 0.0  # how much more of the pool is used with it
    raw: int = 0  # price changes of more than 10 %
    billed: int = 0
    revenue: float = 0.0  # as billed, and as cleared
    cleared: float = 0.0
    gangs: int = 0
    late: int = 0
    waits: float = 0.0  # of single GPUs beside the gang, and without it
    usual: float = 0.0
    worst: float = 0.0
    ticks: int = 0  # over which revenue was counted


def tables() -> dict[str, str]:
    """spot-markets: by the spread of limits, over loads, floors and seeds; spot-floors: by floor."""
    rows = []
    total, floors = _Row(), {floor: _Row() for floor in FLOORS}
    for spread in SPREADS:
        row = _Row()
        _bonus(row, spread)
        for floor in FLOORS:
            here = _Row()
            _billed(here, spread, floor)
            _add(row, here)
            _add(floors[floor], here)
        _gang(row, spread)
        rows.append(market_row(f"{spread:g}", row))
        _add(total, row)
    rows.append(market_row("all", total))
    header = (
        "spread",
        "preempted",
        "with bonus",
        "fill",
        "price moves",
        "billed",
        "billed / cleared",
        "gangs late",
        "singles wait",
        "worst",
        "bar",
    )
    by_floor = [floor_row(floor, row) for floor, row in floors.items()]
    head = ("floor", "moves of the price a day", "of the bill", "billed / cleared", "bar")
    return {"spot-markets": markdown(header, rows), "spot-floors": markdown(head, by_floor)}


def _add(total: _Row, row: _Row) -> None:
    for name in _SUMS:
        setattr(total, name, getattr(total, name) + getattr(row, name))
    total.worst = max(total.worst, row.worst)
    total.fill = max(total.fill, row.fill, key=abs)


def floor_row(floor: int, row: _Row) -> tuple[str, ...]:
    raw, billed, share = row.raw * 720 / row.ticks, row.billed * 720 / row.ticks, row.revenue / row.cleared
    bar = judged(f"≤ {MOVES}, ≥ {BILLED}", is_met=billed <= MOVES and share >= BILLED)
    return f"${floor / USD:.2f}", f"{raw:.1f}", f"{billed:.1f}", f"{share:.3f}", bar


def market_row(spread: str, row: _Row) -> tuple[str, ...]:
    saved, least = 1 - row.with_it / max(1, row.without), SAVED.get(spread, 0.0)
    is_met = saved >= least and row.late == 0
    return (
        spread,
        str(row.without),
        f"{row.with_it} (-{saved:.0%})",
        f"{row.fill:+.1%}",
        str(row.raw),
        str(row.billed),
        f"{row.revenue / max(1.0, row.cleared):.2f}",
        f"{row.late} of {row.gangs}",
        f"{row.waits / max(1.0, row.usual):.2f}x",
        f"{row.worst:.2f}x",
        judged(f"{f'-{least:.0%}, ' if least else ''}0 late", is_met=is_met),
    )


def _bonus(row: _Row, spread: float) -> None:
    for load, seed in product((0.9, 1.0, 1.2, 1.5), range(SEEDS)):
        none, some = (
            a_day(100 + seed, bonus=bonus, spread=spread, load=load, floor=USD // 2, ticks=240)
            for bonus in (0, 25)
        )
        row.without += none.preemptions
        row.with_it += some.preemptions
        row.fill = max(row.fill, (fmean(some.used) - fmean(none.used)) / UNITS, key=abs)


def _billed(row: _Row, spread: float, floor: int) -> None:
    for load in (0.8, 1.0, 1.2):
        turns = a_day(200, spread=spread, floor=floor, load=load, ticks=360).turns[120:]
        row.ticks += len(turns)
        row.raw += moves([each.cleared.price for each in turns])
        row.billed += moves([each.billed for each in turns])
        row.revenue += sum(each.billed * each.state.used for each in turns)
        row.cleared += sum(each.cleared.price * each.state.used for each in turns)


def _gang(row: _Row, spread: float) -> None:
    """A gang of half the pool that bids about as much as the others."""
    gang = a_bid("gang", UNITS // 2, usd=1.65, arrival=10**6)
    for load, seed in product((0.9, 1.2, 1.5), range(SEEDS)):
        with_it, without = (
            a_day(
                300 + seed,
                terms=Terms(max_wait_s=wait_s),
                guest=gang,
                ticks=240,
                spread=spread,
                load=load,
                floor=USD // 2,
            )
            for wait_s in (WAIT_S, 10**9)
        )
        could_not_pay_s = TICK_S * sum(
            loss.bid.bid == "gang" and loss.bid.limit < each.cleared.price
            for each in with_it.turns
            for loss in each.cleared.losses
        )
        row.gangs += 1
        row.late += with_it.waits["gang"] > WAIT_S + could_not_pay_s
        row.waits += with_it.wait_of_singles()
        row.usual += without.wait_of_singles()
        row.worst = max(row.worst, with_it.wait_of_singles() / max(1.0, without.wait_of_singles()))
