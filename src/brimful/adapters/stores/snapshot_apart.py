"""A snapshot made in a separate process.

Folding and packing the state takes a second of CPU or more. In the server, requests and the loop would lose
that second, since threads of one Python process take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from brimful.adapters.stores.snapshot import advance
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError

NICE = 10  # the loop has -10, if the server may set it
TIMEOUT_S = 3600.0  # a log of ten million events takes minutes


class Apart:
    """At most one such process at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def advance(self, store: SqlStore, *, fence: int, at_least: int) -> str:
        """What went wrong; empty: nothing."""
        # On standard input: the URL may contain a password, and anyone can read command lines.
        asked = [store.engine.url.render_as_string(hide_password=False), fence, at_least]
        command = [sys.executable, "-P", "-m", __name__]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, problem = self._process.communicate(json.dumps(asked), timeout=TIMEOUT_S)
            if not self._process.returncode:
                return ""
            return (problem.strip().splitlines() or [f"exit code {self._process.returncode}"])[-1][:300]
        except subprocess.TimeoutExpired:
            return f"not done after {TIMEOUT_S:g} s"
        finally:
            self.close()

    def close(self) -> None:
        """It is only a cache, so a stopping server need not wait for it."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()


def main() -> None:
    os.nice(NICE)
    database, fence, at_least = json.load(sys.stdin)
    try:
        store = SqlStore(database)
        try:
            advance(store, fence=fence, at_least=at_least)
        finally:
            store.close()
    except BrimfulError as error:
        raise SystemExit(error.problem) from error


if __name__ == "__main__":
    main()
