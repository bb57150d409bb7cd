"""The input to clearing a market pool: bids, and supply in steps of rising ask. All money is per GPU-hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from brimful.units import HOUR_S

# A class is a preset bid: a multiple of the current price. A job willing to wait offers less.
PRESETS: dict[str, Fraction] = {
    "urgent": Fraction(4),
    "normal": Fraction(2),
    "background": Fraction(5, 4),
}


def preset_limit(priority: str, *, price: int) -> int:
    """A class's preset limit at this price, in micro-dollars per GPU-hour."""
    return int(PRESETS[priority] * price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """Up to `quantity` GPUs of one pool for at most `limit` each per hour; fewer than `min_quantity` do not
    help.

    A gang has `min_quantity == quantity`. `arrival` breaks ties and is kept when a bid is preempted.

    With `sizes`, only these numbers of units help, and a running bid that is given another number than it
    has `held` must restart for it.
    """

    bid: str
    quantity: int
    min_quantity: int
    limit: int  # micro-dollars per GPU-hour
    arrival: int
    running: bool = False  # it holds GPUs now
    owner: str = ""
    expected_s: int | None = None  # how long it will hold them, if known
    loss_s: int = 0  # work and restart time that a stop now would waste
    sets_price: bool = True  # when it loses; False for a tenant that earns from what borrowers pay
    sizes: tuple[int, ...] = ()  # in order; empty: any number from `min_quantity` to `quantity`
    held: int = 0  # of a running bid with `sizes`

    @property
    def units(self) -> Sequence[int]:
        """The numbers of units that help, smallest first."""
        return self.sizes or range(self.min_quantity, self.quantity + 1)

    def without(self, units: int) -> Bid | None:
        """The bid without this number of units; None if no other helps."""
        left = tuple(n for n in self.sizes if n != units)
        return replace(self, sizes=left, min_quantity=left[0], quantity=left[-1]) if left else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Units that may be used at `ask` or more.

    The operator's free GPUs cost nothing more when used, and `ask` is their floor. An offer from a cloud or
    another owner is `bought` at its ask, and only when a bid pays for it.
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
    bonus_percent: int = 25  # how much a running bid's limit is raised in the ranking if it loses nothing

    @property
    def units(self) -> int:
        return sum(step.quantity for step in self.supply)

    def percent(self, bid: Bid, units: int | None = None) -> int:
        """How much a bid's limit counts in the ranking. A running bid counts more by the bonus plus what
        stopping it would lose, as a share of the next hour; together at most twice the bonus. With 25 that
        keeps the classes in order: background, running, counts 1.25 x 1.5, and normal 2. A bid that would
        have to restart for these `units` counts like one that waits."""
        if not bid.running or (units is not None and bid.held not in (0, units)):
            return 100
        return 100 + min(2 * self.bonus_percent, self.bonus_percent + 100 * bid.loss_s // HOUR_S)

    def weight(self, bid: Bid) -> int:
        """What a unit is worth in the ranking, in hundredths of a micro-dollar."""
        return bid.limit * self.percent(bid)

    def choices(self, bid: Bid) -> tuple[tuple[int, int], ...]:
        """(units, their worth) of a bid with sizes. The last is preferred on a tie: what it holds, then the
        largest."""
        sizes = sorted(bid.sizes, key=lambda n: (n == bid.held, n))
        return tuple((n, n * bid.limit * self.percent(bid, n)) for n in sizes)

    def ranked(self) -> list[Bid]:
        """Highest ranking value first; on a tie the bid that would lose most by a stop, then first come; the
        name breaks the last ties."""
        return sorted(self.bids, key=lambda bid: (-self.weight(bid), -self._lost(bid), bid.arrival, bid.bid))

    @staticmethod
    def _lost(bid: Bid) -> int:
        return bid.loss_s * (bid.held or bid.quantity) if bid.running else 0
