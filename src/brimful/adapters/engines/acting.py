"""With another user's rights to files: what that user could not read or write, root must not for it.

A folder that a tenant's own processes write in may hold links to anywhere. Whoever looks into it does so
with the rights of its owner (setfsuid(2)): of this thread only, and of files only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    # The group first: without root it could not be changed, neither here nor back.
    before = _libc().setfsgid(gid)
    _libc().setfsuid(uid)
    try:
        yield
    finally:
        _libc().setfsuid(0)
        _libc().setfsgid(before)


@contextlib.contextmanager
def acting_as_owner(folder: Path) -> Iterator[None]:
    """Of a folder that nobody but us can have made, whoever's it is now."""
    try:
        found = folder.lstat()
    except OSError:
        yield
        return
    with acting_as(found.st_uid, found.st_gid):
        yield


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
