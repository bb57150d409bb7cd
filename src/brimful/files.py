"""Files that are either wholly there or not at all, and opening the ones that somebody named."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """Written beside, flushed to disk, renamed over `path`: a reader or a crash never meets half a file."""
    beside = path.with_name(f".{path.name}.{os.urandom(6).hex()}")

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if mode is None else 0o600)

    with open(beside, "xb", opener=opened) as file:
        try:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def write_whole(path: Path, data: str | bytes, *, mode: int | None = None) -> None:
    with replacing(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def open_given(path: Path, *, or_pipe: bool = False) -> BinaryIO:
    """A regular file that somebody named: a device has no end, and a pipe may have no writer to wait for.

    With `or_pipe` a pipe such as `<(...)` will do; one that nobody writes to is empty.
    """
    _check_kind(os.stat(path), path, or_pipe=or_pipe)  # noqa: PTH116 - opening a device may already do something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_kind(os.fstat(handle), path, or_pipe=or_pipe)  # it may be another one by now
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_kind(found: os.stat_result, path: Path, *, or_pipe: bool) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(found.st_mode) or (or_pipe and stat.S_ISFIFO(found.st_mode))):
        raise OSError(errno.ENXIO, "not a regular file", str(path))


def read_given(
    path: Path, *, most: int, too_large: Callable[[int], Exception], or_pipe: bool = False
) -> bytes:
    """All of it, or `too_large` of the size known so far; at most one byte more than `most` is read."""
    with open_given(path, or_pipe=or_pipe) as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(most + 1) if size <= most else b""  # it may have grown, or not report its size
    if max(size, len(raw)) > most:
        raise too_large(max(size, len(raw)))
    return raw
