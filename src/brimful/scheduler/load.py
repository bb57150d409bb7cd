"""How busy each pool is, once an hour: what is held there and what waits for it."""

from __future__ import annotations

from brimful.fleet.events import Event, LoadSeen
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.units import HOUR_S


def load_seen(fleet: Fleet, *, now_s: int) -> list[Event]:
    """An event for each pool whose last one is of an earlier hour; none before anybody has asked for a GPU.

    A job that waits and could run in several pools counts in the largest of them, once.
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
