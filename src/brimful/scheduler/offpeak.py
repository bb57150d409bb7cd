"""When deferrable work starts: in cheap hours of the tariff; without one, while the fleet is quiet."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from math import inf

from brimful.fleet.lease import JobState
from brimful.fleet.state import Fleet, Pool
from brimful.language import Percent, Seconds, Sentence, say
from brimful.market.tariff import FLAT, is_low
from brimful.scheduler import ordering
from brimful.units import HOUR_S

QUIET_FREE = 0.2  # a fleet with a fifth of its GPUs free is quiet
LONGEST_WAIT_S = 24 * HOUR_S  # every day has a quiet hour


def quoted_s(state: JobState) -> int:
    """From when it is quoted. A hold does not count: it would keep the price of a cheap hour at will."""
    return max(state.ready_s, state.released_s)


def start_by_s(state: JobState) -> float:
    """The last moment a deferrable job can start and still keep its deadline."""
    job = state.job
    if job.deadline_s is None:
        return quoted_s(state) + LONGEST_WAIT_S
    work_s = job.predicted_work_s
    if work_s is None:
        return state.ready_s  # its length is unknown, so there is no slack to wait with
    return ordering.start_by_s(state, work_s - state.kept_work_s)


def promised(fleet: Fleet, state: JobState, pool: Pool, price: int, *, now_s: int) -> int:
    """The price of a lease that starts now: its work costs a deferrable job no more than it was quoted."""
    most = _most(fleet, state, pool, _lowest(fleet, state, now_s=now_s))
    return price if most == inf else min(price, int(most // FLAT))


def _lowest(fleet: Fleet, state: JobState, *, now_s: int) -> dict[Pool, int]:
    """By pool: the lowest price that it was quoted so far."""
    quote = fleet.quotes.get(state.job.job, {})
    return {pool: each.lowest(fleet.tariffs.get(pool), now_s=now_s) for pool, each in quote.items()}


def _most(fleet: Fleet, state: JobState, pool: Pool, lowest: Mapping[Pool, int]) -> float:
    """Per GPU-hour, in thousandths of a micro-dollar: what it was quoted here, and where it could have
    started at once. A pool where its work takes twice as long may cost half of that.

    Leaves out: spot as a measure for pools that stay, and how fast a gang is over several nodes.
    """
    quote = fleet.quotes.get(state.job.job)
    if quote is None or pool in fleet.prices:
        return inf
    rate = fleet.able_pools(state.shape).get(pool, 1.0)
    return min(
        (
            lowest[where] * (rate / each.rate)
            for where, each in quote.items()
            if where == pool or (each.has_room and (where.tier != "spot" or pool.tier == "spot"))
        ),
        default=inf,
    )


def defer(state: JobState, fleet: Fleet, *, free: int, now_s: int) -> Sentence | None:
    """Why a deferrable job does not start yet although GPUs may be free; None if it may start."""
    until_s = start_by_s(state)
    if not state.job.deferrable or now_s >= until_s:
        return None
    able, left = fleet.able_pools(state.shape), Seconds(until_s - now_s)
    quoted = {pool: rate for pool, rate in able.items() if pool in fleet.tariffs}
    if quoted:
        posted = {pool: max(1, fleet.posted_prices().get(pool, 0)) for pool in quoted}
        lowest = _lowest(fleet, state, now_s=now_s)
        price = min(
            min(posted[pool] * fleet.tariffs[pool].at(now_s), _most(fleet, state, pool, lowest)) / rate
            for pool, rate in quoted.items()
        )
        later = [
            each / rate
            for pool, rate in quoted.items()
            for each in _later(fleet, state, pool, posted[pool], now_s=now_s, until_s=until_s)
        ]
        if is_low(price, later):
            return None
        flat = FLAT * min(posted[pool] / rate for pool, rate in quoted.items())
        shares = {"now": Percent(price / flat, 0), "then": Percent(min(later) / flat, 0)}
        return say("scheduler.cheaper_hour", left=left, **shares)
    gpus = fleet.capacity.gpus
    if free - state.job.gpus >= QUIET_FREE * gpus:
        return None
    return say("scheduler.quiet_hour", free=free, gpus=gpus, left=left)


def same_quote(state: JobState, fleet: Fleet, *, now_s: int) -> Hashable:
    """Within a look, waiting jobs of which this is the same are deferred alike."""
    until_s = start_by_s(state)
    told = (
        (each.posted, each.has_room, id(each.permille) if each.permille else 0)
        for each in fleet.quotes.get(state.job.job, {}).values()
    )
    return state.shape, quoted_s(state) // HOUR_S, until_s // HOUR_S, now_s >= until_s, tuple(told)


def _later(
    fleet: Fleet, state: JobState, pool: Pool, posted: int, *, now_s: int, until_s: float
) -> Iterator[int]:
    """What the hours cost for which it could wait: as quoted to it or as quoted now, whichever is less."""
    quoted = fleet.quotes.get(state.job.job, {}).get(pool)
    for hour, permille in fleet.tariffs[pool].after(now_s, until_s=until_s).items():
        known = None if quoted is None else quoted.at(hour)
        yield posted * permille if known is None else min(known, posted * permille)
