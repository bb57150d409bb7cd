"""A job's output, with a limit on how much of it is kept.

A job writes directly to its log, so it can keep printing even if brimful's processes die. The log is
shortened from the front by freeing its old disk blocks: the file keeps its offsets, and no line is lost or
written twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.files import open_to_write
from brimful.files import write_whole
from brimful.job import open_plain, read_plain

PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of linux/falloc.h
BLOCK_BYTES = 4096
MARK_BYTES = 40  # more than the digits of any number
LINE_BYTES = 1 << 16  # how far we look for the end of a line


def name_of(rank: int) -> str:
    return f"log.{rank}" if rank else "log"


def read(log: Path, *, offset: int, limit: int) -> LogPiece:
    """Up to `limit` bytes from `offset`, or from the log's current start; negative: from the end."""
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
    """Free all but about the last `keep_bytes` once there is twice as much; returns whether there was."""
    size, start = log.lstat().st_size, begins(log)
    if size - start < 2 * keep_bytes:
        return False
    with open_to_write(log, 0) as file:
        file.seek(size - keep_bytes)
        file.readline(LINE_BYTES)  # start at a full line
        first = file.tell()
        # Written first: a reader must never see the zeros of a hole.
        write_whole(_mark(log), str(first), mode=0o600)
        if not _punch(file.fileno(), first // BLOCK_BYTES * BLOCK_BYTES):
            with contextlib.suppress(OSError):
                _mark(log).unlink()  # not supported by this file system: nothing was freed
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
