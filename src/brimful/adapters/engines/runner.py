"""The small process that stands between brimful and a job: `python -m brimful.adapters.engines.runner DIR`.

It starts the job, waits for it, and writes down how it ended, so that a job outlives the server and the
server learns of its end whenever it comes back. Everything it knows stands in its lease folder:

    order.json    what to run (written by the engine)
    started.json  written before the job is started: whoever finds it never starts the job again
    child.json    the job's process group
    stop.json     somebody wants it to end (written by the engine), with the grace period
    ended.json    exit code and time: nothing of the job runs any more
    log           what the job printed
    lock          held by runner and job as long as anything of them lives: no pid can be mistaken
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from brimful.adapters.files import read_json, write_json

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NOT_FOUND, NOT_STARTED = 127, 126  # what a shell says for these


def main(folder: Path) -> int:
    order = read_json(folder / "order.json")
    assert order is not None, "the engine writes the order before it calls the runner"
    with (folder / "lock").open("w") as lock, (folder / "runner.lock").open("w") as own:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # another runner has it
        if (folder / "started.json").exists():
            return 0  # it ran before; a job is never run twice under one lease
        if (folder / "stop.json").exists():
            write_json(folder / "ended.json", {"exit_code": None, "problem": "stopped before it began"})
            return 0
        _adopt_orphans()
        stopper = _Stopper(folder)  # before anybody can learn our pid and signal it
        write_json(folder / "started.json", {"at_s": int(time.time()), "pid": os.getpid()})
        exit_code, problem = _run(folder, order, lock.fileno(), stopper)
        ended = {"at_s": int(time.time()), "exit_code": exit_code, "problem": problem}
        write_json(folder / "ended.json", ended)
    return 0


def _run(folder: Path, order: dict[str, Any], lock: int, stopper: _Stopper) -> tuple[int | None, str]:
    """Start the job, wait for its end and for the end of everything it started."""
    with (folder / "log").open("ab") as log:
        try:
            child = subprocess.Popen(
                order["command"],
                cwd=order["folder"],
                env=order["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
            )
        except OSError as error:
            return _not_started(order, error)
    write_json(folder / "child.json", {"group": child.pid, "born": born(child.pid)})
    stopper.watch(child.pid)
    code = child.wait()
    signal.alarm(0)
    _end_the_rest(child.pid)
    if code < 0:
        return 128 - code, f"killed by {signal.Signals(-code).name}"
    return code, "" if code == 0 else f"exit code {code}"


def _not_started(order: dict[str, Any], error: OSError) -> tuple[int, str]:
    if not Path(order["folder"]).is_dir():
        return NOT_STARTED, f"cannot start: there is no folder {order['folder']}"
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, f"cannot start: no command {order['command'][0]!r} on the PATH of the job"
    return NOT_STARTED, f"cannot start {order['command'][0]!r}: {error.strerror}"


class _Stopper:
    """On SIGTERM asks the job to end, and kills it when its grace is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._group: int | None = None
        signal.signal(signal.SIGTERM, lambda _signal, _frame: self._ask())
        signal.signal(signal.SIGALRM, lambda _signal, _frame: self._signal(signal.SIGKILL))

    def watch(self, group: int) -> None:
        self._group = group
        if (self._folder / "stop.json").exists():  # it was asked for before there was anything to stop
            self._ask()

    def _ask(self) -> None:
        if self._group is not None:
            stop = read_json(self._folder / "stop.json") or {}
            self._signal(signal.SIGTERM)
            signal.alarm(max(1, int(stop.get("grace_s", 10))))

    def _signal(self, number: int) -> None:
        if self._group is not None:
            _signal_group(self._group, number)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _adopt_orphans() -> None:
    """Become the parent of whatever the job leaves behind, so that it can be found and ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_the_rest(group: int) -> None:
    """A job's end is the end of all its processes: a stray one would keep holding GPU memory."""
    _signal_group(group, signal.SIGKILL)
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    listing = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in listing.read_text().split()]
    except OSError:
        return []  # not Linux: the process group had to do


def born(pid: int) -> str | None:
    """When the process began, in the kernel's own count: tells it from a later one with the same pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
