"""Identifies this machine's processes by what they carry, never by pid alone.

Pids are reused sooner or later. A process's initial environment is not: every process of a job carries the
job's mark there and passes it on to whatever it starts. Linux shows it in /proc; without /proc nothing is
found and nothing is signalled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from brimful.job import open_plain

PROC = Path("/proc")
# Nobody holds a lock that is missing, or that a job replaced with a link, a pipe or a folder.
NO_LOCK = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
MOST_BYTES = 6 << 20  # arguments and environment: three quarters of the kernel's _STK_LIM
# Only a name that a lease's folder can have: a process may carry anything there.
LEASE = re.compile(rb"\0BRIMFUL_LEASE=([A-Za-z0-9_-][A-Za-z0-9._-]{0,99})(?=\0)")
ENGINE = re.compile(rb"\0BRIMFUL_ENGINE=([0-9a-f]{32})(?=\0)")
GONE = "ZX"  # a zombie has ended and holds nothing; its parent has not reaped it yet


def born(pid: int) -> str | None:
    """When the process started, in kernel ticks: distinguishes it from a later one with the same pid."""
    try:
        # The name in parentheses may contain anything, even parentheses and spaces.
        facts = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if facts[0] in GONE else facts[19]
    except (OSError, IndexError):
        return None


def boot_s() -> int | None:
    """When this machine booted: no process is older."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return int(line.split()[1])
    return None


def marked(mark: Mapping[str, str]) -> Iterator[int]:
    """Our living processes that were started with these environment variables."""
    assert mark, "everything would match"
    for pid in _pids():
        if pid != os.getpid() and carries(pid, mark):
            yield pid


class Living(NamedTuple):
    lease: str
    pid: int
    uid: int


def leases_living(engines: Collection[str]) -> Iterator[Living]:
    """Each living process that an engine with one of these ids started, by what it carries.

    Any job can carry another's lease id: only its uid shows whether it may.
    """
    for pid in _pids() if engines else ():
        carried = _carried(pid)
        if any(name.decode() in engines for name in ENGINE.findall(carried)):
            with contextlib.suppress(OSError):
                uid = (PROC / str(pid)).stat().st_uid
                yield from (Living(name.decode(), pid, uid) for name in LEASE.findall(carried))


def runs_alive(engines: Collection[str]) -> dict[str, list[int]]:
    """By lease: the living processes that these engines started."""
    found: dict[str, list[int]] = {}
    for each in leases_living(engines):
        found.setdefault(each.lease, []).append(each.pid)
    return found


def signal_marked(mark: Mapping[str, str], number: int) -> None:
    """Signal exactly these processes: each is pinned by a pidfd before it is checked again."""
    for pid in marked(mark):
        # Gone in the meantime, or a kernel without pidfd: the next attempt finds the rest.
        with contextlib.suppress(OSError), _pidfd(pid) as handle:
            if carries(pid, mark):
                _signal(handle, number)


def held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        with open_plain(path, below=path.parent) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in NO_LOCK:
            return False
        raise


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _carried(pid: int) -> bytes:
    """Its initial environment, with a zero byte before and after each entry.

    A process can map any of its memory there (PR_SET_MM_MAP), and any amount: we read no more than a program
    can be started with.
    """
    try:
        # Readable only for processes of our own user, which jobs run as.
        with (PROC / str(pid) / "environ").open("rb") as file:
            return b"\0" + file.read(MOST_BYTES) + b"\0"
    except OSError:
        return b""


def carries(pid: int, mark: Mapping[str, str]) -> bool:
    carried = _carried(pid)
    return all(_is_in(carried, key, value) for key, value in mark.items())


def _is_in(carried: bytes, key: str, value: str) -> bool:
    return f"\0{key}={value}\0".encode() in carried


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    if sys.platform != "linux":
        raise OSError("there is no pidfd here")
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _signal(handle: int, number: int) -> None:
    if sys.platform == "linux":
        signal.pidfd_send_signal(handle, number)
