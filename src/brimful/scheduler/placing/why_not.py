"""Why a gang finds no place, with numbers, and whether waiting can help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.memory import too_small
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.language import Number, Percent, Sentence, Several, Size, count, either, say
from brimful.scheduler.draft import Draft


def why_not(job: Job, fleet: Fleet, draft: Draft, pools: Sequence[Pool]) -> tuple[Sentence, bool]:
    """(the reason, whether waiting can help). `pools`: where it may go now."""
    at_its_sites = [pool for pool in fleet.capacity.pools if job.may_be_in(site=pool.site, tier=pool.tier)]
    allowed = [pool for pool in at_its_sites if job.rate(pool.gpu) > 0.0]
    if not allowed:
        return _no_such_gpus(job, fleet, sorted({pool.gpu for pool in at_its_sites})), False
    small = {pool.gpu: short for pool in allowed if (short := too_small(job, pool.gpu)) is not None}
    if all(pool.gpu in small for pool in allowed):
        return _too_little_memory(job, small), False
    allowed = [pool for pool in allowed if pool.gpu not in small]
    if not any(fleet.capacity.could_hold(job, pool) for pool in allowed):
        return _never(job, fleet, allowed), False
    gpus = count("gpu", job.gpus)
    if not pools:
        return say("scheduler.no_pool_open", gpus=gpus, kind=_kind(job)), True
    total = sum(draft.free_in(pool) for pool in pools)
    best = [next(draft.fullest(pool), None) for pool in pools]
    most = max((len(draft.free_on(index)) for index in best if index is not None), default=0)
    within = {"nvlink": "node", "any": "pool"}.get(job.within, job.within)
    return say(f"scheduler.too_few_free_{within}", gpus=gpus, most=most, total=total), True


def _never(job: Job, fleet: Fleet, pools: Sequence[Pool]) -> Sentence:
    """The job is larger than these pools could ever hold: the most there is, and of what."""
    of, drained = fleet.capacity, _drained(fleet)
    if not job.gpus:
        return say("scheduler.too_large_for_node", host=_host(job), drained=drained)
    wants = {"gpus": count("gpu", job.gpus), "kind": _kind(job), "drained": drained}
    most = max(of.most_of(job, pool) for pool in pools)
    bare = replace(job, cpu_milli=0, memory_mib=0)
    if any(of.could_hold(bare, pool) for pool in pools):
        return say("scheduler.too_large_for_hosts", host=_host(job), most=most, **wants)
    largest = max(of.pools[pool].gpus for pool in pools)
    if job.within in ("nvlink", "node") or (job.within == "rack" and largest >= job.gpus):
        return say(f"scheduler.too_wide_{job.within}", most=most, **wants)
    return say("scheduler.too_wide_pool", most=largest, **wants)


def _no_such_gpus(job: Job, fleet: Fleet, types: Sequence[str]) -> Sentence:
    where = say("scheduler.the_site", sites=either(job.sites)) if job.sites else say("scheduler.the_fleet")
    if job.tiers:
        where = say("scheduler.of_tiers", tiers=either(job.tiers), where=where)
    none = say("scheduler.no_node_takes_work" if fleet.drained else "scheduler.no_nodes")
    has = Several(tuple(types)) if types else none
    return say("scheduler.no_such_gpus", kind=_kind(job), where=where, has=has, drained=_drained(fleet))


def _too_little_memory(job: Job, small: Mapping[str, tuple[int, int]]) -> Sentence:
    """`small`: by GPU type, the bytes it needs and those it would have."""
    lacks: list[Sentence] = []
    for gpu, (needs, has) in sorted(small.items()):
        values = {"gpu": gpu, "needs": Size(needs), "has": Size(has)}
        if job.gpu_milli < WHOLE_GPU:
            share = Percent(job.gpu_milli / WHOLE_GPU, digits=0 if job.gpu_milli % 10 == 0 else 1)
            lacks.append(say("scheduler.memory_on_share", share=share, **values))
        else:
            lacks.append(say("scheduler.memory_on_gpu", **values))
    return say("scheduler.too_little_memory", needs=Several(tuple(lacks), between="; "))


def _kind(job: Job) -> object:
    types = job.gpu_types or [name for name, _ in job.rates]
    return either(types) if types else say("scheduler.any_type")


def _host(job: Job) -> Sentence | Size:
    memory = Size(job.memory_mib << 20)
    if not job.cpu_milli:
        return memory
    decimals = f"{job.cpu_milli:04d}"[-3:].rstrip("0")
    cpus = Number(job.cpu_milli / 1000, digits=len(decimals))
    if not job.memory_mib:
        return say("scheduler.cpus", cpus=cpus)
    return say("scheduler.cpus_and_memory", cpus=cpus, memory=memory)


def _drained(fleet: Fleet) -> Sentence | str:
    return say("scheduler.drained", nodes=len(fleet.drained)) if fleet.drained else ""
