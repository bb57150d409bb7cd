"""A file system of its own that is really full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import missing

DISK_MIB = 8


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """In memory, mounted there."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "brimful-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        missing("a file system of its own", f"only root can mount one: {made.stderr.strip()}")
    folder.chmod(0o700)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """To the last block."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    assert os.statvfs(path).f_bfree == 0
