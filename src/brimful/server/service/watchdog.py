"""Checks that run off the loop, so that they still work when the loop itself is stuck."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from brimful.adapters.engines.worker import Worker
from brimful.errors import BrimfulError, Said
from brimful.language import os_words, say
from brimful.server.service.health import Health

log = logging.getLogger("brimful")

PACKAGE = Path(__file__).parents[2]
SHOWN_FRAMES = 4


class Watchdog:
    """Names the step that is stuck, of the loop and of each site's worker. Never blocks."""

    def __init__(self, health: Health, workers: Callable[[], Collection[Worker]]) -> None:
        self._health, self._workers = health, workers
        self._is_told = False

    def look(self) -> None:
        workers = self._workers()
        self._health.engine_s = {worker.site: worker.latency() for worker in workers}
        for worker in workers:
            if (stuck := worker.stuck()) is not None:
                log.warning("site %s is stuck: %s has taken %.0f s", worker.site, *stuck)
        stuck_s, thread = self._health.stuck_s, self._health.thread
        if stuck_s and not self._is_told and thread is not None and thread.ident is not None:
            where = " < ".join(reversed(list(_frames(thread.ident))[-SHOWN_FRAMES:]))
            log.warning("the scheduler is stuck: one tick has taken %.0f s, in %s", stuck_s, where)
        self._is_told = bool(stuck_s)


def _frames(thread: int) -> Iterator[str]:
    """Our functions that the thread is in, innermost last."""
    frame = sys._current_frames().get(thread)
    for each in traceback.extract_stack(frame) if frame is not None else ():
        path = Path(each.filename)
        if path.is_relative_to(PACKAGE):
            yield f"{path.relative_to(PACKAGE).with_suffix('')}.{each.name}"


class Probe:
    """Checks that the database answers and the disks have room. May hang: that is reported too."""

    def __init__(self, health: Health, store: object, folders: Sequence[Path]) -> None:
        self._health, self._store, self._folders = health, store, folders

    def look(self) -> None:
        self._health.began_probe()
        gone: Said | None = None
        try:
            ping = getattr(self._store, "ping", None)  # a test's store may not have it
            if ping is not None:
                ping()
        except BrimfulError as error:
            gone = error.said
        free: list[int] = []
        for folder in self._folders:
            try:
                free.append(shutil.disk_usage(folder).free)
            except OSError as error:
                gone = gone or say("server.folder_gone", folder=os.fspath(folder), error=os_words(error))
        before = self._health.store_gone
        if gone is not None and (before is None or before.as_dict() != gone.as_dict()):
            log.error("%s", gone)
        self._health.ended_probe(store_gone=gone, free_bytes=min(free, default=None))
