"""Ends a guarded run when its guard is gone: `python warden.py GROUP MARK`, with a pipe as standard input.

The guard holds the other end of the pipe, and writes when the run is over. However it dies before that, even
by `kill -9`, the pipe closes; then what is left of the run is asked to leave, and ended.
Standard library only, without importing brimful: it is started for every try, beside a training run.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 10.0


def marked(mark: bytes) -> list[int]:
    """Our own processes that carry the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def tell(group: int, mark: bytes, number: int) -> bool:
    """Signal the group and all processes with the mark; returns whether there were any."""
    reached = False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        reached = True
    for pid in marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            reached = True
    return reached


def main(group: int, mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1):
        return
    wanted = mark.encode()
    deadline = time.monotonic() + GRACE_S
    left = tell(group, wanted, signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = bool(marked(wanted))
    tell(group, wanted, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
