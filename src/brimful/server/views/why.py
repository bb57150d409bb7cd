"""Why a job waits, why it is where it is, and why an hour there costs what it costs. With the numbers."""

from __future__ import annotations

from brimful.client.answers import PoolAnswer, WhyAnswer
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import OVER, JobState, Pool
from brimful.scheduler.policies.order import waiting_in_order
from brimful.scheduler.policies.stop import cost_microusd
from brimful.server.service.reader import Reader
from brimful.units import HOUR_S, counted, show_seconds, show_usd

# What each way to choose a pool means, in the words of policies/types.py.
TYPES = {
    "tight": "where it leaves the fewest GPUs over",
    "rotate": "each GPU type in turn",
    "fast": "where it runs fastest",
    "cheap": "where an hour of its work costs least",
    "unpredicted": "where it leaves the fewest GPUs over, the less dear of equals",
    "advantage": "where its speed is highest against what the GPU is worth to others",
}


def why_view(reader: Reader, state: JobState) -> WhyAnswer:
    with reader.locked():
        name = state.job.job
        pools = [_pool(reader, state, pool) for pool in sorted(reader.fleet.capacity.pools)]
        waits = state.phase == "waiting"
        return {
            "job": name,
            "phase": state.phase,
            "waiting": _waiting(reader, state),
            "ahead": _ahead(reader, name) if waits else None,
            "here": _here(reader, state, pools),
            "price": _price(reader, state),
            "pools": [] if state.phase in OVER else pools,
        }


def _waiting(reader: Reader, state: JobState) -> str | None:
    if state.phase == "held":
        return f"on hold: {state.hold_reason}; `brimful release {state.job.job}` lets it go on"
    if state.phase != "waiting":
        return None
    reason = reader.why_waiting(state.job.job) or "nothing: the scheduler starts it at its next look"
    waited = show_seconds(max(0, reader.now_s() - state.waiting_since_s))
    return f"{reason} (for {waited})"


def _ahead(reader: Reader, name: str) -> int:
    order = waiting_in_order(reader.fleet, reader.rules, now_s=reader.now_s())
    for ahead, each in enumerate(order):
        if each.job.job == name:
            return ahead
    return 0


def _here(reader: Reader, state: JobState, pools: list[PoolAnswer]) -> str | None:
    lease = state.open_lease
    if lease is None:
        return None
    could = [each for each in pools if each["rate"] > 0]
    one_of = (
        f"one of {counted(len(could), 'pool')} it may use" if len(could) > 1 else "the only pool it may use"
    )
    types = reader.rules.types
    by = TYPES["unpredicted" if types == "cheap" and not state.job.rates else types]
    sites = f"; it was told to run at {' or '.join(state.job.sites)}" if state.job.sites else ""
    speed = f", at {lease.speed:.2f} times its reference speed" if state.job.rates else ""
    number = sum(1 for each in state.leases)
    again = f"; lease {number}, after {state.leases[-2].reason or 'the last one ended'}" if number > 1 else ""
    return (
        f"{counted(lease.size, 'GPU')} of {lease.gpu} on {lease.node} at {lease.site}{speed}: {one_of},"
        f" chosen {by}{sites}{again}"
    )


def _price(reader: Reader, state: JobState) -> str | None:
    lease, job, now_s = state.open_lease, state.job, reader.now_s()
    if lease is None:
        return None
    node, now = reader.fleet.nodes.get(lease.node), lease.price_now()
    hourly = lease.hourly_microusd
    held = counted(lease.size, "GPU")
    if lease.gpu_milli < WHOLE_GPU:
        held = f"{lease.gpu_milli / WHOLE_GPU:g} of a GPU"
    when = "when the lease began" if lease.line is None else "now, as its market cleared"
    each = f"{show_usd(now)} per GPU-hour, the price of {lease.gpu} at {lease.site} {when}"
    said = [f"{each}, times {held} is {show_usd(hourly)} an hour"]
    if lease.line is not None and now != lease.microusd_per_gpu_hour:
        said.append(f"it was {show_usd(lease.microusd_per_gpu_hour)} when the lease began")
    elif lease.line is None and node is not None and node.microusd_per_gpu_hour != now:
        said.append(f"a lease that begins now pays {show_usd(node.microusd_per_gpu_hour)} per GPU-hour")
    if job.limit_microusd_per_gpu_hour is not None:
        said.append(f"its limit is {show_usd(job.limit_microusd_per_gpu_hour)} per GPU-hour")
    cost = cost_microusd(state, now_s=now_s)
    said.append(f"{show_usd(cost)} so far")
    if job.budget_microusd is not None and hourly:
        left = max(0, job.budget_microusd - cost)
        lasts = show_seconds(left * HOUR_S // hourly)
        said.append(f"its budget of {show_usd(job.budget_microusd)} lasts {lasts} more")
    return "; ".join(said)


def _pool(reader: Reader, state: JobState, pool: Pool) -> PoolAnswer:
    job, index = state.job, reader.fleet.capacity.pools[pool]
    price = reader.prices().get(pool, 0)
    rate = job.rate(pool.gpu) if job.may_be_at(pool.site) else 0.0
    limit = job.limit_microusd_per_gpu_hour
    here = None if state.open_lease is None else reader.fleet.nodes.get(state.open_lease.node)
    if here is not None and here.pool == pool:
        verdict = "it is here"
    elif not job.may_be_at(pool.site):
        verdict = f"it may only run at {' or '.join(job.sites)}"
    elif rate <= 0:
        verdict = f"it asks for {' or '.join(job.gpu_types or dict(job.rates))}"
    elif limit is not None and price > limit:
        verdict = f"above its limit of {show_usd(limit)}"
    elif index.gpus < job.gpus:
        verdict = f"too small: {index.gpus} of the {job.gpus} it wants"
    elif index.free < job.gpus:
        verdict = f"{index.free} of the {job.gpus} it wants are free"
    else:
        verdict = "has room"
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
        "verdict": verdict,
    }
