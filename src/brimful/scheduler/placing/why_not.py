"""Why a gang finds no place, with numbers, and whether waiting can help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brimful.fleet.job import Job
from brimful.fleet.memory import too_small
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler import reasons
from brimful.scheduler.draft import Draft


def why_not(job: Job, fleet: Fleet, draft: Draft, pools: Sequence[Pool]) -> tuple[str, bool]:
    """(the reason, whether waiting can help). `pools`: where it may go now."""
    at_its_sites = [pool for pool in fleet.capacity.pools if job.may_be_at(pool.site)]
    drained = len(fleet.drained)
    allowed = [pool for pool in at_its_sites if job.rate(pool.gpu) > 0.0]
    if not allowed:
        return reasons.no_such_gpus(job, sorted({pool.gpu for pool in at_its_sites}), drained), False
    small = {pool.gpu: short for pool in allowed if (short := too_small(job, pool.gpu)) is not None}
    if all(pool.gpu in small for pool in allowed):
        return reasons.too_little_memory(job, small), False
    allowed = [pool for pool in allowed if pool.gpu not in small]
    if not any(fleet.capacity.could_hold(job, pool) for pool in allowed):
        return _never(job, fleet, allowed, drained), False
    if not pools:
        return reasons.no_pool_open(job), True
    total = sum(draft.free_in(pool) for pool in pools)
    best = [next(draft.fullest(pool), None) for pool in pools]
    most = max((len(draft.free_on(index)) for index in best if index is not None), default=0)
    return reasons.too_few_free(job, most, total), True


def _never(job: Job, fleet: Fleet, pools: Sequence[Pool], drained: int) -> str:
    """It is more than these pools could ever give it: what is the most, of what."""
    of = fleet.capacity
    if not job.gpus:
        return reasons.too_large_for_a_node(job, drained)
    most = max(of.most_of(job, pool) for pool in pools)
    bare = replace(job, cpu_milli=0, memory_mib=0)
    if any(of.could_hold(bare, pool) for pool in pools):
        return reasons.too_large_for_hosts(job, most, drained)
    largest = max(of.pools[pool].gpus for pool in pools)
    if job.within in ("nvlink", "node") or (job.within == "rack" and largest >= job.gpus):
        return reasons.too_wide(job, job.within, most, drained)
    return reasons.too_wide(job, "pool", largest, drained)
