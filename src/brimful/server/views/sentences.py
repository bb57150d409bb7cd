"""What views say in words, made of codes and numbers alone: nothing here looks at the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brimful.fleet.job import WHOLE_GPU
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
VERDICTS = {
    "here": "it is here",
    "other_site": "it may only run at {sites}",
    "other_type": "it asks for {types}",
    "above_limit": "above its limit of {limit}",
    "too_small": "too small: {gpus} of the {wanted} it wants",
    "busy": "{free} of the {wanted} it wants are free",
    "room": "has room",
}


class Placement(NamedTuple):
    """Where a job is, and how that was chosen."""

    gpus: int
    gpu: str
    node: str
    site: str
    speed: float | None  # None: nothing was predicted
    pools: int  # that it may use
    types: str  # how one was chosen: a key of TYPES
    sites: Sequence[str]  # where it was told to run
    lease: int  # its number among the job's
    before: str  # why the one before it ended


class LeasePrice(NamedTuple):
    """What a lease pays, in micro-dollars, and what that has come to."""

    gpu: str
    site: str
    gpus: int
    gpu_milli: int
    now: int  # per GPU-hour, as the next ones
    at_start: int
    posted: int | None  # for a lease that begins now
    is_market: bool
    limit: int | None
    hourly: int
    cost: int
    budget: int | None


class PoolFit(NamedTuple):
    """Whether a job could run in a pool, or why not."""

    code: str  # a key of VERDICTS
    sites: Sequence[str]  # that it asks for
    types: Sequence[str]
    limit_microusd: int
    gpus: int  # in the pool
    free: int
    wanted: int


def waiting_text(reason: str, waited_s: int) -> str:
    return f"{reason or 'nothing: the scheduler starts it at its next look'} (for {show_seconds(waited_s)})"


def hold_text(job: str, reason: str) -> str:
    return f"on hold: {reason}; `brimful job release {job}` lets it go on"


def silent_text(site: str, silent_s: int, reason: str) -> str:
    return f"{site} has not answered for {show_seconds(silent_s)} ({reason}); nothing of it starts elsewhere"


def notice_text(left_s: int, reason: str) -> str:
    return f"has to leave in {show_seconds(left_s)}: {reason}"


def placement_text(at: Placement) -> str:
    one_of = f"one of {counted(at.pools, 'pool')} it may use" if at.pools > 1 else "the only pool it may use"
    sites = f"; it was told to run at {' or '.join(at.sites)}" if at.sites else ""
    speed = "" if at.speed is None else f", at {at.speed:.2f} times its reference speed"
    again = f"; lease {at.lease}, after {at.before or 'the last one ended'}" if at.lease > 1 else ""
    return (
        f"{counted(at.gpus, 'GPU')} of {at.gpu} on {at.node} at {at.site}{speed}: {one_of},"
        f" chosen {TYPES[at.types]}{sites}{again}"
    )


def price_text(price: LeasePrice) -> str:
    held = counted(price.gpus, "GPU")
    if price.gpu_milli < WHOLE_GPU:
        held = f"{price.gpu_milli / WHOLE_GPU:g} of a GPU"
    when = "now, as its market cleared" if price.is_market else "when the lease began"
    each = f"{show_usd(price.now)} per GPU-hour, the price of {price.gpu} at {price.site} {when}"
    said = [f"{each}, times {held} is {show_usd(price.hourly)} an hour"]
    if price.is_market and price.now != price.at_start:
        said.append(f"it was {show_usd(price.at_start)} when the lease began")
    elif not price.is_market and price.posted is not None and price.posted != price.now:
        said.append(f"a lease that begins now pays {show_usd(price.posted)} per GPU-hour")
    if price.limit is not None:
        said.append(f"its limit is {show_usd(price.limit)} per GPU-hour")
    said.append(f"{show_usd(price.cost)} so far")
    if price.budget is not None and price.hourly:
        lasts = show_seconds(max(0, price.budget - price.cost) * HOUR_S // price.hourly)
        said.append(f"its budget of {show_usd(price.budget)} lasts {lasts} more")
    return "; ".join(said)


def verdict_text(fit: PoolFit) -> str:
    return VERDICTS[fit.code].format(
        sites=" or ".join(fit.sites),
        types=" or ".join(fit.types),
        limit=show_usd(fit.limit_microusd),
        gpus=fit.gpus,
        free=fit.free,
        wanted=fit.wanted,
    )
