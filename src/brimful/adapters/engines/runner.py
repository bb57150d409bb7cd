"""The small process that stands between brimful and a job: `python -m brimful.adapters.engines.runner DIR`.

It starts the job, waits for it, and writes down how it ended, so that a job outlives the server and the
server learns of its end whenever it comes back. Everything it knows stands in its lease folder:

    order.json    what to run (written by the engine, removed when it runs)
    started.json  written before the job is started: whoever finds it never starts the job again
    child.json    the job's process group
    beat          touched every few seconds while the runner lives: the last proof of life
    stop.json     somebody wants it to end (written by the engine), with the grace and its deadline
    notice.json   what the job is told of that: the deadline (BRIMFUL_NOTICE)
    ended.json    exit code and time: nothing of the job runs any more. Its space is taken beforehand, so
                  that a full disk cannot swallow it
    sample.json   what the job's Meter measured last (BRIMFUL_SAMPLES); written by the job, so never trusted
    work          the packed code it runs in, unpacked (only with code)
    log           what the job printed; log.start: where it begins now
    runner.err    what the runner itself had to complain of
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
from typing import IO, Any

from brimful.adapters.code import unpack
from brimful.adapters.engines.checkpoints import make_ready
from brimful.adapters.engines.logs import shorten
from brimful.adapters.engines.processes import born
from brimful.adapters.files import read_json, write_json, write_reserved
from brimful.errors import BadInput, BrimfulError, Said
from brimful.language import Plain, Quoted, Sentence, os_words, say
from brimful.language.record import as_record

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NOT_FOUND, NOT_STARTED = 127, 126  # what a shell says for these
BEAT_S = 1.0  # between two signs of life, and two looks at the log
HURRY_S = 0.05  # between two looks at a log that grows too fast for that
GRACE_S = 10  # where the stop does not say
PROBLEM_CHARS = 500
WORK = "work"


def main(folder: Path) -> int:
    order = read_json(folder / "order.json")
    if order is None:
        return 0  # another runner has carried it out
    with (folder / "lock").open("w") as lock, (folder / "runner.lock").open("w") as own:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # another runner has it
        if (folder / "started.json").exists() or (folder / "ended.json").exists():
            # It ran before; a job is never run twice under one lease. What a late engine ordered goes: the
            # job's environment is in it.
            (folder / "order.json").unlink(missing_ok=True)
            return 0
        if (folder / "stop.json").exists():
            _write_end(folder, exit_code=None, problem=say("adapters.stopped_before_begun"))
            return 0
        _adopt_orphans()
        try:
            (folder / "beat").touch(mode=0o600)
            watch = _Watch(
                folder, log_bytes=order.get("log_bytes")
            )  # before anybody can learn our pid and signal it
            asked = {key: order.get(key) for key in ("speed", "checkpoints")}
            began = _Began()
            write_json(folder / "started.json", {"at_s": began.at_s, "pid": os.getpid(), **asked})
            log = (folder / "log").open("ab")
            os.fchmod(log.fileno(), 0o600)
        except OSError as error:
            _write_end(
                folder,
                exit_code=None,
                problem=say(
                    "adapters.cannot_begin_in", folder=str(folder)[:PROBLEM_CHARS], error=os_words(error)
                ),
            )
            return 1
        with log:
            exit_code, problem = _unpacked(folder, order)
            if problem is None:
                _make_ready(order, log)
                exit_code, problem = _run(folder, order, log.fileno(), lock.fileno(), watch)
        _write_end(folder, exit_code=exit_code, problem=problem, at_s=began.now_s())
        with contextlib.suppress(OSError):
            (folder / "order.json").unlink()  # an engine that was late may have written it again
    return 0


class _Began:
    """When it began, and how long ago by a clock that nobody sets: billed is the time that passed."""

    def __init__(self) -> None:
        self._wall, self._awake = time.time(), time.monotonic()
        self.at_s = int(self._wall)

    def now_s(self) -> int:
        return int(self._wall + time.monotonic() - self._awake)


def _make_ready(order: dict[str, Any], log: IO[bytes]) -> None:
    """Have the newest whole checkpoint where the job looks for it; if that fails, the job starts anew."""
    source = order.get("checkpoints_from")
    try:
        for line in make_ready(Path(order["checkpoints"]), Path(source) if source else None):
            log.write(f"brimful: {line}\n".encode())
    except OSError as error:
        log.write(f"brimful: its checkpoints cannot be used: {error}\n".encode())
    log.flush()


def _unpacked(folder: Path, order: dict[str, Any]) -> tuple[int | None, Said | None]:
    """Have its code where it runs; else why it cannot be started."""
    code = order.get("code")
    if code is not None:
        try:
            unpack(Path(code["archive"]), folder / WORK, code=code["code"])
        except BadInput as error:
            return NOT_STARTED, error.said
        except OSError as error:
            return NOT_STARTED, say("adapters.cannot_unpack", error=os_words(error))
    return None, None


def _write_end(folder: Path, *, exit_code: int | None, problem: Said | None, at_s: int | None = None) -> None:
    ended = {
        "at_s": int(time.time()) if at_s is None else at_s,
        "exit_code": exit_code,
        "problem": as_record(problem),
    }
    write_reserved(folder / "ended.json", ended)


def _run(
    folder: Path, order: dict[str, Any], log: int, lock: int, watch: _Watch
) -> tuple[int | None, Sentence | None]:
    """Start the job, wait for its end and for the end of everything it started."""
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
    # From here on the job runs: nothing, a full disk least of all, may end the runner before it.
    with contextlib.suppress(OSError):
        (folder / "order.json").unlink()  # its environment may hold secrets, and nobody needs it again
    with contextlib.suppress(OSError):
        write_json(folder / "child.json", {"group": child.pid, "born": born(child.pid)})
    watch.over(child.pid)
    # Left unreaped, so that its group cannot become a stranger's before the rest of it is ended.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    watch.let_go()
    _end_the_rest()
    if code < 0:
        return 128 - code, say("adapters.killed_by", signal=signal.Signals(-code).name)
    return code, None if code == 0 else say("adapters.exit_code", exit_code=Plain(code))


def _not_started(order: dict[str, Any], error: OSError) -> tuple[int, Sentence]:
    if not Path(order["folder"]).is_dir():
        return NOT_STARTED, say("adapters.no_job_folder", folder=order["folder"][:PROBLEM_CHARS])
    command = Quoted(order["command"][0][:PROBLEM_CHARS])
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, say("adapters.no_job_command", command=command)
    return NOT_STARTED, say("adapters.cannot_start_command", command=command, error=os_words(error))


class _Watch:
    """Beside the waiting: gives a sign of life, passes a stop on, and kills when its grace is over."""

    def __init__(self, folder: Path, *, log_bytes: int | None = None) -> None:
        self._folder = folder
        self._log_bytes = log_bytes
        self._group: int | None = None
        self._deadline_s: float | None = None
        signal.signal(signal.SIGTERM, lambda _signal, _frame: self._ask())
        signal.signal(signal.SIGALRM, lambda _signal, _frame: self._look())
        signal.setitimer(signal.ITIMER_REAL, BEAT_S, BEAT_S)

    def over(self, group: int) -> None:
        self._group = group
        if (self._folder / "stop.json").exists():  # it was asked for before there was anything to stop
            self._ask()

    def let_go(self) -> None:
        self._group = None

    def _ask(self) -> None:
        if self._group is None or self._deadline_s is not None:
            return
        grace_s = self._grace_s()
        self._deadline_s = time.monotonic() + grace_s
        with contextlib.suppress(OSError):  # a full disk must not keep the signal from it
            write_json(self._folder / "notice.json", {"deadline_s": int(time.time()) + grace_s})
        _signal_group(self._group, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, min(grace_s, BEAT_S), min(grace_s, BEAT_S))

    def _grace_s(self) -> int:
        with contextlib.suppress(BrimfulError, OSError, TypeError, ValueError):
            return max(1, int((read_json(self._folder / "stop.json") or {}).get("grace_s", GRACE_S)))
        return GRACE_S

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._folder / "beat")
            if self._log_bytes and shorten(self._folder / "log", keep_bytes=self._log_bytes):
                # A quick writer fills a disk within seconds: look again soon.
                signal.setitimer(signal.ITIMER_REAL, HURRY_S, BEAT_S)
        if self._group is None:
            return
        if self._deadline_s is None:
            if (self._folder / "stop.json").exists():  # the signal did not reach us
                self._ask()
            return
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            _signal_group(self._group, signal.SIGKILL)
        elif left_s < BEAT_S:
            signal.setitimer(signal.ITIMER_REAL, left_s, BEAT_S)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _adopt_orphans() -> None:
    """Become the parent of whatever the job leaves behind, so that it can be found and ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_the_rest() -> None:
    """A job's end is the end of all its processes: a stray one would keep holding GPU memory."""
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


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
