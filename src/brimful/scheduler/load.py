"""How busy each pool is, recorded hourly, and what its hours cost as a result."""

from __future__ import annotations

from collections.abc import Mapping

from brimful.fleet.events import Event, LoadSeen, TariffSet
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.market.forecast import Forecasts
from brimful.market.tariff import FLAT, HOURS, curve
from brimful.scheduler.auction import Auctions
from brimful.units import HOUR_S


def load_seen(fleet: Fleet, *, now_s: int) -> list[Event]:
    """An event for each pool whose last one is from an earlier hour; none until a job has asked for a GPU.

    A waiting job that could run in several pools counts once, in the largest of them.
    """
    pools = fleet.capacity.pools
    hour = now_s // HOUR_S
    due = [pool for pool in sorted(pools) if pool not in fleet.load or fleet.load[pool].next_hour <= hour]
    if not due or not fleet.submitted:
        return []
    gpus, wanted = dict.fromkeys(pools, 0), dict.fromkeys(pools, 0)
    for node in fleet.nodes.values():
        if node.pool in gpus:
            gpus[node.pool] += node.good_gpus
    for state in fleet.waiting.values():
        able = fleet.able_pools(state.shape)
        if able:
            wanted[max(able, key=lambda pool: (gpus[pool], pool))] += state.job.gpus
    held: dict[Pool, int] = dict.fromkeys(pools, 0)
    for lease in fleet.open_leases.values():
        found = fleet.nodes.get(lease.node)
        if found is not None and found.pool in held:
            held[found.pool] += lease.size
    return [
        LoadSeen(
            at_s=now_s,
            site=pool.site,
            gpu=pool.gpu,
            tier=pool.tier,
            held=held[pool],
            wanted=wanted[pool],
            gpus=gpus[pool],
        )
        for pool in due
    ]


def tariffs(fleet: Fleet, forecasts: Forecasts, market: Auctions | None, *, now_s: int) -> list[Event]:
    """The next curve of every queue pool whose load can be forecast, starting with the current hour.

    A quote for an hour that has not begun may change; what a waiting job was quoted stands (`Quoted`).
    """
    quotes: list[Event] = []
    for pool, line in sorted(fleet.load.items()):
        if pool not in fleet.capacity.pools or (market is not None and market.market.covers(pool)):
            continue
        bands = forecasts.of(pool, line).ahead(HOURS - 1)
        if not bands or line.next_hour != now_s // HOUR_S + 1:
            continue
        known = fleet.tariffs.get(pool)
        permille = curve(
            [line.loads[-1], *(band.likely for band in bands)],
            line.gpus,
            last=FLAT if known is None else known.at(now_s - HOUR_S),
            over=0.0 if known is None else known.over,
        )
        quotes.append(
            TariffSet(at_s=now_s, site=pool.site, gpu=pool.gpu, tier=pool.tier, permille=tuple(permille))
        )
    return quotes


def prices_now(fleet: Fleet, *, now_s: int) -> Mapping[Pool, int]:
    """Per GPU-hour, for a lease that starts now in a queue pool: the posted price times the hour's tariff."""
    posted = fleet.posted_prices()
    if not fleet.tariffs:
        return posted
    return {pool: priced(fleet, pool, usd, at_s=now_s) for pool, usd in posted.items()}


def priced(fleet: Fleet, pool: Pool, posted: int, *, at_s: int) -> int:
    line = fleet.tariffs.get(pool)
    return posted if line is None else posted * line.at(at_s) // FLAT
