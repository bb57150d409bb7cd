"""What reservations earn while their GPUs are lent: a part of what borrowers pay, by the second. Pure.

Every GPU of a pool's spot supply earns the same, whichever of them were hired: a reservation that lends K of
U earns K / U of what all borrowers pay, and its owner gets the share in the contract. Sums are in millionths
of a micro-dollar per hour and GPU, so that they are exact until a lease is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from brimful.fleet.events import PoolPriced, ReservedLent
from brimful.fleet.reservations.reservation import Reservation
from brimful.units import HOUR_S

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

    def change(self, name: str, found: Reservation | None, *, at_s: int) -> None:
        """A reservation was extended, or nothing is left of it (None)."""
        self.advance(at_s)
        if found is not None and name in self.parts:
            self.ends_s[name] = found.end_s
        elif found is None:
            self.parts.pop(name, None)

    def forget(self, known: Callable[[str], object]) -> None:
        """Drop the sums of reservations that are no longer known."""
        self.sums = {name: total for name, total in self.sums.items() if known(name) is not None}

    def set_price(self, event: PoolPriced) -> None:
        self.advance(event.at_s)
        self.price = event.microusd_per_gpu_hour


def earned(total: int, *, gpus: int, share_permille: int) -> int:
    """The owner's micro-dollars from the sum of one lease of this many GPUs, rounded down."""
    return total * gpus * share_permille // (MILLION * 1000 * HOUR_S)
