"""Files that are either wholly there or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
