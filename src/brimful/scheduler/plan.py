"""What was decided, as data: comparable, printable, and nothing has happened yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful.errors import Said
from brimful.fleet.events import Event, LeaseEnding, LeaseGranted
from brimful.fleet.node import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Who should be on which GPU type, None for who should wait, as settled at a moment."""

    at_s: int
    targets: dict[str, Pool | None]
    starting: tuple[str, ...]  # those who are not there yet


@dataclass(slots=True)
class Plan:
    starts: list[LeaseGranted] = field(default_factory=list)
    stops: list[LeaseEnding] = field(default_factory=list)
    waits: Mapping[str, Said] = field(default_factory=dict)  # job -> why, with numbers
    market: list[Event] = field(default_factory=list)  # what became so in market pools: prices, notices
    orders: list[Event] = field(default_factory=list)  # nodes to be made by providers, and to be given back
    # When to think again even if nothing happens: a limit is reached, a quiet hour comes, ranks have changed.
    look_again_s: int | None = field(default=None, compare=False)
    review: Review | None = field(default=None, compare=False)  # the last one, while it is carried out

    @property
    def intents(self) -> list[Event]:
        """What is written before anything is done."""
        return [*self.market, *self.stops, *self.starts, *self.orders]
