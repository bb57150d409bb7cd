"""The simplest clearing: every pool has the price its owner posted."""

from __future__ import annotations

from brimful.fleet.state import Fleet, Pool


class PostedPrice:
    """One price per pool: the highest ask among its nodes, so that no supply is used below its ask."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._at = -1
        self._prices: dict[Pool, int] = {}

    def clear(self, fleet: Fleet, *, now_s: int) -> dict[Pool, int]:  # noqa: ARG002 - a tariff will need it
        if fleet is self._fleet and fleet.nodes_changed == self._at:
            return self._prices
        prices: dict[Pool, int] = {}
        for node in fleet.nodes.values():
            prices[node.pool] = max(prices.get(node.pool, 0), node.microusd_per_gpu_hour)
        self._fleet, self._at, self._prices = fleet, fleet.nodes_changed, prices
        return prices
