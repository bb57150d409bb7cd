"""What reservations earn while their GPUs are lent: a part of what borrowers pay, by the second. Pure.

Every GPU of a pool's spot supply earns the same, whichever of them were hired: a reservation that lends K of
U earns K / U of what all borrowers pay, and its owner gets the share in the contract. Sums are in millionths
of a micro-dollar per hour and GPU, so that they are exact until a lease is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brimful.fleet.events import PoolPriced, ReservedLent
from brimful.fleet.node import Pool
from brimful.units import HOUR_S

if TYPE_CHECKING:
    from brimful.fleet.reservations.reservation import Reservation

    Find = Callable[[str], Reservation | None]

MILLION = 1_000_000


@dataclass(slots=True)
class LentLine:
    """One pool: for each reservation the integral of price x its part of the spot supply."""

    at_s: int = 0
    price: int = 0
    parts: dict[str, int] = field(default_factory=dict)  # by reservation, in millionths of the supply
    ends_s: dict[str, int] = field(default_factory=dict)  # by reservation: when it stops earning
    sums: dict[str, int] = field(default_factory=dict)

    def advance(self, at_s: int) -> Mapping[str, int]:
        """The sums up to this time; time does not run backwards, and windows end between two calls too."""
        for name, part in self.parts.items():
            seconds = max(0, min(at_s, self.ends_s[name]) - self.at_s)
            self.sums[name] = self.sums.get(name, 0) + self.price * part * seconds
        self.at_s = max(self.at_s, at_s)
        return self.sums

    def lend(self, event: ReservedLent, open_: Mapping[str, Reservation]) -> None:
        self.advance(event.at_s)
        supply = max(1, event.gpus)
        lent = [(name, gpus) for name, gpus in event.lent if gpus and name in open_]
        self.parts = {name: MILLION * gpus // supply for name, gpus in lent}
        self.ends_s = {name: open_[name].end_s for name, _ in lent}

    def change(self, found: Reservation, *, is_over: bool, at_s: int) -> None:
        """A reservation was extended or changed, or nothing is left of it."""
        self.advance(at_s)
        if is_over:
            self.parts.pop(found.reservation, None)
        elif found.reservation in self.parts:
            self.ends_s[found.reservation] = found.end_s

    def forget(self, known: Callable[[str], object]) -> None:
        """Drop the sums of reservations that are no longer known."""
        self.sums = {name: total for name, total in self.sums.items() if known(name) is not None}

    def set_price(self, event: PoolPriced) -> None:
        self.advance(event.at_s)
        self.price = event.microusd_per_gpu_hour


@dataclass(slots=True)
class Borrower:
    """An open lease that pays for its GPUs itself."""

    pool: Pool
    tenant: str
    gpus: int
    lent: Mapping[str, int] = field(default_factory=dict)  # what reservations had earned when it began


@dataclass(slots=True)
class Lending:
    """What reservations of all pools earn."""

    lines: dict[Pool, LentLine] = field(default_factory=dict)
    borrowers: dict[str, Borrower] = field(default_factory=dict)  # by lease
    _prices: dict[Pool, int] = field(default_factory=dict)  # of market pools

    def set_price(self, event: PoolPriced) -> None:
        self._prices[event.pool] = event.microusd_per_gpu_hour
        if event.pool in self.lines:
            self.lines[event.pool].set_price(event)

    def lend(self, event: ReservedLent, open_: Mapping[str, Reservation], find: Find) -> None:
        line = self.lines.get(event.pool)
        if line is None:
            line = LentLine(at_s=event.at_s, price=self._prices.get(event.pool, 0))
            self.lines[event.pool] = line
        line.forget(find)
        line.lend(event, open_)

    def change(self, found: Reservation, *, is_over: bool, at_s: int) -> None:
        if found.pool in self.lines:
            self.lines[found.pool].change(found, is_over=is_over, at_s=at_s)

    def started(self, lease: str, *, at_s: int) -> None:
        borrower = self.borrowers.get(lease)
        if borrower is not None and borrower.pool in self.lines:
            borrower.lent = dict(self.lines[borrower.pool].advance(at_s))

    def ended(self, lease: str, find: Find, *, owed: int, at_s: int) -> Iterator[tuple[Reservation, int]]:
        """(reservation, its owner's micro-dollars) of what it owed; no tenant earns from its own bids."""
        borrower = self.borrowers.pop(lease, None)
        if borrower is None or borrower.pool not in self.lines:
            return
        for name, total in self.lines[borrower.pool].advance(at_s).items():
            found = find(name)
            if found is not None and found.tenant != borrower.tenant:
                since = total - borrower.lent.get(name, 0)
                part = min(owed, _earned(since, gpus=borrower.gpus, share_permille=found.share_permille))
                owed -= part
                if part:
                    yield found, part


def _earned(total: int, *, gpus: int, share_permille: int) -> int:
    """The owner's micro-dollars from the sum of one lease of this many GPUs, rounded down."""
    return total * gpus * share_permille // (MILLION * 1000 * HOUR_S)
