"""The parent of a lab's daemons: `python -m tests.engines.keeper FOLDER`, told what to do line by line.

Whoever loses its parent below it becomes its child. When whoever started it closes the pipe, or is killed,
it ends all that is left below it, removes FOLDER and goes: a test run that is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
REAPED: set[int] = set()


class Keeper:
    """For whoever has it: start and end daemons by name."""

    def __init__(self, folder: Path, *, holds: int) -> None:
        """`holds`: a file descriptor that is kept open until all below it has ended."""
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[holds],
            text=True,
        )

    def begin(self, name: str, command: Sequence[str], *, env: Mapping[str, str], out: Path) -> None:
        self._ask({"begin": name, "command": list(command), "env": dict(env), "out": str(out)})

    def end(self, name: str, number: int = signal.SIGKILL, *, whole: bool = False) -> None:
        """Unless `whole`, of this one alone: what it has started goes on."""
        self._ask({"end": name, "signal": int(number), "whole": whole})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n", "the keeper of a lab has gone"


def main(folder: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: _reap())
    pids: dict[str, int] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "begin" in order:
            pids[order["begin"]] = _begin(order, folder)
        else:
            pid = pids.pop(order["end"])
            for each in [*below(pid)] if order["whole"] else ():
                with contextlib.suppress(ProcessLookupError):  # it went with the one before
                    os.kill(each, order["signal"])
            _end(pid, order["signal"])
        print("done", flush=True)
    while left := list(below(os.getpid())):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


def _begin(order: dict[str, Any], folder: Path) -> int:
    with Path(order["out"]).open("ab") as out:
        return subprocess.Popen(
            order["command"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        ).pid


def _end(pid: int, number: int) -> None:
    if pid not in REAPED:
        os.kill(pid, number)  # until it is reaped, its number is nobody else's
    while pid not in REAPED:
        time.sleep(0.01)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            REAPED.add(pid)


def below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield child
            yield from below(child)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
