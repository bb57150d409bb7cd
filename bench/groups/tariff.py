"""A tariff on a public record of load: hours over capacity, revenue, and what deferrable work pays.

    make bench ARGS=tariff     4,419 hours of a cluster, forecast hour by hour: three CPU minutes

A tenth of each hour's work may start in any whole hour of the next 24. Compared in the same run: nothing; a
rule without prices (wait while the fleet is full, at most 24 hours); and the same tariff with perfect
foresight. The data is beside the checkout (`BRIMFUL_SHARED_DATA`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.document import markdown
from bench.groups.forecast import LOADS
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_loads
from brimful.market.forecast import LoadForecaster
from brimful.market.tariff import FLAT, HOURS, curve, is_low, lowest_hour

TITLE = "Tariff"
TABLES = ("tariff",)
CAPACITY = 10_412
DEFERRABLE = 0.1
WINDOW_H = 24
SKIPPED_H = 14 * 24  # while forecasts learn
PARTS = 4  # in which an hour's deferrable work is booked

How = Literal["nothing", "while full", "day ahead", "hourly", "foresight"]
Ahead = Callable[[int, int], Sequence[float]]  # (hour, how many) -> expected loads from that hour on


def benchmarks() -> Iterator[Benchmark]:
    loads = [7000.0 + 3000 * (h % 24 > 12) for h in range(HOURS)]
    yield Benchmark(
        name="a curve of 48 hours",
        subject=body(lambda: curve(loads, CAPACITY)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


@dataclass(slots=True)
class Waiting:
    until: int
    work: float
    at_once: int  # the price of the hour in which it arrived
    quoted: Sequence[int] = ()  # as it arrived, for the hours after that one
    price: int = 0  # the lowest it was quoted for an hour that has begun

    def __post_init__(self) -> None:
        self.price = self.at_once


@dataclass(slots=True)
class Run:
    """GPU-hours run in each hour, what was charged, and the steps of the price."""

    load: list[float]
    prices: list[int] = field(default_factory=list)
    charged: float = 0.0  # in thousandths
    flat: float = 0.0
    waiting: list[Waiting] = field(default_factory=list)
    dearer: int = 0  # deferrable parts that paid more than for an immediate start

    def start(self, hour: int, each: Waiting, work: float, price: int) -> None:
        self.load[hour] += work
        each.work -= work
        pays = min(each.price, price)
        self.charged += work * pays
        self.dearer += pays > each.at_once

    @property
    def over(self) -> float:
        """GPU-hours at the flat price collected in excess so far; waiting work counts at its quote."""
        owed = sum(each.work * each.price for each in self.waiting)
        return (self.charged + owed) / FLAT - self.flat


def play(how: How, loads: Sequence[float], hourly: Sequence[Sequence[float]]) -> Run:
    """`hourly[t]`: the loads expected after hour t, as forecast then; a day's first look has 48 of them."""
    run = Run([(1 - DEFERRABLE) * load for load in loads])
    quoted: list[int] = []
    booked = [0.0] * (len(loads) + HOURS)
    for t, load in enumerate(loads):
        midnight = t - t % 24
        if how == "foresight":
            expected = [load, *loads[t + 1 : t + HOURS]]
        elif how == "day ahead":
            expected = list(hourly[midnight - 1][t - midnight :]) if midnight else []
        else:
            expected = [load, *hourly[t]]
        expected = expected or [load]
        if how in ("nothing", "while full"):
            price = FLAT
        elif how != "day ahead" or t == midnight or not quoted:
            last = run.prices[-1] if run.prices else FLAT
            quoted = curve(expected, CAPACITY, last=last, over=run.over)
            price = quoted[0]
        else:
            quoted = quoted[1:] or [run.prices[-1]]
            price = quoted[0]
        run.prices.append(price)
        for each in run.waiting:
            hours = t - (each.until - WINDOW_H)
            each.price = min([each.price, *each.quoted[hours - 1 : hours]])
        told = quoted[1 : WINDOW_H + 1] if how in ("hourly", "foresight") else ()
        new = Waiting(t + WINDOW_H, DEFERRABLE * load, price, told)
        run.waiting.append(new)
        if how == "nothing":
            run.start(t, new, new.work, price)
        elif how == "day ahead":
            _book(run, t, expected=[load, *expected[1:]], booked=booked, quoted=quoted)
        else:
            _look(run, t, [price] if how == "while full" else quoted)
        run.waiting = [each for each in run.waiting if each.work > 1e-9]
        run.charged += (1 - DEFERRABLE) * load * price
        run.flat += load
    return run


def _book(run: Run, t: int, *, expected: Sequence[float], booked: list[float], quoted: Sequence[int]) -> None:
    """Booked at once and final, by this hour's load and what was expected at midnight for the others."""
    new = run.waiting[-1]
    part = new.work / PARTS
    for _ in range(PARTS):
        reach = min(WINDOW_H, len(expected) - 1, len(quoted) - 1, len(run.load) - 1 - t)
        levels = [(1 - DEFERRABLE) * expected[k] + booked[t + k] for k in range(reach + 1)]
        k = lowest_hour(levels)
        booked[t + k] += part
        run.start(t + k, new, part, quoted[k])


def _look(run: Run, t: int, quoted: Sequence[int]) -> None:
    """Waiting work starts if there is room and waiting longer would save no more than a step."""
    for each in run.waiting:
        if each.until <= t:
            run.start(t, each, each.work, quoted[0])
    for each in run.waiting:
        later = quoted[1 : each.until - t + 1]
        if is_low(quoted[0], later):
            room = max(0.0, CAPACITY - run.load[t])
            run.start(t, each, min(each.work, room), quoted[0])


def forecasts(loads: Sequence[float]) -> list[list[float]]:
    forecaster, found = LoadForecaster(), []
    for t, load in enumerate(loads):
        forecaster.tell(load)
        found.append([band.likely for band in forecaster.ahead(HOURS if t % 24 == 23 else WINDOW_H)])
    return found


def tables() -> dict[str, str]:
    if not LOADS.is_file():
        return {}
    loads = read_loads(LOADS)["requested"]
    return {"tariff": table_of(loads, forecasts(loads))}


def table_of(loads: Sequence[float], ahead: Sequence[Sequence[float]]) -> str:
    rows = []
    most = least = 0.0
    for how in ("nothing", "while full", "day ahead", "hourly", "foresight"):
        run = play(how, loads, ahead)
        hours = run.load[SKIPPED_H:-WINDOW_H]
        full = sum(load > CAPACITY for load in hours) / len(hours)
        most, least = (full, most) if how == "nothing" else (most, full if how == "while full" else least)
        reached = "" if how == "nothing" else f"{(most - full) / (most - least):.1%}"
        steps = [b / a - 1 for a, b in zip(run.prices, run.prices[1:], strict=False)]
        rows.append(
            (
                how,
                f"{full:.1%}",
                reached,
                f"{run.charged / FLAT / run.flat - 1:+.2%}",
                str(run.dearer),
                f"{min(steps):+.1%} … {max(steps):+.1%}",
                f"{min(run.prices) / FLAT:.2f} … {max(run.prices) / FLAT:.2f}",
            )
        )
    header = (
        "deferred",
        "hours over capacity",
        "of the rule's cut",
        "revenue",
        "paid more",
        "steps",
        "times flat",
    )
    return markdown(header, rows)
