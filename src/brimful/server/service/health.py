"""The health of the loop, the database and the disk: written by those that check, read by everyone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from brimful.errors import Said
from brimful.fleet.events import SiteLost
from brimful.language import Seconds, Size, say

LEAST_TICK_S = 1.0  # a loop that ticks more often gets as much time as one that ticks every second
LEAST_FREE_BYTES = 1 << 20  # with less, the next write may fail


class Health:
    def __init__(self, *, tick_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.problems: Mapping[str, Said] = {}  # by site: why the last tick could not reach it
        self.unwatched: Mapping[str, SiteLost] = {}  # sites that are only watched and do not answer
        self.waiting: Mapping[str, Said] = {}  # by lease: why its engine has not started it yet
        self.error: Said | None = None  # why the last tick failed, if it did
        self.store_gone: Said | None = None  # why the database cannot be used: nothing is written to it
        self.free_bytes: int | None = None  # of the fullest disk
        self.thread: threading.Thread | None = None  # the loop's, from start to stop
        self.engine_s: Mapping[str, Mapping[str, float]] = {}  # by site and step, how long it takes
        self.backup_age_s: Callable[[], float] | None = None  # where backups are scheduled
        self.backup_period_s = 0.0
        self.ticks, self.ticking_s, self.last_tick_s = 0, 0.0, 0.0
        tick_s = max(LEAST_TICK_S, tick_s)
        self.patience_s = 2 * tick_s
        # A check that hangs has begun up to one interval after the trouble: together no more than two ticks.
        self.probe_every_s, self.probe_patience_s = tick_s / 2, 1.5 * tick_s
        self._clock = clock
        self._began: float | None = None  # the current tick
        self._probing: float | None = None  # the current check of database and disk

    def began_tick(self) -> None:
        self._began = self._clock()

    def ended_tick(self) -> None:
        took_s = 0.0 if self._began is None else self._clock() - self._began
        self.ticks, self.ticking_s, self.last_tick_s = self.ticks + 1, self.ticking_s + took_s, took_s
        self._began = None

    def began_probe(self) -> None:
        self._probing = self._clock()

    def ended_probe(self, *, store_gone: Said | None, free_bytes: int | None) -> None:
        self.store_gone, self.free_bytes, self._probing = store_gone, free_bytes, None

    @property
    def stuck_s(self) -> float:
        """How long the loop has been in one tick, if that is too long; otherwise 0."""
        began = self._began
        took_s = 0.0 if began is None else self._clock() - began
        return took_s if took_s >= self.patience_s else 0.0

    def trouble(self) -> Said | None:
        """Why the scheduler cannot continue; None while all is well."""
        return self.open_trouble() if self.error is None else self.error

    def open_trouble(self) -> Said | None:
        """The same in words safe for anyone: no path, no address."""
        if self.thread is not None and not self.thread.is_alive():
            return say("server.loop_ended")
        if self.free_bytes is not None and self.free_bytes < LEAST_FREE_BYTES:
            return say("server.disk_full", free=Size(self.free_bytes))
        probing = self._probing
        if self.store_gone is not None or (
            probing is not None and self._clock() - probing >= self.probe_patience_s
        ):
            return say("server.store_gone")
        if self.stuck_s:
            return say("server.loop_stuck", silent=Seconds(self.stuck_s))
        return None if self.error is None else say("server.loop_fails")
