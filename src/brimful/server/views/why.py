"""Why a job waits, why it is where it is, and why an hour there costs what it costs. With the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brimful.client.answers import PoolAnswer, WhyAnswer, alike
from brimful.errors import Said
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import OVER, JobState, Lease, Pool
from brimful.language import Number, Seconds, Sentence, Several, Usd, count, either, say, told
from brimful.scheduler.ordering import waiting_in_order
from brimful.server.service.reader import Reader
from brimful.server.views.forecast import chance_of
from brimful.server.views.jobs import promise_view
from brimful.server.views.policy import policy_said
from brimful.units import HOUR_S


def why_view(reader: Reader, state: JobState) -> WhyAnswer:
    with reader.locked():
        name, lease = state.job.job, state.open_lease
        pools = [pool_view(reader, state, pool) for pool in sorted(reader.fleet.capacity.pools)]
        waiting = _waiting(reader, state)
        ended = state.reason if state.phase in OVER else None
        usable = sum(pool["rate"] > 0 for pool in pools)
        return {
            "promise": promise_view(reader, state),
            "job": name,
            "phase": state.phase,
            "ended": told(ended) if ended else None,
            "ended_code": ended.as_dict() if ended else None,
            "waiting": told(waiting) if waiting else None,
            "waiting_code": waiting.as_dict() if waiting else None,
            "ahead": _ahead(reader, name) if state.phase == "waiting" else None,
            "policy": told(policy_said(reader)),
            "here": _joined(_placement(reader, state, lease, usable)) if lease else None,
            "price": _joined(_price(reader, state, lease)) if lease else None,
            "pools": [] if state.phase in OVER else pools,
        }


def _joined(parts: Iterator[Sentence]) -> str:
    return told(Several(tuple(parts), "; "))


def _waiting(reader: Reader, state: JobState) -> Said | None:
    if state.phase == "held":
        return say("server.on_hold", reason=state.hold_reason or "", job=state.job.job)
    if state.phase == "pending":
        return reader.fleet.gates.why(state.job)
    if state.phase == "starting" and state.open_lease is not None:
        return reader.health.waiting.get(state.open_lease.lease)
    if state.phase != "waiting":
        return None
    reason = reader.why_waiting(state.job.job) or say("server.starts_at_next_look")
    waited_s = max(0, reader.now_s() - state.waiting_since_s)
    return say("server.waiting", reason=reason, waited=Seconds(waited_s))


def _ahead(reader: Reader, name: str) -> int:
    order = waiting_in_order(reader.fleet, reader.rules, now_s=reader.now_s())
    return next((ahead for ahead, each in enumerate(order) if each.job.job == name), 0)


def _placement(reader: Reader, state: JobState, lease: Lease, pools: int) -> Iterator[Sentence]:
    """Where it is, and how that was chosen."""
    types, predicted = reader.rules.types, bool(state.job.rates)
    nodes = ", ".join(name for name, _ in lease.parts)
    yield say("server.placed", gpus=count("gpu", lease.size), gpu=lease.gpu, node=nodes, site=lease.site)
    if predicted:
        yield say("server.placed_speed", speed=Number(lease.speed, 2))
    how = say(f"server.chosen_{'unpredicted' if types == 'cheap' and not predicted else types}")
    one_of = say("server.one_of_pools", pools=count("pool", pools)) if pools > 1 else say("server.only_pool")
    yield say("server.pool_chosen", pool=one_of, how=how)
    if state.job.sites:
        yield say("server.told_sites", sites=either(state.job.sites))
    if lease.notice_s is not None and lease.phase == "running":
        left = Seconds(max(0, lease.notice_s - reader.now_s()))
        yield say("server.notice", left=left, reason=lease.notice)
    if len(state.leases) > 1:
        before = state.leases[-2].reason or say("server.last_lease_ended")
        yield say("server.lease_after", number=len(state.leases), before=before)


def _price(reader: Reader, state: JobState, lease: Lease) -> Iterator[Sentence]:
    """What the lease pays, and its cost so far."""
    if lease.reservation:
        yield say("server.price_reserved", reservation=lease.reservation)
        return
    node, now, start = reader.fleet.nodes.get(lease.node), lease.price_now(), lease.microusd_per_gpu_hour
    held = count("gpu", lease.size)
    if lease.gpu_milli < WHOLE_GPU:
        held = say("server.share_of_gpu", share=Number(lease.gpu_milli / WHOLE_GPU, 2))
    is_market, hourly = lease.line is not None, lease.hourly_microusd
    since = say("server.price_cleared") if is_market else say("server.price_at_grant")
    facts = {"price": Usd(now), "gpu": lease.gpu, "site": lease.site, "held": held, "hourly": Usd(hourly)}
    yield say("server.price", **facts, since=since)
    if is_market and now != start:
        yield say("server.price_was", price=Usd(start))
    elif not is_market and node is not None and node.microusd_per_gpu_hour != now:
        yield say("server.price_of_new_lease", price=Usd(node.microusd_per_gpu_hour))
    if state.job.limit_microusd_per_gpu_hour is not None:
        yield say("server.price_limit", price=Usd(state.job.limit_microusd_per_gpu_hour))
    cost, budget = state.cost_microusd(reader.now_s()), state.job.budget_microusd
    yield say("server.cost_so_far", cost=Usd(cost))
    if budget is not None and hourly:
        lasts = Seconds(max(0, budget - cost) * HOUR_S // hourly)
        yield say("server.budget_lasts", budget=Usd(budget), lasts=lasts)


def pool_view(reader: Reader, state: JobState, pool: Pool) -> PoolAnswer:
    job, index = state.job, reader.fleet.capacity.pools[pool]
    price = reader.prices().get(pool, 0)
    rate = job.rate(pool.gpu) if job.may_be_in(site=pool.site, tier=pool.tier) else 0.0
    return {
        **alike(PoolAnswer, pool, index),
        "microusd_per_gpu_hour": price,
        "rate": rate,
        # The cost of an hour of the job's reference work there: comparable between old and new cards.
        "microusd_per_work_hour": round(price * job.gpus / rate) if rate > 0 else None,
        "chance": chance_of(reader, state, pool) if rate > 0 else None,
        "verdict": told(_verdict(reader, state, pool, price=price, rate=rate)),
    }


def _verdict(reader: Reader, state: JobState, pool: Pool, *, price: int, rate: float) -> Sentence:
    """Whether it could run there, or the first reason why not."""
    job, index = state.job, reader.fleet.capacity.pools[pool]
    limit = job.limit_microusd_per_gpu_hour
    here = None if state.open_lease is None else reader.fleet.nodes.get(state.open_lease.node)
    reasons = (
        (here is not None and here.pool == pool, say("server.pool_here")),
        (
            not job.may_be_in(site=pool.site, tier=pool.tier),
            say("server.pool_other_site", sites=_any_of(job.sites or job.tiers)),
        ),
        (rate <= 0, say("server.pool_other_type", types=_any_of(job.gpu_types or tuple(dict(job.rates))))),
        (limit is not None and price > limit, say("server.pool_above_limit", limit=Usd(limit or 0))),
        (index.gpus < job.gpus, say("server.pool_too_small", gpus=index.gpus, wanted=job.gpus)),
        (index.free < job.gpus, say("server.pool_busy", free=index.free, wanted=job.gpus)),
    )
    return next((verdict for holds, verdict in reasons if holds), say("server.pool_has_room"))


def _any_of(names: Sequence[str]) -> object:
    return either(names) if names else ""
