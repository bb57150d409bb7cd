"""Which pools are cleared by bids, on what terms, and what a job bids there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.fleet.lease import JobState
from brimful.fleet.node import Node, Pool
from brimful.fleet.state import Fleet
from brimful.language import Quoted, Sentence, say
from brimful.market.bid import Bid, Step, preset_limit
from brimful.market.spot import Terms
from brimful.units import DAY_S

# The price that a class is a multiple of if a pool has no posted price. Never the clearing price itself: bids
# that follow the price and a price that follows the bids would chase each other upwards.
LEAST_REFERENCE = 10_000  # a cent
BOUGHT = ("on_demand", "spot")  # tiers that cost their price when used, and nothing otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveTerms:
    """The operator's terms of sale. Part of every contract, so that a change does not affect running ones."""

    longest_hours: int = 14 * 24
    ahead_s: int = 28 * DAY_S  # how far ahead a window may begin
    premium_permille: int = 200  # above spot: for guaranteed GPUs, and for the two ways to return them
    pause_permille: int = 250  # of the unit price
    return_permille: int = 500
    share_permille: int = 750  # the owner's share of what lent GPUs earn
    idle_s: int = 900
    credit_s: int = 182 * DAY_S


# By the name an operator writes: the field, its unit, the least and the most. A credit is never more than was
# paid: a hundred percent.
_RESERVE_TERMS: dict[str, tuple[str, str, int, int]] = {
    "premium": ("premium_permille", "%", 0, 1000),
    "pause": ("pause_permille", "%", 0, 100),
    "return": ("return_permille", "%", 0, 100),
    "share": ("share_permille", "%", 0, 100),
    "idle": ("idle_s", "m", 1, 24 * 60),
    "credit": ("credit_s", "d", 1, 3650),
    "longest": ("longest_hours", "h", 1, 8760),
    "ahead": ("ahead_s", "d", 0, 366),
}
_PER_UNIT = {"%": 10, "m": 60, "h": 1, "d": DAY_S}
_RESERVE_TERM = re.compile(r"(?P<name>[a-z]{1,9})=(?P<number>\d{1,6})(?P<unit>[%mhd])", re.ASCII)


def read_reserve_terms(text: str) -> ReserveTerms:
    """`premium=30% pause=20% credit=90d`; what is not named keeps its default.

    Refused if borrowers at the usual price and the pause credit together would bring an owner more than it
    paid.
    """
    terms = ReserveTerms()
    for part in text.split():
        match = _RESERVE_TERM.fullmatch(part)
        name, unit, low, high = _RESERVE_TERMS.get(match["name"] if match else "", ("", "", 0, 0))
        if match is None or match["unit"] != unit or not low <= int(match["number"]) <= high:
            known = [f"{each} {low}-{high}{unit}" for each, (_, unit, low, high) in _RESERVE_TERMS.items()]
            raise BadInput(say("market.bad_reserve_term", part=Quoted(part[:60]), known=", ".join(known)))
        terms = replace(terms, **{name: int(match["number"]) * _PER_UNIT[unit]})
    worth = (1000 + terms.premium_permille) * (1000 - terms.pause_permille)
    if 1000 * terms.share_permille > worth:
        raise BadInput(say("market.reserve_pays_itself"))
    return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A pool is either a market pool or a queue pool; these are the market pools."""

    pools: tuple[str, ...] = ("all",)  # sites, GPU types, tiers, or `all`
    terms: Terms = field(default_factory=Terms)
    bonus_percent: int = 25
    reserve: ReserveTerms = field(default_factory=ReserveTerms)

    def covers(self, pool: Pool) -> bool:
        return "all" in self.pools or not {pool.site, pool.gpu, pool.tier}.isdisjoint(self.pools)

    def in_fleet(self, fleet: Fleet) -> list[Pool]:
        return [pool for pool in sorted(fleet.capacity.pools) if self.covers(pool)]


def market_of(
    names: str, nodes: Sequence[Node], terms: Terms, reserve: ReserveTerms | None = None
) -> Market | None:
    """What `--market` names among these nodes: comma-separated sites, GPU types or tiers, or `all`."""
    pools = tuple(name.strip() for name in names.split(",") if name.strip())
    known = sorted({"all", *(name for node in nodes for name in node.pool)})
    if strange := [name for name in pools if name not in known]:
        raise BadInput(say("market.no_such_pool", strange=Quoted(strange[0][:80]), known=", ".join(known)))
    return Market(pools=pools, terms=terms, reserve=reserve or ReserveTerms()) if pools else None


def decided_by_bids(pools: Sequence[str]) -> Sentence:
    """Which pools are decided by bids, shown beside the name of a policy."""
    return say("market.decides.all") if "all" in pools else say("market.decides", pools=", ".join(pools))


def limit_of(job: Job, *, floor: int) -> int:
    """What a job offers for an hour of one GPU: its own limit, or its class's preset."""
    if job.limit_microusd_per_gpu_hour is not None:
        return job.limit_microusd_per_gpu_hour
    return preset_limit(job.priority, price=max(floor, LEAST_REFERENCE))


def bid_of(
    state: JobState,
    *,
    floor: int,
    running: bool,
    now_s: int,
    loss_s: int = 0,
    sizes: Sequence[int] = (),
) -> Bid:
    """Its age is its place in the log, which it keeps when it is preempted and comes back.

    `sizes`: those that an elastic gang may have, smallest first.
    """
    job = state.job
    least, most = (sizes[0], sizes[-1]) if sizes else (job.gpus, job.gpus)
    left_s = None if running else state.remaining_s(now_s)
    return Bid(
        bid=job.job,
        quantity=most,
        min_quantity=least,
        limit=limit_of(job, floor=floor),
        arrival=state.serial,
        running=running,
        owner=job.tenant,
        expected_s=None if left_s is None else int(left_s) + job.checkpoint_cost_s,
        loss_s=loss_s,
        sizes=tuple(sizes) if least < most else (),
        held=job.gpus if running and least < most else 0,
    )


def floor_of(nodes: Iterable[Node]) -> int:
    """The highest ask, so that no node is used below its own."""
    return max((node.microusd_per_gpu_hour for node in nodes), default=0)


def supply_of(pool: Pool, nodes: Sequence[Node]) -> tuple[Step, ...]:
    """One step per seller, all at the floor: the scheduler decides which node a winner gets."""
    floor, bought = floor_of(nodes), pool.tier in BOUGHT
    gpus: dict[str, int] = {}
    for node in nodes:
        gpus[node.owner] = gpus.get(node.owner, 0) + node.good_gpus
    return tuple(
        Step(quantity=n, ask=floor, bought=bought, seller=owner) for owner, n in sorted(gpus.items()) if n
    )
