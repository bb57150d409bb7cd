"""What a market pool is cleared from: bids, and supply in steps of rising ask. All money is per GPU-hour."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

# A class is a preset bid: a multiple of the price now. Who is willing to wait offers less.
PRESETS: dict[str, Fraction] = {
    "urgent": Fraction(4),
    "normal": Fraction(2),
    "background": Fraction(5, 4),
}


def preset_limit(priority: str, *, price: int) -> int:
    """The limit a class stands for at this price, in micro-dollars per GPU-hour."""
    return int(PRESETS[priority] * price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """Up to `quantity` GPUs of one pool for at most `limit` each an hour; fewer than `min_quantity` are no
    use.

    A gang has `min_quantity == quantity`. `arrival` breaks ties and is kept when a bid is preempted.
    """

    bid: str
    quantity: int
    min_quantity: int
    limit: int  # micro-dollars per GPU-hour
    arrival: int
    running: bool = False  # it holds GPUs now
    owner: str = ""
    expected_s: int | None = None  # how long it will hold them, where somebody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Some units that may be used at `ask` or more.

    The operator's free GPUs cost nothing more when they are used, and `ask` is their floor. An offer of a
    cloud or of another owner is `bought` at its ask, and only when somebody pays for it.
    """

    quantity: int
    ask: int  # micro-dollars per GPU-hour
    bought: bool = False
    seller: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """One pool at one moment."""

    pool: str
    supply: tuple[Step, ...]  # cheapest first
    bids: tuple[Bid, ...]
    bonus_percent: int = 25  # what a running bid's limit is raised by in the ranking

    @property
    def units(self) -> int:
        return sum(step.quantity for step in self.supply)

    def weight(self, bid: Bid) -> int:
        """What a unit is worth to the ranking, in hundredths of a micro-dollar."""
        return bid.limit * (100 + self.bonus_percent if bid.running else 100)

    def ranked(self) -> list[Bid]:
        """Highest ranking value first, then first come; the name only settles what nothing else does."""
        return sorted(self.bids, key=lambda bid: (-self.weight(bid), bid.arrival, bid.bid))
