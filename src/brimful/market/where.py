"""Where to run: one sum for a first placement and for a move, over all offers where the job fits. Pure.

    score = (price x hours + egress + risk + time x value of time) / useful work

Risk: if an interruption costs L hours (a start and the work since the last checkpoint) and happens λ times an
hour, also while that is being made up, a job takes 1 / (1 - λL) times its hours. With λL of 1 or more it
never ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, inf

from brimful.specs.offer import Offer
from brimful.units import HOUR_S

GB = 10**9
# (up to this many GB, micro-dollars per GB) of data that leaves a provider for the internet, list prices
# 2026. Tiers are marginal, so the sum is continuous and never falls. A provider not listed charges nothing,
# as most do.
EGRESS: Mapping[str, tuple[tuple[float, int], ...]] = {
    "aws": ((10_000, 90_000), (50_000, 85_000), (150_000, 70_000), (float("inf"), 50_000)),
    "azure": ((10_000, 87_500), (50_000, 83_000), (150_000, 70_000), (float("inf"), 50_000)),
    "gcp": ((1_000, 120_000), (10_000, 110_000), (float("inf"), 80_000)),
}
ACROSS_REGIONS_MICROUSD_PER_GB = 20_000  # inside one of the clouds above


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A job from the point of view of a seller of hours."""

    work: float  # useful work left, in any unit: tokens, steps, requests
    state_bytes: int = 0  # what must be brought along: checkpoint and data
    at_provider: str = ""  # where that is now; empty: nowhere, it is created on site
    at_region: str = ""
    restart_s: float = 720.0  # a start without progress
    lost_s: float = 300.0  # work done since the last checkpoint, when interrupted
    interruptions_per_hour: float = 0.1  # of spot, if the offer does not say
    wait_s: float = 0.0  # until it could start there
    microusd_per_wait_hour: int = 0  # what an hour of waiting costs its owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An offer with its sum. Money in micro-dollars."""

    offer: Offer
    hours: float
    compute: int
    egress: int
    restarts: int  # the risk of spot: the extra time caused by interruptions
    waiting: int  # the value of time: of all hours until it is done
    work: float

    @property
    def total(self) -> int:
        return self.compute + self.egress + self.restarts + self.waiting

    @property
    def score(self) -> float:
        """Micro-dollars per unit of useful work."""
        return self.total / self.work


def egress_microusd(bytes_: int, *, provider: str, region: str, to: Offer) -> int:
    """What bringing data from there costs: nothing within a region, tiers between providers."""
    if not provider or (provider, region) == (to.provider, to.region) or provider not in EGRESS:
        return 0
    gb = bytes_ / GB
    if provider == to.provider:
        return floor(gb * ACROSS_REGIONS_MICROUSD_PER_GB)
    owed, below = 0.0, 0.0
    for limit, rate in EGRESS[provider]:
        owed += max(0.0, min(gb, limit) - below) * rate
        below = limit
    return floor(owed)


def stretch(offer: Offer, need: Need) -> float:
    """How many times its hours a job takes there, with interruptions; infinite: it never ends."""
    if not offer.is_spot:
        return 1.0
    known = offer.interruptions_per_hour
    rate = need.interruptions_per_hour if known is None else known
    lost = rate * (need.restart_s + need.lost_s) / HOUR_S
    return 1 / (1 - lost) if lost < 1 else inf


def weigh(offer: Offer, need: Need, *, work_per_s: float) -> Place:
    """The sum for one offer where the job ends, given its speed there."""
    hours = need.work / work_per_s / HOUR_S
    longer = hours * (stretch(offer, need) - 1)
    return Place(
        offer=offer,
        hours=hours,
        compute=floor(offer.microusd_per_hour * (hours + need.restart_s / HOUR_S)),
        egress=egress_microusd(need.state_bytes, provider=need.at_provider, region=need.at_region, to=offer),
        restarts=floor(longer * offer.microusd_per_hour),
        waiting=floor(
            ((need.wait_s + need.restart_s) / HOUR_S + hours + longer) * need.microusd_per_wait_hour
        ),
        work=need.work,
    )


def rank(offers: Iterable[Offer], need: Need, work_per_s: Mapping[tuple[str, int], float]) -> list[Place]:
    """Every offer where the job fits and ends, cheapest per useful work first; rates by (card, number)."""
    places = [
        weigh(offer, need, work_per_s=rate)
        for offer in offers
        if (rate := work_per_s.get((offer.gpu, offer.gpus), 0.0)) > 0 and stretch(offer, need) < inf
    ]
    return sorted(
        places, key=lambda p: (p.score, p.offer.provider, p.offer.region, p.offer.zone, p.offer.instance)
    )


def never_end(
    offers: Iterable[Offer], need: Need, work_per_s: Mapping[tuple[str, int], float]
) -> dict[str, int]:
    """Offers by GPU that `rank` leaves out although the job fits: interruptions would eat all its work."""
    return Counter(
        offer.gpu
        for offer in offers
        if work_per_s.get((offer.gpu, offer.gpus), 0.0) > 0 and stretch(offer, need) == inf
    )


def is_worth_moving(now: Place, there: Place) -> bool:
    """Whether the rest of the job is clearly cheaper there: the saving must be twice the cost of the move.

    Price spreads between zones are wide and price steps over time are small, so moves should be rare and
    deliberate.
    """
    move = there.egress + there.compute - floor(there.offer.microusd_per_hour * there.hours)
    return now.total - (there.total - move) > 2 * move
