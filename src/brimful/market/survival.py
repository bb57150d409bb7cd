"""Whether a market pool's price stays at or below a limit, learned from the log hour by hour. Pure.

The price counted is the higher of what is billed and what last cleared: a bid below either holds nothing.
Every hour is a case for each number of hours ahead, once these have passed. Cases are grouped by hour of the
day and weekend (UTC) first, because demand follows working hours. A chance is stated only after four days of
cases, or four times the hours ahead, and then scored against the usual rate so far. Left out: gangs that
lose by their size, reservations, and nodes that fail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import log

from brimful.fleet.events import Event, LoadSeen, PoolPriced
from brimful.fleet.learned.load import HOURS_KEPT
from brimful.fleet.node import Pool
from brimful.market.forecast import DAY_H, MARGINS, BrierScore, PriceForecaster, Situation
from brimful.units import HOUR_S

AHEAD_H = (1, 8, 24, 72)
LOOKS_BACK_H = 3 * DAY_H  # of the situation a chance depends on
THURSDAY, SATURDAY = 3, 5  # days after Monday; the epoch began on the first
SCORED_EVERY_H = 11  # shares no factor with 24: each hour of the day is scored in turn


def needs_h(hours: int) -> int:
    """Hours of record before a chance for so many hours is stated."""
    return LOOKS_BACK_H + 4 * max(DAY_H, hours)


@dataclass(frozen=True, slots=True)
class Due:
    """Chances that were stated at an hour, to be scored when its hours ahead have passed."""

    hour: int
    limits: tuple[float, ...]
    chances: tuple[tuple[float, float], ...]  # ours and the usual rate


@dataclass(slots=True)
class Horizon:
    """What is known about the next `hours`."""

    hours: int
    forecaster: PriceForecaster
    score: BrierScore = field(default_factory=BrierScore)
    due: deque[Due] = field(default_factory=deque)

    def learn(self, then: Situation, peak: float, *, hour: int) -> None:
        """The highest price within the hours that followed `hour` is known now."""
        if self.due and self.due[0].hour == hour:
            stated = self.due.popleft()
            for limit, (chance, usual) in zip(stated.limits, stated.chances, strict=True):
                self.score.add(chance, usual, stayed=peak <= limit)
        self.forecaster.tell(then, peak)

    def state(self, now: Situation, *, hour: int) -> None:
        limits = tuple(now.price * (1 + margin) for margin in MARGINS)
        told = [
            (
                self.forecaster.stays_below(now, limit),
                self.forecaster.stays_below(None, limit, price=now.price),
            )
            for limit in limits
        ]
        chances = tuple((ours, usual) for ours, usual in told if ours is not None and usual is not None)
        if len(chances) == len(limits):
            self.due.append(Due(hour, limits, chances))


@dataclass(slots=True)
class PriceRecord:
    """One pool. Hours without an event are like the one before."""

    hour: int  # since the epoch, not over yet
    price: float = 0.0
    hours: int = 0  # that are over
    horizons: list[Horizon] = field(
        default_factory=lambda: [Horizon(hours, PriceForecaster(hours)) for hours in AHEAD_H]
    )
    _high: float = 0.0  # within this hour
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKS_BACK_H + 1))  # at the end of each
    _peaks: deque[float] = field(default_factory=lambda: deque(maxlen=max(AHEAD_H)))  # within each
    _then: deque[Situation | None] = field(default_factory=lambda: deque(maxlen=max(AHEAD_H) + 1))

    def add(self, at_s: int, price: float) -> None:
        self.advance(at_s)
        self.price = max(1.0, price)
        self._high = max(self._high, self.price)

    def advance(self, at_s: int) -> None:
        """Close the hours that are over. A clock that was set back changes nothing."""
        while self.hour < at_s // HOUR_S:
            self._close()

    def stays(self, limit: float) -> dict[int, float | None]:
        """By hours ahead; None while the record is too short."""
        now = situation([*[*self._last][1:], self.price], hour=self.hour)
        return {
            each.hours: each.forecaster.stays_below(now, limit)
            if now is not None and limit > 0 and self.hours >= needs_h(each.hours)
            else None
            for each in self.horizons
        }

    def _close(self) -> None:
        self._last.append(self.price)
        self._peaks.append(self._high)
        self._high = self.price
        self.hour += 1
        self.hours += 1
        now = situation(list(self._last), hour=self.hour)
        self._then.append(now)
        peaks = list(self._peaks)
        for each in self.horizons:
            then = self._then[-1 - each.hours] if len(self._then) > each.hours else None
            if then is not None:
                each.learn(then, max(peaks[-each.hours :]), hour=self.hour - each.hours)
            if now is not None and self.hours >= needs_h(each.hours) and self.hour % SCORED_EVERY_H == 0:
                each.state(now, hour=self.hour)


def situation(prices: list[float], *, hour: int) -> Situation | None:
    """At the last of these prices, one for each hour; None if they go back less than three days.

    `hour`: the one that begins then, since the epoch.
    """
    if len(prices) <= LOOKS_BACK_H:
        return None
    logs = [log(price) for price in prices]
    moved = sum(abs(b - a) for a, b in pairwise(logs)) / 3
    is_weekend = (hour // DAY_H + THURSDAY) % 7 >= SATURDAY
    clock = (hour % DAY_H, int(is_weekend))
    return Situation(prices[-1], logs[-1] - logs[-1 - DAY_H], moved, logs[-1] - logs[0], clock)


@dataclass(slots=True)
class PriceRecords:
    """A record of each pool that was ever cleared by bids, by folding the log."""

    of: dict[Pool, PriceRecord] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        if not isinstance(event, PoolPriced | LoadSeen):
            return
        hour, record = event.at_s // HOUR_S, self.of.get(event.pool)
        if isinstance(event, PoolPriced):
            if record is None or hour - record.hour > HOURS_KEPT:
                record = self.of[event.pool] = PriceRecord(hour)
            price = max(event.microusd_per_gpu_hour, event.cleared_microusd_per_gpu_hour)
            record.add(event.at_s, float(price))
        elif record is not None and hour - record.hour <= HOURS_KEPT:
            record.advance(event.at_s)
