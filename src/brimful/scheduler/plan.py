"""What was decided, as data: comparable, printable, and nothing has happened yet.

Nobody writes to these once they are made. What is made at every event is not frozen all the same: that takes
three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful.errors import Said
from brimful.fleet.events import Event, Parts


@dataclass(slots=True, kw_only=True)
class Start:
    job: str
    lease: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    rest: Parts = ()
    in_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    lease: str
    reason: Said | None
    requeue: bool = False


@dataclass(slots=True)
class Plan:
    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    waits: Mapping[str, Said] = field(default_factory=dict)  # job -> why, with numbers
    market: list[Event] = field(default_factory=list)  # what became so in market pools: prices, notices
    # When to think again even if nothing happens: a limit is reached, a quiet hour comes, ranks have changed.
    look_again_s: int | None = field(default=None, compare=False)
