"""Runs beside a job: asks the cloud whether it takes this machine back, and keeps its latest answer."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brimful.adapters.providers.notices import Notice

FIRST_S = 2.0  # maximum wait for a first answer before any work is offered
ASK_S = 2.0  # between two requests: the shortest notice is half a minute


class CloudWord:
    """Polls in a separate thread, which ends with the process; `notice` never blocks.

    `first` waits for the first answer: until then, the absence of a notice means nothing.
    """

    def __init__(self, words: str) -> None:
        from brimful.adapters.providers.notices import asker  # HTTP, which few runners need

        self._ask = asker(words)
        self.notice: Notice | None = None
        self._over = threading.Event()
        self._asked = threading.Event()
        threading.Thread(target=self._run, name="cloud", daemon=True).start()

    def _run(self) -> None:
        from http.client import HTTPException

        while not self._over.is_set():
            # No answer is no news: the previous one still holds.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, HTTPException):
                self.notice = self._ask()
            self._asked.set()
            self._over.wait(ASK_S)

    def first(self) -> Notice | None:
        self._asked.wait(FIRST_S)
        return self.notice

    def stop(self) -> None:
        self._over.set()


def cloud_word(words: str) -> CloudWord | None:
    return CloudWord(words) if words else None
