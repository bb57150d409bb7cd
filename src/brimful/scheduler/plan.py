"""What was decided, as data: comparable, printable, and not yet carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful.errors import Said
from brimful.fleet.events import Event, LeaseEnding, LeaseGranted
from brimful.fleet.node import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Each job's GPU type, or None if it should wait, as settled at one moment."""

    at_s: int
    targets: dict[str, Pool | None]
    starting: tuple[str, ...]  # jobs that have not started there yet


@dataclass(slots=True)
class Plan:
    starts: list[LeaseGranted] = field(default_factory=list)
    stops: list[LeaseEnding] = field(default_factory=list)
    waits: Mapping[str, Said] = field(default_factory=dict)  # job -> why, with numbers
    market: list[Event] = field(default_factory=list)  # what changed in market pools: prices, notices
    orders: list[Event] = field(default_factory=list)  # nodes for providers to make, and to return
    # When to think again even if nothing happens: a limit is reached, a quiet hour comes, ranks have changed.
    look_again_s: int | None = field(default=None, compare=False)
    review: Review | None = field(default=None, compare=False)  # the last one, while it is carried out

    @property
    def intents(self) -> list[Event]:
        """What is logged before anything is done."""
        return [*self.market, *self.stops, *self.starts, *self.orders]


def earliest(*times_s: int | None) -> int | None:
    return min([at_s for at_s in times_s if at_s is not None], default=None)
