"""How the loop is doing: written by the driver, read by everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from brimful.errors import Said

SILENT_S = 60  # a loop that has not come round for so long is in trouble, whatever it says


class Health:
    def __init__(self, *, tick_s: float) -> None:
        self.problems: Mapping[str, Said] = {}  # by site: why the last tick could not reach it
        self.error = ""  # why the last tick failed, empty while all is well
        self.thread: threading.Thread | None = None  # the loop's, from start to stop
        self._tick_s = tick_s
        self._came_round_s = time.monotonic()

    def came_round(self) -> None:
        self._came_round_s = time.monotonic()

    def trouble(self) -> str:
        """Why the scheduler cannot go on; empty while all is well."""
        if self.error or self.thread is None:
            return self.error
        if not self.thread.is_alive():
            return "the scheduler has ended; see the server's log and start brimful again"
        silent_s = time.monotonic() - self._came_round_s
        if silent_s > SILENT_S + self._tick_s:
            return f"the scheduler has been at one look for {silent_s:.0f} s; an engine or the database hangs"
        return ""
