"""Runs on each node of a Ray cluster: a detached actor around the node's agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from brimful.adapters.engines.agent import NodeAgent
from brimful.fleet.state import Node


class RayAgent(NodeAgent):
    """Answers the bridge (bridge.py)."""

    def __init__(self, root: str, node: Node, settings: Mapping[str, Any], idle_s: float) -> None:
        super().__init__(root, node, settings)
        threading.Thread(target=self._end_idle, args=(idle_s,), name="idle", daemon=True).start()

    def _end_idle(self, idle_s: float) -> None:
        """A deployment that is gone leaves no agents behind. Jobs keep running; the next agent finds them."""
        import ray

        while (left_s := self.asked + idle_s - time.monotonic()) > 0:
            time.sleep(left_s)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
