"""Why a job waits, why it is where it is, and why an hour there costs what it costs. With the numbers."""

from __future__ import annotations

from brimful.client.answers import PoolAnswer, WhyAnswer
from brimful.fleet.state import OVER, JobState, Lease, Pool
from brimful.scheduler.ordering import waiting_in_order
from brimful.server.service.reader import Reader
from brimful.server.views.sentences import (
    LeasePrice,
    Placement,
    PoolFit,
    hold_text,
    placement_text,
    price_text,
    verdict_text,
    waiting_text,
)


def why_view(reader: Reader, state: JobState) -> WhyAnswer:
    with reader.locked():
        name, lease = state.job.job, state.open_lease
        pools = [_pool(reader, state, pool) for pool in sorted(reader.fleet.capacity.pools)]
        usable = sum(pool["rate"] > 0 for pool in pools)
        return {
            "job": name,
            "phase": state.phase,
            "waiting": _waiting(reader, state),
            "ahead": _ahead(reader, name) if state.phase == "waiting" else None,
            "here": placement_text(_placement(reader, state, lease, usable)) if lease else None,
            "price": price_text(_price(reader, state, lease)) if lease else None,
            "pools": [] if state.phase in OVER else pools,
        }


def _waiting(reader: Reader, state: JobState) -> str | None:
    if state.phase == "held":
        return hold_text(state.job.job, state.hold_reason)
    if state.phase != "waiting":
        return None
    waited_s = max(0, reader.now_s() - state.waiting_since_s)
    return waiting_text(reader.why_waiting(state.job.job), waited_s)


def _ahead(reader: Reader, name: str) -> int:
    order = waiting_in_order(reader.fleet, reader.rules, now_s=reader.now_s())
    for ahead, each in enumerate(order):
        if each.job.job == name:
            return ahead
    return 0


def _placement(reader: Reader, state: JobState, lease: Lease, pools: int) -> Placement:
    types, predicted = reader.rules.types, bool(state.job.rates)
    return Placement(
        gpus=lease.size,
        gpu=lease.gpu,
        node=lease.node,
        site=lease.site,
        speed=lease.speed if predicted else None,
        pools=pools,
        types="unpredicted" if types == "cheap" and not predicted else types,
        sites=state.job.sites,
        lease=len(state.leases),
        before=state.leases[-2].reason if len(state.leases) > 1 else "",
    )


def _price(reader: Reader, state: JobState, lease: Lease) -> LeasePrice:
    node = reader.fleet.nodes.get(lease.node)
    return LeasePrice(
        gpu=lease.gpu,
        site=lease.site,
        gpus=lease.size,
        gpu_milli=lease.gpu_milli,
        now=lease.price_now(),
        at_start=lease.microusd_per_gpu_hour,
        posted=None if node is None else node.microusd_per_gpu_hour,
        is_market=lease.line is not None,
        limit=state.job.limit_microusd_per_gpu_hour,
        hourly=lease.hourly_microusd,
        cost=state.cost_microusd(reader.now_s()),
        budget=state.job.budget_microusd,
    )


def _pool(reader: Reader, state: JobState, pool: Pool) -> PoolAnswer:
    job, index = state.job, reader.fleet.capacity.pools[pool]
    price = reader.prices().get(pool, 0)
    rate = job.rate(pool.gpu) if job.may_be_at(pool.site) else 0.0
    return {
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "free": index.free,
        "gpus": index.gpus,
        "microusd_per_gpu_hour": price,
        "rate": rate,
        # What an hour of the job's reference work costs there: the number that compares old and new cards.
        "microusd_per_work_hour": round(price * job.gpus / rate) if rate > 0 else None,
        "verdict": verdict_text(_fit(reader, state, pool, price=price, rate=rate)),
    }


def _fit(reader: Reader, state: JobState, pool: Pool, *, price: int, rate: float) -> PoolFit:
    job, index = state.job, reader.fleet.capacity.pools[pool]
    limit = job.limit_microusd_per_gpu_hour
    here = None if state.open_lease is None else reader.fleet.nodes.get(state.open_lease.node)
    reasons = {
        "here": here is not None and here.pool == pool,
        "other_site": not job.may_be_at(pool.site),
        "other_type": rate <= 0,
        "above_limit": limit is not None and price > limit,
        "too_small": index.gpus < job.gpus,
        "busy": index.free < job.gpus,
    }
    return PoolFit(
        code=next((code for code, holds in reasons.items() if holds), "room"),
        sites=job.sites,
        types=job.gpu_types or tuple(dict(job.rates)),
        limit_microusd=limit or 0,
        gpus=index.gpus,
        free=index.free,
        wanted=job.gpus,
    )
