"""What an hour will cost: a curve 48 hours ahead, from the forecast load. Pure.

    multiplier = least + (most - least) x g,  g = ((u - knee) / (1 - knee))²,  u = forecast load / capacity

The curve is raised around its peaks until no hour differs from the next by more than a step, nor the first
from the hour before, and scaled so that the forecast load pays as much as at the flat price. A surplus or
deficit against the flat price goes into the next curve. In thousandths, so that every price is an integer.

Deferrable work starts if there is room and waiting would save no more than a step; it pays the price of the
hour in which it starts, or the lowest that it was quoted for an hour since it came, whichever is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOURS = 48
FLAT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TariffTerms:
    """What the operator promises, in thousandths of the flat price."""

    least: int = 700
    most: int = 1500
    step: int = 100  # largest change from one hour to the next
    knee: float = 0.6  # of capacity: below it an hour costs the least
    most_owed: float = 0.05  # share of a curve's revenue that makes up for earlier hours


def curve(
    loads: Sequence[float],
    capacity: float,
    *,
    last: int = FLAT,
    over: float = 0.0,
    terms: TariffTerms | None = None,
) -> list[int]:
    """Thousandths of the flat price for each hour to come.

    `last`: of the hour before. `over`: collected so far beyond the flat price, in GPU-hours at that price.
    """
    terms = terms or TariffTerms()
    assert terms.least < FLAT < terms.most, "a flat price must be within the bounds"
    if not loads:
        return []
    shape = [_shape(load / capacity if capacity > 0 else 1.0, terms) for load in loads]
    flat = sum(loads)
    wanted = flat - max(-terms.most_owed * flat, min(terms.most_owed * flat, over))
    low, high = 0.1, 10.0  # scale of the shape; revenue grows with it
    for _ in range(40):
        scale = (low + high) / 2
        multipliers = _smoothed([scale * each for each in shape], last / FLAT, terms)
        if sum(m * load for m, load in zip(multipliers, loads, strict=True)) < wanted:
            low = scale
        else:
            high = scale
    return _in_permille(_smoothed([high * each for each in shape], last / FLAT, terms), last, terms)


def _shape(u: float, terms: TariffTerms) -> float:
    g = min(1.0, max(0.0, (u - terms.knee) / (1 - terms.knee))) ** 2
    return (terms.least + (terms.most - terms.least) * g) / FLAT


def _smoothed(wanted: Sequence[float], last: float, terms: TariffTerms) -> list[float]:
    """The lowest curve that is nowhere below the wanted one, changes by at most a step and begins where the
    last hour ended; within the bounds."""
    step = 1 + terms.step / FLAT
    line = list(wanted)
    for i in range(len(line) - 2, -1, -1):
        line[i] = max(line[i], line[i + 1] / step)
    for i in range(1, len(line)):
        line[i] = max(line[i], line[i - 1] / step)
    lowest = highest = last
    for i, each in enumerate(line):
        lowest, highest = lowest / step, highest * step
        line[i] = min(terms.most / FLAT, max(terms.least / FLAT, min(highest, max(lowest, each))))
    return line


def _in_permille(line: Sequence[float], last: int, terms: TariffTerms) -> list[int]:
    """In thousandths, rounded towards the hour before, so that a step is never exceeded."""
    found: list[int] = []
    before = last
    for each in line:
        most = before * (FLAT + terms.step) // FLAT
        least = -(-before * FLAT // (FLAT + terms.step))
        before = min(terms.most, max(terms.least, min(most, max(least, round(each * FLAT)))))
        found.append(before)
    return found


def lowest_hour(levels: Sequence[float]) -> int:
    """Where deferrable work is booked: the hour with the least expected load, the first on a tie."""
    return min(range(len(levels)), key=lambda hour: (levels[hour], hour))


def is_low(now: float, later: Sequence[float], *, terms: TariffTerms | None = None) -> bool:
    """Whether deferrable work should start now: no hour it could wait for is cheaper by more than one step.

    If all waited for the very lowest hour, there would be no room in it.
    """
    step = (terms or TariffTerms()).step
    return not later or now * FLAT <= min(later) * (FLAT + step)
