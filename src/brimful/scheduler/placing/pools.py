"""Which pool: GPU type and price, before which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import leftover, place
from brimful.scheduler.rules import Rules


def allowed_pools(fleet: Fleet, shape: int, draft: Draft, prices: Mapping[Pool, int]) -> list[Pool]:
    """Queue pools where jobs of this shape can run, at a price they accept, at a site that can be reached."""
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
    """Whether jobs are moved between GPU types, of which there are several."""
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

    tight: where it leaves the fewest GPUs over, whatever they are. fast: where it runs fastest. advantage:
    where its speed is highest against what the GPU is worth to the others (`worth`), so that old cards take
    what they do nearly as well and new ones are kept for what only they do well. cheap: where its work costs
    least, so that whoever pays for an old card that does it for less gets one; the faster among equals. Of a
    job whose speeds nobody predicted, cheap knows prices only: the less dear of places that fit equally well.
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
    """What a GPU of each type is worth to the jobs at hand: the mean rate they would have on it."""
    if rules.types != "advantage" or len(fleet.capacity.pools) < 2:
        return {}
    return fleet.backlog.worth()
