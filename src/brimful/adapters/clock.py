"""Wall-clock time without its jumps.

If the clock is set while jobs run, tenants would be billed for hours they never had, or jobs would end early.
So the server counts from its start on a monotonic clock and slews slowly towards the wall clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("brimful")

FOLLOW = 0.05  # seconds per second: a one-hour jump is absorbed in twenty hours
JUMP_S = 2.0  # less than this is drift: followed at once, as long as time does not go back


def awake_s() -> float:
    """Monotonic, and keeps counting while the process or the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """UTC seconds that never go back and never jump."""

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
