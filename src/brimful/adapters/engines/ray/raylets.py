"""Nodes whose raylet has died, seconds after it: Ray's own health checks take about 15 s by default."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

EVERY_S = 1.0
CONNECT_S = 0.5
AT_ONCE = 32  # connections


class Raylets:
    """A raylet that refuses a connection where it accepted one before is dead: nobody listens there any more.

    Its node never returns under the same id. Nothing else counts: the kernel accepts for a raylet that is
    stopped or busy; a machine that does not answer at all is Ray's to judge; and one behind a firewall that
    rejects us was never reached.
    """

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._dead: frozenset[str] = frozenset()
        self._knocked = -EVERY_S

    def dead(self, nodes: Sequence[Mapping[str, Any]]) -> Collection[str]:
        """Their ids, among nodes that Ray calls alive."""
        now = time.monotonic()
        if nodes and now - self._knocked >= EVERY_S:
            with ThreadPoolExecutor(min(AT_ONCE, len(nodes))) as pool:
                accepts = pool.map(_accepts, nodes)
                answers = {each["NodeID"]: found for each, found in zip(nodes, accepts, strict=True)}
            self._reached = {each for each, found in answers.items() if found or each in self._reached}
            self._dead = frozenset(each for each in self._reached if answers[each] is False)
            self._knocked = now
        return self._dead


def _accepts(node: Mapping[str, Any]) -> bool | None:
    """None: no answer."""
    with suppress(OSError):
        try:
            address = (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
            socket.create_connection(address, timeout=CONNECT_S).close()
        except ConnectionRefusedError:
            return False
        return True
    return None
