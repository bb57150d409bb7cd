"""What a job prints, with an end to how much of it is kept.

A job writes straight into its log, so that it goes on printing whoever dies. The log is shortened from its
front by giving the disk its old blocks back: the file keeps its offsets, no line is lost or written twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from brimful.adapters.capabilities import LogPiece
from brimful.files import write_whole
from brimful.job import open_plain, read_plain

PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of linux/falloc.h
BLOCK_BYTES = 4096
MARK_BYTES = 40  # more than any number has digits
LINE_BYTES = 1 << 16  # how far a line's end is looked for


def name_of(rank: int) -> str:
    return f"log.{rank}" if rank else "log"


def read(log: Path, *, offset: int, limit: int) -> LogPiece:
    """Up to `limit` bytes from `offset`, or from where the log begins now; a negative one is from the end."""
    try:
        with open_plain(log, below=log.parent) as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            start = file.seek(max(start, min(size, begins(log))))
            return LogPiece(start, file.read(limit), size)
    except FileNotFoundError:
        return LogPiece(0, b"", 0)


def begins(log: Path) -> int:
    """The first byte that is still there."""
    try:
        return max(0, int(read_plain(_mark(log), below=log.parent, most_bytes=MARK_BYTES)))
    except (OSError, ValueError):
        return 0


def shorten(log: Path, *, keep_bytes: int) -> bool:
    """Give back all but about the last `keep_bytes`, once there is twice as much; whether there was."""
    size, start = log.stat().st_size, begins(log)
    if size - start < 2 * keep_bytes:
        return False
    with log.open("r+b") as file:
        file.seek(size - keep_bytes)
        file.readline(LINE_BYTES)  # begin with a whole line
        first = file.tell()
        # Said first: a reader must never be shown the zeros of a hole.
        write_whole(_mark(log), str(first), mode=0o600)
        if not _punch(file.fileno(), first // BLOCK_BYTES * BLOCK_BYTES):
            with contextlib.suppress(OSError):
                _mark(log).unlink()  # this file system cannot: nothing is gone
            return False
    return True


def _punch(handle: int, length: int) -> bool:
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if fallocate is None:
        return False
    kinds = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(*(k(v) for k, v in zip(kinds, (handle, PUNCH_HOLE, 0, length), strict=True))) == 0)


def _mark(log: Path) -> Path:
    return log.with_name(f"{log.name}.start")
