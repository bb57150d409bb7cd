"""How many GPUs were held or waited for in each pool, hour by hour: what a forecast learns from."""

from __future__ import annotations

from dataclasses import dataclass, field

from brimful.fleet.events import LoadSeen
from brimful.units import HOUR_S

HOURS_KEPT = 120 * 24  # of each pool


@dataclass(slots=True)
class LoadLine:
    """One pool. Hours in which nobody looked are taken to be like the one before."""

    next_hour: int = 0  # the hour after the last one known, since the epoch
    loads: list[float] = field(default_factory=list)
    gpus: int = 0

    def add(self, seen: LoadSeen) -> None:
        hour, load = seen.at_s // HOUR_S, float(seen.held + seen.wanted)
        self.gpus = seen.gpus
        if self.loads and hour < self.next_hour:  # a clock that was set back
            self.loads[-1] = load
            return
        missing = min(hour - self.next_hour, HOURS_KEPT) if self.loads else 0
        self.loads += [*self.loads[-1:] * missing, load]
        self.next_hour = hour + 1
        del self.loads[:-HOURS_KEPT]
