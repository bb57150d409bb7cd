"""The simplest clearing: every pool has the price its owner posted."""

from __future__ import annotations

from brimful.fleet.state import Fleet, Pool


class PostedPrice:
    """One price per pool: the highest ask among its nodes, so that no supply is used below its ask."""

    def clear(self, fleet: Fleet, *, now_s: int) -> dict[Pool, int]:  # noqa: ARG002 - a tariff will need it
        prices: dict[Pool, int] = {}
        for node in fleet.nodes.values():
            prices[node.pool] = max(prices.get(node.pool, 0), node.microusd_per_gpu_hour)
        return prices
