"""How the loop is doing: written by the driver, read by everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from brimful.errors import Said
from brimful.language import Seconds, say

SILENT_S = 60  # a loop that has not come round for so long is in trouble, whatever it says


class Health:
    def __init__(self, *, tick_s: float) -> None:
        self.problems: Mapping[str, Said] = {}  # by site: why the last tick could not reach it
        self.waiting: Mapping[str, Said] = {}  # by lease: why its engine has not begun it yet
        self.error: Said | None = None  # why the last tick failed, if it did
        self.thread: threading.Thread | None = None  # the loop's, from start to stop
        self._tick_s = tick_s
        self._came_round_s = time.monotonic()

    def came_round(self) -> None:
        self._came_round_s = time.monotonic()

    def trouble(self) -> Said | None:
        """Why the scheduler cannot go on; None while all is well."""
        if self.error or self.thread is None:
            return self.error
        if not self.thread.is_alive():
            return say("server.loop_ended")
        silent_s = time.monotonic() - self._came_round_s
        if silent_s > SILENT_S + self._tick_s:
            return say("server.loop_stuck", silent=Seconds(silent_s))
        return None
