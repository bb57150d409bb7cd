"""The input to clearing a market pool: bids, and supply in steps of rising ask. All money is per GPU-hour."""

from __future__ import annotations

from dataclasses import dataclass
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

    def percent(self, bid: Bid) -> int:
        """How much a bid's limit counts in the ranking. A running bid counts more by the bonus plus what
        stopping it would lose, as a share of the next hour; together at most twice the bonus. With 25 that
        keeps the classes in order: background, running, counts 1.25 x 1.5, and normal 2."""
        if not bid.running:
            return 100
        return 100 + min(2 * self.bonus_percent, self.bonus_percent + 100 * bid.loss_s // HOUR_S)

    def weight(self, bid: Bid) -> int:
        """What a unit is worth in the ranking, in hundredths of a micro-dollar."""
        return bid.limit * self.percent(bid)

    def ranked(self) -> list[Bid]:
        """Highest ranking value first; on a tie the bid that would lose most by a stop, then first come; the
        name breaks the last ties."""
        return sorted(self.bids, key=lambda bid: (-self.weight(bid), -self._lost(bid), bid.arrival, bid.bid))

    @staticmethod
    def _lost(bid: Bid) -> int:
        return bid.loss_s * bid.quantity if bid.running else 0
