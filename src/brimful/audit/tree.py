"""The waste tree: every paid GPU-second in exactly one leaf, in integer GPU-seconds and micro-dollars.

A leaf is a path: `unallocated.own_queue.fits`. Missing data has a separate leaf (`….unknown`), so that more
data only splits a leaf and never moves hours between its siblings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import accumulate
from typing import NamedTuple, TypeVar

from brimful.units import HOUR_S

# In display order. A path that ends above a leaf is a sum.
LEAVES = (
    "not_delivered.unused",
    "not_delivered.booting",
    "out_of_service.broken",
    "out_of_service.planned",
    "out_of_service.unknown",
    "unallocated.own_queue.fits",
    "unallocated.own_queue.held",
    "unallocated.own_queue.fragmented",
    "unallocated.own_queue.unknown",
    "unallocated.other_type.fits",
    "unallocated.other_type.too_small",
    "unallocated.other_type.unknown",
    "unallocated.walled",
    "unallocated.no_demand.never_needed",
    "unallocated.no_demand.peaks",
    "unallocated.unknown",
    *(
        f"allocated.{outcome}.{what}"
        for outcome in ("kept", "lost", "unknown")
        for what in (
            "idle.never_used",
            "idle.setup",
            "idle.gap",
            "idle.tail",
            "idle.short",
            "idle.unknown",
            "active.starved",
            *(
                f"active.working.{card}.{part}"
                for card in ("larger_card", "right_card")
                for part in (
                    "input_wait",
                    "communication",
                    "computing.mfu",
                    "computing.below_peak",
                    "computing.unknown",
                    "unknown",
                )
            ),
            "active.working.unknown",
            "unknown",
        )
    ),
)
_ORDER = {leaf: i for i, leaf in enumerate(LEAVES)}
Key = TypeVar("Key")


class Cell(NamedTuple):
    leaf: str
    team: str
    gpu: str
    day: str  # 2026-05-01, in the report's zone
    lot: int  # which price


@dataclass(frozen=True, slots=True)
class Lot:
    """GPUs of one type at one price. `microusd` is the total cost of its GPU-seconds."""

    gpu: str
    microusd: int | None
    list_price: bool = False


class Calendar:
    """Days of a zone as UTC seconds: a day may have 23 or 25 hours."""

    def __init__(self, zone: tzinfo, *, start_s: int, end_s: int) -> None:
        self.zone = zone
        day = datetime.fromtimestamp(start_s, zone).date()
        self.days: list[str] = []
        self.starts_s: list[int] = []
        while not self.starts_s or self.starts_s[-1] < end_s:
            midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
            self.days.append(day.isoformat())
            self.starts_s.append(int(midnight.timestamp()))
            day += timedelta(days=1)

    def split(self, start_s: int, end_s: int) -> Iterator[tuple[str, int]]:
        """(day, seconds of it) between two times."""
        at = start_s
        i = bisect_right(self.starts_s, at) - 1
        while at < end_s:
            until = min(end_s, self.starts_s[i + 1]) if i + 1 < len(self.starts_s) else end_s
            yield self.days[i], until - at
            at, i = until, i + 1

    def hours_of_week(self, start_s: int, end_s: int) -> Iterator[tuple[int, int]]:
        """(hour of the week from Monday 0:00, seconds of it) between two times."""
        at = start_s
        while at < end_s:
            local = datetime.fromtimestamp(at, self.zone)
            until = min(end_s, at + HOUR_S - (local.minute * 60 + local.second))
            yield local.weekday() * 24 + local.hour, until - at
            at = until


@dataclass(slots=True)
class Tally:
    """Counts GPU-seconds into cells."""

    calendar: Calendar
    cells: defaultdict[Cell, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, leaf: str, team: str, gpu: str, lot: int, *, start_s: int, end_s: int, gpus: int) -> None:
        assert leaf in _ORDER, leaf
        if gpus:
            for day, seconds in self.calendar.split(start_s, end_s):
                self.cells[Cell(leaf, team, gpu, day, lot)] += gpus * seconds


def spread(total: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """`total` in whole parts in proportion to the weights: the largest remainders are rounded up."""
    whole = sum(weights.values())
    if whole <= 0:
        assert total == 0, total
        return dict.fromkeys(weights, 0)
    parts = {key: total * weight // whole for key, weight in weights.items()}
    short = total - sum(parts.values())
    by_remainder = sorted(weights, key=lambda key: -(total * weights[key] % whole))
    for key in by_remainder[:short]:
        parts[key] += 1
    return parts


def spread_money(cells: Mapping[Cell, int], lots: Mapping[int, Lot]) -> dict[Cell, int]:
    """What each cell cost: from the top of the tree down, so that splitting a leaf keeps its sum."""
    by_lot: defaultdict[int, dict[Cell, int]] = defaultdict(dict)
    for cell in sorted(cells, key=lambda c: (_ORDER[c.leaf], c)):
        if lots[cell.lot].microusd is not None:
            by_lot[cell.lot][cell] = cells[cell]
    found: dict[Cell, int] = {}
    for lot, mine in by_lot.items():
        found |= _down(lots[lot].microusd or 0, mine, depth=0)
    return found


def _down(total: int, cells: Mapping[Cell, int], *, depth: int) -> dict[Cell, int]:
    groups: dict[str, dict[Cell, int]] = {}
    for cell, gpu_s in cells.items():
        groups.setdefault(".".join(cell.leaf.split(".")[: depth + 1]), {})[cell] = gpu_s
    if len(groups) == 1 and all(cell.leaf.count(".") <= depth for cell in cells):
        return spread(total, cells)
    sums = spread(total, {path: sum(mine.values()) for path, mine in groups.items()})
    return {
        k: v for path, mine in groups.items() for k, v in _down(sums[path], mine, depth=depth + 1).items()
    }


class Amount(NamedTuple):
    gpu_s: int
    microusd: int | None  # None: some of it has no price


@dataclass(frozen=True, slots=True)
class Tree:
    """The counted cells and their money."""

    cells: Mapping[Cell, int]
    lots: Mapping[int, Lot]
    money: Mapping[Cell, int]

    @classmethod
    def of(cls, cells: Mapping[Cell, int], lots: Mapping[int, Lot]) -> Tree:
        kept = {cell: gpu_s for cell, gpu_s in cells.items() if gpu_s}
        return cls(kept, lots, spread_money(kept, lots))

    def amount(self, path: str = "", *, team: str | None = None) -> Amount:
        """Everything below a path, or all of it."""
        return self.sum_of(
            [c for c in self.cells if _below(c.leaf, path) and (team is None or c.team == team)]
        )

    def sum_of(self, cells: Collection[Cell]) -> Amount:
        priced = all(self.lots[cell.lot].microusd is not None for cell in cells)
        return Amount(
            sum(self.cells[cell] for cell in cells),
            sum(self.money[cell] for cell in cells) if cells and priced else None,
        )

    def amounts(self) -> dict[str, Amount]:
        """Every path that contains anything, parents before children."""
        leaves = {cell.leaf for cell in self.cells}
        paths = {path for leaf in leaves for path in accumulate(leaf.split("."), "{}.{}".format)}
        first = {path: min(i for leaf, i in _ORDER.items() if _below(leaf, path)) for path in paths}
        return {path: self.amount(path) for path in sorted(paths, key=lambda p: (first[p], p.count(".")))}

    @property
    def is_priced(self) -> bool:
        return any(lot.microusd is not None for lot in self.lots.values())

    @property
    def at_list_price(self) -> bool:
        return any(lot.list_price for lot in self.lots.values())


def _below(leaf: str, path: str) -> bool:
    return not path or leaf == path or leaf.startswith(f"{path}.")
