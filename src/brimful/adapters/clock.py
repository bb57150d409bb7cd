"""The time of day, without its jumps.

A clock that is set while jobs run would bill hours that nobody had, or end jobs before their time. So the
server counts on from when it began, on a clock that nobody sets, and follows the time of day at a walk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("brimful")

FOLLOW = 0.05  # seconds per second: an hour's jump is made up for in twenty
JUMP_S = 2.0  # below this it is drift, and followed at once as long as time does not go back


def awake_s() -> float:
    """Goes on while the process or the machine sleeps, and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """UTC seconds that never go back and never leap."""

    def __init__(self, wall: Callable[[], float] = time.time, awake: Callable[[], float] = awake_s) -> None:
        self._wall, self._awake = wall, awake
        self._lock = threading.Lock()
        self._now, self._at = wall(), awake()
        self._told = False

    def __call__(self) -> float:
        with self._lock:
            at = self._awake()
            passed = max(0.0, at - self._at)
            self._at = at
            self._now += passed
            off = self._wall() - self._now
            if abs(off) < JUMP_S:
                self._told = False
                self._now += max(off, -passed)
            else:
                self._tell(off)
                step = FOLLOW * passed
                self._now += max(-step, min(step, off))
            return self._now

    def _tell(self, off: float) -> None:
        if not self._told:
            log.warning(
                "the clock of this machine jumped by %+.0f s: followed slowly, nothing is billed", off
            )
        self._told = True
