"""Repeated background work that survives any error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from brimful.errors import BrimfulError

log = logging.getLogger("brimful")


class Beside:
    """A thread that does one thing at an interval until stopped; with `leads`, only while that is true."""

    def __init__(
        self,
        name: str,
        act: Callable[[], None],
        *,
        every_s: float,
        at_once: bool = True,
        leads: Callable[[], bool] | None = None,
    ) -> None:
        self._name, self._act, self._every_s, self._leads = name, act, every_s, leads
        self._first_s = 0.0 if at_once else every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within_s: float = 5.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._stopping.wait(wait_s):
            wait_s = self._every_s
            try:
                if self._leads is None or self._leads():
                    self._act()
            except BrimfulError as error:
                log.warning("%s: %s", self._name, error.problem)
            except Exception:  # without this thread nobody would look any more
                log.exception("internal error in the thread %s; trying again", self._name)
