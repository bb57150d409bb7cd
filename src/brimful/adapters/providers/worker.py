"""One worker per provider: the loop never waits for a cloud.

News of a node is held back while an order for it is in progress or was completed after the look: a missing
node means nothing then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from brimful.adapters.engines.worker import Order, Permit, Worker, no_limit
from brimful.fleet.events import NodeOrdered
from brimful.scheduler.cloud.providers import CannotMake, Made, Provider
from brimful.scheduler.ports import Failures
from brimful.specs.offer import Offer

SILENT_S = 120.0  # clouds are slow
LOOK_S = 5.0  # between two looks, unless something was ordered


class ProviderWorker(Worker):
    """The scheduler's Provider port, answered from memory."""

    certain = CannotMake
    again_s = 30.0  # what a cloud is asked for takes minutes

    def __init__(
        self,
        provider: Provider,
        *,
        tell: Callable[[], object] = lambda: None,
        permit: Permit = no_limit,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        super().__init__(provider.name, tell=tell, permit=permit, clock=clock, silent_s=silent_s)
        self._provider = provider
        self._last: tuple[Sequence[Offer], Sequence[Made]] | None = None
        self._asked = float("-inf")  # when it last looked

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def sites(self) -> Sequence[str]:
        return self._provider.sites

    # -- what the loop asks ------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        with self._lock:
            acted = max(self._acted.values(), default=float("-inf"))
            if self._clock() - self._asked >= LOOK_S or acted >= self._asked:
                self._ask_for_look()
            self._check_heard(is_known=self._last is not None)
            assert self._last is not None
            return self._last[0]

    def watch(self) -> Sequence[Made]:
        with self._lock:
            self._check_heard(is_known=self._last is not None)
            assert self._last is not None
            made = {each.node: each for each in self._last[1]}
            self._forget(made)
            unsure = self._unsure() | {name for name, at in self._acted.items() if at >= self._asked}
            return [*made.values(), *(Made(name, "starting", 0) for name in unsure - made.keys())]

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        return self._give("make", {order.node: order for order in orders})

    def remove(self, nodes: Sequence[str]) -> Failures:
        return self._give("remove", dict.fromkeys(nodes))

    # -- what the worker does ----------------------------------------------------------------------------

    def _ask_world(self) -> tuple[Sequence[Offer], Sequence[Made]]:
        with self._timed("offers"):
            offers = self._provider.offers()
        with self._timed("watch"):
            return offers, self._provider.watch()

    def _keep(self, found: tuple[Sequence[Offer], Sequence[Made]], *, at: float) -> bool:
        before, self._last, self._asked = self._last, found, at
        return before is None or before[0] is not found[0] or before[1] != found[1]

    def _act(self, orders: Sequence[Order]) -> Failures:
        if orders[0].kind == "make":
            return self._provider.make([order.what for order in orders])
        return self._provider.remove([order.name for order in orders])
