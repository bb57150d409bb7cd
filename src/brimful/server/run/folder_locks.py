"""Only one server may act on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from brimful.adapters.files import in_words, open_to_write, read_json
from brimful.client.settings import LOCK_FILE, SERVER_FILE, Settings
from brimful.errors import BrimfulError, WorldFailed
from brimful.language import Plain, Sentence, say

LOCK_TRIES = 20


@contextlib.contextmanager
def locked_folders(settings: Settings) -> Iterator[None]:
    """Hold the data folder, and the runs: two servers on one folder would both act.

    Only servers with one database, which is then not a file in a data folder, may share their runs.
    """
    with contextlib.ExitStack() as held:
        folders = (settings.folder,) if settings.database else (settings.folder, settings.engines_folder)
        for folder in sorted({each.resolve() for each in folders}):  # both may be one, by other names
            held.enter_context(locked_folder(folder))
        yield


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)  # tokens, logs and commands of jobs are private
        lock = open_to_write(folder / LOCK_FILE)
    except OSError as error:
        raise WorldFailed(
            say("server.cannot_use_folder", folder=folder, error=in_words(error)), code="folder_unusable"
        ) from error
    with lock:
        if not _locked(lock):
            raise WorldFailed(
                say("server.folder_in_use", whereabouts=_whereabouts(folder), folder=folder),
                code="already_running",
            )
        yield


def _locked(lock: BinaryIO) -> bool:
    """Take the lock. A command that checks for a server holds it for a moment, so try again."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def _whereabouts(folder: Path) -> Sentence:
    try:
        other = read_json(folder / SERVER_FILE) or {}
        return say("server.other_at", pid=Plain(other["pid"]), url=other["url"])
    except (BrimfulError, OSError, KeyError):
        return say("server.other_unknown")
