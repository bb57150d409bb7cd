"""What is likely to come: the load of a pool hour by hour, and whether a price stays below a limit. Pure.

Both learn online from the past alone, and both report their own accuracy.

Load. Four simple guesses (as now; as now plus the hour's usual difference; the last day's mean plus it; the
last week's mean plus it) are weighted by their errors in the same situations of the last eight weeks: same
hour of day, same hours ahead. The error of the weighted guess in those situations gives the band around it.
When loads drift, such a band is too narrow, so the share left outside on each side is corrected once a day by
what fell outside (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021).

Price. Past rises within h hours are counted by what the preceding days looked like: the price's change over a
day, how much it moved in three days, its change over three days; before these by the hour, if known. A cell
with few cases leans on the wider one above it, up to the count of all cases. The chance of staying below a
limit is the share of cases that rose less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import copysign, expm1, floor, inf, log, log2
from typing import NamedTuple

from brimful.fleet.learned.load import LoadLine
from brimful.fleet.node import Pool

DAY_H = 24
QUANTILES = (0.1, 0.5, 0.9)
# Tuned on half of the pools of one public record, reported on the others (explanation/market.md).
DAYS_COMPARED = 56  # how many past situations like this one are used
PROFILE_DAYS = 14  # days that define what is usual for an hour
STEP_OF_TAILS = 0.02  # of the daily correction of the band
LEAST_H = 4 * DAY_H  # of record needed before any forecast
KEPT_H = (DAYS_COMPARED + 4) * DAY_H


Guess = Callable[[int, int], tuple[float, ...]]  # (origin, hours ahead) -> each guess


class Band(NamedTuple):
    """One in ten is below `low`, half below `likely`, one in ten above `high`."""

    low: float
    likely: float
    high: float


@dataclass(slots=True)
class LoadScore:
    """Forecasts of a day, made at its start, beside two trivial ones.

    Those get a band too, from their errors in the same situations. Pinball loss: lower is better.
    """

    hours: int = 0
    inside: int = 0  # hours inside the band
    pinball: float = 0.0
    yesterday: float = 0.0  # the same hour of the day before
    persistence: float = 0.0  # the load when the forecast was made

    @property
    def coverage(self) -> float | None:
        return self.inside / self.hours if self.hours else None

    @property
    def skill(self) -> float | None:
        """How much lower the loss is than that of yesterday's same hour."""
        return 1 - self.pinball / self.yesterday if self.yesterday else None

    @property
    def skill_over_persistence(self) -> float | None:
        return 1 - self.pinball / self.persistence if self.persistence else None


def pinball(band: Band, seen: float) -> float:
    """Summed over the three quantiles."""
    return sum((seen - f) * (q if seen >= f else q - 1) for f, q in zip(band, QUANTILES, strict=True))


@dataclass(slots=True)
class LoadForecaster:
    """The load of one pool, fed hour by hour; it forecasts from the last hour."""

    score: LoadScore = field(default_factory=LoadScore)
    tails: list[float] = field(default_factory=lambda: [0.1, 0.1])  # shares left below and above the band
    told: int = 0  # hours ever
    _load: list[float] = field(default_factory=list)
    _day: list[float] = field(default_factory=list)  # mean of the day up to each hour
    _week: list[float] = field(default_factory=list)
    # How far this hour of day is usually above its day's mean.
    _usual: list[float] = field(default_factory=list)
    _due: list[tuple[Band, Band, Band]] = field(default_factory=list)  # today's, not yet scored
    _outside: list[int] = field(default_factory=lambda: [0, 0])  # today

    def tell(self, load: float) -> None:
        """Add the next hour's load."""
        if self._due:
            self._mark(load)
        y = self._load
        y.append(load)
        self._day.append(sum(y[-DAY_H:]) / min(len(y), DAY_H))
        self._week.append(sum(y[-7 * DAY_H :]) / min(len(y), 7 * DAY_H))
        now = len(y) - 1
        alike = [y[i] - self._day[i] for i in range(now, max(-1, now - PROFILE_DAYS * DAY_H), -DAY_H)]
        self._usual.append(sum(alike) / len(alike))
        for line in (y, self._day, self._week, self._usual):
            del line[: -KEPT_H or None]
        self.told += 1
        if self.told % DAY_H == 0:
            self._begin_day()

    def ahead(self, hours: int) -> list[Band]:
        """The next hours; empty while the record is too short."""
        if len(self._load) < LEAST_H + max(0, hours - DAY_H):
            return []
        return [self._band(h, self._guesses, self.tails) for h in range(1, hours + 1)]

    def _guesses(self, origin: int, h: int) -> tuple[float, ...]:
        y, usual = self._load, self._usual[origin + h - -(-h // DAY_H) * DAY_H]
        return (
            y[origin],
            y[origin] + usual - self._usual[origin],
            self._day[origin] + usual,
            self._week[origin] + usual,
        )

    def _as_now(self, origin: int, _h: int) -> tuple[float, ...]:
        return (self._load[origin],)

    def _as_yesterday(self, origin: int, h: int) -> tuple[float, ...]:
        return (self._load[origin + h - -(-h // DAY_H) * DAY_H],)

    def _band(self, h: int, guess: Guess, tails: Sequence[float]) -> Band:
        now = len(self._load) - 1
        lags = (DAY_H * day + j for day in range(1, DAYS_COMPARED + 1) for j in (-1, 0, 1))
        past = [now - lag for lag in lags if h <= lag <= now - DAY_H]
        guesses = [guess(origin, h) for origin in past]
        seen = [self._load[origin + h] for origin in past]
        columns = range(len(guesses[0]))
        errors = [sum(abs(g[k] - y) for g, y in zip(guesses, seen, strict=True)) for k in columns]
        weights = [(error + 1e-9) ** -3 for error in errors]
        total = sum(weights)
        weights = [w / total for w in weights]

        def mixed(each: Sequence[float]) -> float:
            return sum(w * g for w, g in zip(weights, each, strict=True))

        off = sorted(y - mixed(g) for g, y in zip(guesses, seen, strict=True))
        likely = mixed(guess(now, h))
        low, middle, high = (likely + quantile(off, q) for q in (tails[0], 0.5, 1 - tails[1]))
        return Band(max(0.0, low), max(0.0, middle), max(0.0, high))

    def _begin_day(self) -> None:
        """Settle what fell outside yesterday's band, and forecast today, to be scored."""
        for side in (0, 1):
            rate = self._outside[side] / DAY_H
            corrected = self.tails[side] - STEP_OF_TAILS * (rate - QUANTILES[0])
            self.tails[side] = min(0.4, max(0.0, corrected)) if self.score.hours else self.tails[side]
        self._outside = [0, 0]
        plain = (QUANTILES[0], QUANTILES[0])
        if len(self._load) >= LEAST_H:
            self._due = [
                (
                    self._band(h, self._guesses, self.tails),
                    self._band(h, self._as_yesterday, plain),
                    self._band(h, self._as_now, plain),
                )
                for h in range(DAY_H, 0, -1)
            ]

    def _mark(self, load: float) -> None:
        ours, yesterday, now = self._due.pop()
        self._outside[0] += load < ours.low
        self._outside[1] += load > ours.high
        score = self.score
        score.hours += 1
        score.inside += ours.low <= load <= ours.high
        score.pinball += pinball(ours, load)
        score.yesterday += pinball(yesterday, load)
        score.persistence += pinball(now, load)


@dataclass(slots=True)
class Forecasts:
    """A forecaster for each pool of a fleet, fed with the new hours of the pool's record."""

    _of: dict[Pool, tuple[LoadForecaster, int]] = field(default_factory=dict)  # and the next hour to feed

    def of(self, pool: Pool, line: LoadLine) -> LoadForecaster:
        known, next_hour = self._of.get(pool, (LoadForecaster(), 0))
        for load in line.loads[-max(0, line.next_hour - next_hour) :] if line.next_hour > next_hour else ():
            known.tell(load)
        self._of[pool] = (known, line.next_hour)
        return known


def quantile(ordered: Sequence[float], q: float) -> float:
    """Interpolated between the two nearest of a sorted list."""
    at = q * (len(ordered) - 1)
    below = min(int(at), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


class Situation(NamedTuple):
    """What the days before a moment looked like, as logarithms of price ratios."""

    price: float
    day: float  # change over a day
    moved: float  # all changes of three days, regardless of direction, per day
    three_days: float
    clock: tuple[int, ...] = ()  # hour of the day and the like, where prices follow working hours

    def cells(self) -> tuple[tuple[int, ...], ...]:
        """From all cases down to those most like this one."""
        keys = (*self.clock, *(_bucket(each) for each in (self.day, self.moved, self.three_days)))
        return tuple(keys[:n] for n in range(len(keys) + 1))


def _bucket(change: float) -> int:
    """Half a per cent wide, then each twice as wide; everything beyond a sixth is one bucket."""
    return int(copysign(min(5, floor(log2(1 + abs(change) / 0.005))), change))


# How high a price rose: up to each edge; the last is 37 times the price. Between two edges cases are spread
# evenly.
_EDGES = (0.0, *(0.0025 * expm1(k * log(2) / 2) for k in range(1, 22)))
_LEAN = 10.0  # cases that the wider cell counts for in the narrower one


@dataclass(slots=True)
class PriceForecaster:
    """How high prices rose within some hours, by what the preceding days looked like."""

    hours: int
    _peaks: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # cell -> cases by `_EDGES`

    def tell(self, then: Situation, peak: float) -> None:
        """One case: the highest price within the hours. Infinite: it was not available at all."""
        rose = log(peak / then.price) if peak < inf else inf
        at = bisect_right(_EDGES, rose + 1e-12) if rose > 0 else 0
        for cell in then.cells():
            self._peaks.setdefault(cell, [0] * (len(_EDGES) + 1))[at] += 1

    def stays_below(self, now: Situation | None, limit: float, *, price: float = 0.0) -> float | None:
        """The chance that the price never exceeds the limit; None before any case.

        Without a situation: over all cases, which is the baseline for a forecast.
        """
        rise = log(limit / (now.price if now else price))
        if rise < 0:
            return 0.0
        chance: float | None = None
        for cell in now.cells() if now else ((),):
            counts = self._peaks.get(cell)
            if counts is None:
                break
            seen, below = sum(counts), _up_to(counts, rise)
            chance = below / seen if chance is None else (below + _LEAN * chance) / (seen + _LEAN)
        return chance


def _up_to(counts: Sequence[int], rise: float) -> float:
    """Cases that rose at most this far."""
    at = bisect_right(_EDGES, rise) - 1
    whole = sum(counts[: at + 1])
    if at + 1 == len(_EDGES):
        return whole
    share = (rise - _EDGES[at]) / (_EDGES[at + 1] - _EDGES[at])
    return whole + share * counts[at + 1]


@dataclass(frozen=True, slots=True)
class PriceSeries:
    """Changes of one price, in hours; None: not listed from then on."""

    at_h: Sequence[float]
    prices: Sequence[float | None]

    def at(self, hour: float) -> float | None:
        i = bisect_right(self.at_h, hour) - 1
        return self.prices[i] if i >= 0 else None

    def situation(self, hour: float) -> Situation | None:
        """None if it was not listed for all of the preceding three days."""
        first, last = (bisect_right(self.at_h, each) - 1 for each in (hour - 72, hour))
        if first < 0:
            return None
        prices = [p for p in self.prices[first : last + 1] if p]
        if len(prices) <= last - first:
            return None
        day_before = self.at(hour - 24)
        assert day_before is not None, "it was listed all of the time"
        logs = [log(p) for p in prices]
        moved = sum(abs(b - a) for a, b in pairwise(logs)) / 3
        return Situation(prices[-1], log(prices[-1] / day_before), moved, logs[-1] - logs[0])

    def peak(self, hour: float, hours: float) -> float | None:
        """The highest price until then; infinite if it was not listed; None if the record ends earlier."""
        if not self.at_h or hour + hours > self.at_h[-1]:
            return None
        i, end = (bisect_right(self.at_h, each) for each in (hour, hour + hours))
        seen = self.prices[i - 1 : end]
        return max(inf if p is None else p for p in seen)

    def cases(self, hours: int, *, since_h: float = -inf, until_h: float = inf) -> Iterator[Case]:
        """One per day whose end is known by `until_h`."""
        if not self.at_h:
            return
        start = max(self.at_h[0] + 72, since_h)
        day = -(-start // DAY_H) * DAY_H
        while day + hours <= min(until_h, self.at_h[-1]):
            then, peak = self.situation(day), self.peak(day, hours)
            if then is not None and peak is not None:
                yield Case(then, peak)
            day += DAY_H


class Case(NamedTuple):
    then: Situation
    peak: float


@dataclass(slots=True)
class BrierScore:
    """Mean squared error of the chances, beside that of always stating the usual rate so far."""

    cases: int = 0
    loss: float = 0.0
    climatology: float = 0.0

    def add(self, chance: float, usual: float, *, stayed: bool) -> None:
        self.cases += 1
        self.loss += (chance - stayed) ** 2
        self.climatology += (usual - stayed) ** 2

    @property
    def skill(self) -> float | None:
        return 1 - self.loss / self.climatology if self.climatology else None


MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.25)  # limits tried, relative to the current price


def score_prices(series: Iterable[PriceSeries], hours: int, *, cut_h: float) -> dict[float, BrierScore]:
    """By margin: learned on cases that ended before the cut, tested on every day after it."""
    lines = list(series)
    learned = PriceForecaster(hours)
    for line in lines:
        for then, peak in line.cases(hours, until_h=cut_h):
            learned.tell(then, peak)
    scores = {margin: BrierScore() for margin in MARGINS}
    for line in lines:
        for then, peak in line.cases(hours, since_h=cut_h):
            for margin, score in scores.items():
                limit = then.price * (1 + margin)
                chance = learned.stays_below(then, limit)
                usual = learned.stays_below(None, limit, price=then.price)
                if chance is not None and usual is not None:
                    score.add(chance, usual, stayed=peak <= limit * (1 + 1e-12))
    return scores


def pooled(scores: Iterable[BrierScore]) -> BrierScore:
    whole = BrierScore()
    for each in scores:
        whole.cases += each.cases
        whole.loss += each.loss
        whole.climatology += each.climatology
    return whole
