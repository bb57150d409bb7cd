"""What goes wrong in a rehearsal, drawn from a seed: the same seed breaks the same things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from brimful.fleet.node import Node

DAY_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often things break. All zero: never."""

    node_losses_per_day: float = 0.0  # per node; its jobs fall back to their last checkpoint
    node_back_s: int = 3600
    slow_share: float = 0.0  # share of nodes that run at `slow_rate`, unknown to the scheduler
    slow_rate: float = 0.5
    failed_starts: float = 0.0  # share of starts that fail at once
    lost_checkpoints: float = 0.0  # share of stops after which the saved work cannot be read
    outages_per_day: float = 0.0  # the whole site is unreachable, while its jobs run on
    outage_s: int = 900


@dataclass(frozen=True, slots=True)
class NodeFails:
    node: str


@dataclass(frozen=True, slots=True)
class NodeReturns:
    node: str


@dataclass(frozen=True, slots=True)
class SiteSilent:
    until_s: int


Mishap = NodeFails | NodeReturns | SiteSilent


class Dice:
    """Draws from the seed, in the order in which the world asks."""

    def __init__(self, faults: Faults, nodes: Sequence[Node], *, seed: int) -> None:
        self.faults = faults
        self._nodes = [node.node for node in nodes]
        self._random = Random(seed)  # noqa: S311 - a rehearsal, not a secret
        slow = round(faults.slow_share * len(self._nodes))
        self.slow = frozenset(self._random.sample(self._nodes, slow)) if slow else frozenset()

    def start_fails(self) -> bool:
        return self._chance(self.faults.failed_starts)

    def checkpoint_is_lost(self) -> bool:
        return self._chance(self.faults.lost_checkpoints)

    def next_loss(self, now_s: int) -> tuple[int, NodeFails] | None:
        """When the next node of the fleet goes down, and which."""
        rate = self.faults.node_losses_per_day * len(self._nodes)
        if rate <= 0:
            return None
        at_s = now_s + 1 + int(self._random.expovariate(rate / DAY_S))
        return at_s, NodeFails(self._random.choice(self._nodes))

    def next_outage(self, now_s: int) -> tuple[int, SiteSilent] | None:
        if self.faults.outages_per_day <= 0:
            return None
        at_s = now_s + 1 + int(self._random.expovariate(self.faults.outages_per_day / DAY_S))
        return at_s, SiteSilent(at_s + self.faults.outage_s)

    def _chance(self, share: float) -> bool:
        return share > 0 and self._random.random() < share
