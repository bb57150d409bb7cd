"""File access with another user's rights: root must not read or write for a user what that user could not.

A folder that a tenant's processes write to may contain links to anywhere. So we look into it with its owner's
rights (setfsuid(2)), which applies to this thread and to file access only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    # The group first: without root rights it could not be changed, neither now nor back.
    before = _libc().setfsgid(gid)
    _libc().setfsuid(uid)
    try:
        yield
    finally:
        _libc().setfsuid(0)
        _libc().setfsgid(before)


@contextlib.contextmanager
def acting_as_owner(folder: Path) -> Iterator[None]:
    """With the rights of the folder's current owner. Only for folders that nobody but us can have created."""
    try:
        found = folder.lstat()
    except OSError:
        yield
        return
    with acting_as(found.st_uid, found.st_gid):
        yield


def closed_to(path: Path, uid: int, gid: int) -> Path | None:
    """The first folder on the path that the user may not enter; None also if the path is not here."""
    way = [*reversed(path.parents), path, *reversed(path.resolve().parents), path.resolve()]
    for folder, inside in itertools.pairwise(way):
        with acting_as(uid, gid):
            try:
                inside.lstat()
            except PermissionError:
                return folder
            except OSError:
                return None
    return None


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
