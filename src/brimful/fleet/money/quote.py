"""What a deferrable job was told when it began to wait: what each hour costs, and where it had room.

It stands whatever is quoted later. A hold, a move and a change of terms make a new one, so that nobody can
keep the price of a cheap hour, or of a cheap GPU, at will.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brimful.fleet.charge import Charge
from brimful.fleet.job import Job
from brimful.fleet.learned.load import FLAT, TariffLine
from brimful.fleet.node import Pool
from brimful.units import HOUR_S

if TYPE_CHECKING:
    from brimful.fleet.capacity import Capacity
    from brimful.fleet.lease import JobState
    from brimful.fleet.state import Fleet

HOURS_AHEAD = 48  # of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """One pool. Prices are in thousandths of a micro-dollar per GPU-hour."""

    posted: int  # micro-dollars; at least 1, so that hours differ where GPUs cost nothing
    rate: float  # useful work per second
    has_room: bool  # it could have started there at once
    at_s: int
    permille: Mapping[int, int]  # by hour since the epoch; the curve of that moment, shared by all its jobs

    def at(self, hour: int) -> int | None:
        permille = self.permille.get(hour)
        return None if permille is None else self.posted * permille

    def lowest(self, line: TariffLine | None, *, now_s: int) -> int:
        """The lowest price it was quoted for the hours that have begun since; `line`: what is known now."""
        first = self.at_s // HOUR_S
        hours = range(first, min(now_s // HOUR_S, first + HOURS_AHEAD) + 1)
        prices = [price for hour in hours if (price := self.at(hour)) is not None]
        if first not in self.permille:  # its first hour had no price yet when it came
            prices.append(self.posted * (FLAT if line is None else line.at(self.at_s)))
        return min(prices)


Quote = Mapping[Pool, Quoted]


def give_quote(fleet: Fleet, state: JobState, *, at_s: int, again: bool = False) -> None:
    """When it begins to wait: the first quote stands, unless a new one is to be made `again`."""
    job = state.job
    if again:
        fleet.quotes.pop(job.job, None)
    if not job.deferrable or job.job in fleet.quotes or state.phase != "waiting":
        return
    posted = fleet.posted_prices()
    fleet.quotes[job.job] = {
        pool: Quoted(
            posted=max(1, posted.get(pool, 0)),
            rate=rate,
            has_room=pool.site not in fleet.silent and _has_room(fleet.capacity, job, pool),
            at_s=at_s,
            permille=fleet.tariffs[pool].permille if pool in fleet.tariffs else {},
        )
        for pool, rate in fleet.able_pools(state.shape).items()
        if pool not in fleet.prices  # bids make the price there
    }


def _has_room(capacity: Capacity, job: Job, pool: Pool) -> bool:
    """By the number of free GPUs, on one node if it has to be."""
    index = capacity.pools[pool]
    if job.within in ("nvlink", "node"):
        return any(index.buckets[max(1, job.gpus) :])
    return index.free >= max(1, job.gpus)


def paid_over(leases: Iterable[Charge], posted: int) -> float:
    """What they pay per hour beyond the posted price, in GPU-hours at that price."""
    if not posted:
        return 0.0
    return sum(each.size * (each.microusd_per_gpu_hour - posted) / posted for each in leases)
