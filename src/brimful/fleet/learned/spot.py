"""When spot capacity came and went: the data that a deadline plan learns from."""

from __future__ import annotations

from dataclasses import dataclass, field

from brimful.fleet.node import Node

CHANGES_KEPT = 1000  # of each pool


@dataclass(slots=True)
class SpotRecord:
    """One spot pool since it was first seen. While it is down, its price is the last one seen."""

    nodes: set[str] = field(default_factory=set)
    changes: list[int] = field(default_factory=list)  # it came (1st, 3rd, ...) and went (2nd, 4th, ...)
    microusd_per_gpu_hour: int = 0

    def came(self, node: Node, *, at_s: int) -> None:
        self.microusd_per_gpu_hour = node.microusd_per_gpu_hour
        if not self.nodes:
            self._change(at_s)
        self.nodes.add(node.node)

    def went(self, node: Node, *, at_s: int) -> None:
        self.nodes.discard(node.node)
        if not self.nodes:
            self._change(at_s)

    def seen(self, *, is_there: bool, microusd_per_gpu_hour: int, at_s: int) -> None:
        """Reported by a provider, even if we hold no node of it."""
        self.microusd_per_gpu_hour = microusd_per_gpu_hour
        if is_there != bool(len(self.changes) % 2) and (is_there or self.changes):
            self._change(at_s)

    def _change(self, at_s: int) -> None:
        self.changes.append(max(at_s, self.changes[-1]) if self.changes else at_s)
        if len(self.changes) > 2 * CHANGES_KEPT:
            del self.changes[:CHANGES_KEPT]  # an even number: the first remaining one is again an arrival
