"""How many GPUs were held or waited for in each pool, hour by hour: what a forecast learns from."""

from __future__ import annotations

from dataclasses import dataclass, field

from brimful.fleet.events import LoadSeen, TariffSet
from brimful.units import HOUR_S

HOURS_KEPT = 120 * 24  # of each pool


@dataclass(slots=True)
class LoadLine:
    """One pool. Hours without a record are assumed to be like the one before."""

    next_hour: int = 0  # the hour after the last one known, since the epoch
    loads: list[float] = field(default_factory=list)
    gpus: int = 0
    held: int = 0  # at the last record
    held_hours: list[int] = field(default_factory=list)  # GPUs held at the hours of `loads`

    def add(self, seen: LoadSeen) -> None:
        hour, load = seen.at_s // HOUR_S, float(seen.held + seen.wanted)
        self.gpus, self.held = seen.gpus, seen.held
        if self.loads and hour < self.next_hour:  # the clock was set back
            self.loads[-1], self.held_hours[-1] = load, seen.held
            return
        missing = min(hour - self.next_hour, HOURS_KEPT) if self.loads else 0
        self.loads += [*self.loads[-1:] * missing, load]
        self.held_hours += [*self.held_hours[-1:] * missing, seen.held]
        self.next_hour = hour + 1
        del self.loads[:-HOURS_KEPT], self.held_hours[:-HOURS_KEPT]


FLAT = 1000
QUOTES_KEPT_H = 7 * 24  # after their hour


@dataclass(slots=True)
class TariffLine:
    """What each hour of one pool costs, in thousandths of its posted price, and the surplus so far."""

    permille: dict[int, int] = field(default_factory=dict)  # by hour since the epoch
    over: float = 0.0  # collected so far beyond the posted price, in GPU-hours at that price

    def set(self, event: TariffSet, *, over: float) -> None:
        """`over`: what current leases pay per hour beyond the posted price, in GPU-hours at that price.

        By what they pay and not by the price of the hour: a lease keeps the price of its first hour.
        """
        hour = event.at_s // HOUR_S
        self.over += over
        kept = {h: p for h, p in self.permille.items() if hour - QUOTES_KEPT_H <= h < hour}
        self.permille = kept | {hour + i: p for i, p in enumerate(event.permille)}

    def at(self, at_s: int) -> int:
        return self.permille.get(at_s // HOUR_S, FLAT)

    def after(self, at_s: int, *, until_s: float) -> dict[int, int]:
        """The hours after this one that begin by then, since the epoch."""
        hour = at_s // HOUR_S
        return {h: p for h, p in self.permille.items() if h > hour and h * HOUR_S <= until_s}
