"""Which pool: GPU type and price, before which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.fleet.lease import JobState
from brimful.fleet.node import Pool
from brimful.fleet.ranked import by_shape
from brimful.fleet.state import Fleet
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import leftover, place
from brimful.scheduler.rules import Rules


def allowed_pools(fleet: Fleet, shape: int, draft: Draft, prices: Mapping[Pool, int]) -> list[Pool]:
    """Queue pools where jobs of this shape can run, at a price they accept, at a reachable site."""
    limit, closed, sold = fleet.of_shape[shape].limit_microusd_per_gpu_hour, draft.closed, draft.sold
    if limit is None and not closed and not sold:
        return [*fleet.able_pools(shape)]
    return [
        pool
        for pool in fleet.able_pools(shape)
        if (not closed or pool.site not in closed)
        and (limit is None or prices[pool] <= limit)
        and (not sold or pool not in sold)
    ]


def is_mixed(fleet: Fleet, rules: Rules) -> bool:
    """Whether there are several GPU types and jobs are moved between them."""
    return rules.move and fleet.capacity.is_mixed


def choose(
    job: Job,
    draft: Draft,
    pools: Sequence[Pool],
    rules: Rules,
    *,
    worth: Mapping[str, float],
    prices: Mapping[Pool, int],
) -> Parts | None:
    """The gang's place, or None.

    tight: where it leaves the fewest GPUs over, of any type. fast: where it runs fastest. advantage: where
    its speed is highest relative to what the GPU is worth to the other jobs (`worth`), so that old cards take
    what they do nearly as well and new ones are kept for what only they do well. cheap: where its work costs
    least, so that a job that pays less on an old card gets one; the faster on a tie. If no speeds were
    predicted, cheap knows prices only: the cheaper of places that fit equally well.
    """
    if len(pools) == 1:
        return place(job, draft, pools[0])
    if rules.types in ("tight", "rotate") or not job.rates:
        found = [(pool, parts) for pool in pools if (parts := place(job, draft, pool)) is not None]
        if rules.types == "cheap":
            found.sort(key=lambda each: prices[each[0]])
        return min((parts for _, parts in found), key=lambda parts: leftover(parts, draft), default=None)
    if rules.types == "fast":
        ranked = sorted(pools, key=lambda pool: -job.rate(pool.gpu))
    elif rules.types == "cheap":
        ranked = sorted(pools, key=lambda pool: (prices[pool] / job.rate(pool.gpu), -job.rate(pool.gpu)))
    else:
        ranked = sorted(pools, key=lambda pool: -job.rate(pool.gpu) / worth.get(pool.gpu, 1.0))
    for pool in ranked:
        parts = place(job, draft, pool)
        if parts is not None:
            return parts
    return None


def worth_of_types(fleet: Fleet, rules: Rules) -> Mapping[str, float]:
    """What a GPU of each type is worth to the current jobs: their mean rate on it."""
    if rules.types != "advantage" or len(fleet.capacity.pools) < 2:
        return {}
    total: dict[str, float] = {}
    count = 0
    for jobs in (fleet.waiting, fleet.running):
        # Jobs of one shape have the same rates, so counting them is enough.
        for shape, entries in jobs.order("by shape", _came, by_shape).groups.items():
            rates = fleet.of_shape[cast(int, shape)].rates
            best = max((rate for _, rate in rates), default=0.0)
            count += len(entries) if best else 0
            for gpu, rate in rates if best else ():
                total[gpu] = total.get(gpu, 0.0) + len(entries) * rate / best
    return {gpu: max(total[gpu] / count, 1e-9) for gpu in total}


def _came(state: JobState) -> float:
    return state.serial
