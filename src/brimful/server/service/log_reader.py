"""A process that reads the log from the database itself and answers questions about it, one per line.

A long log costs seconds of CPU, which threads of the server would take from its users.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from brimful.adapters.stores.sql import SqlStore

NICE = 10  # the loop has -10, if the server may set it
IDLE_S = 900
SILENT_S = 600.0  # a long log takes a minute; a database that is gone may keep it for ever


class LogReader:
    """A module's process: started with the first question, and again if it has exited since."""

    def __init__(self, module: str) -> None:
        self._module = module
        self.process: subprocess.Popen[str] | None = None

    def ask(self, store: SqlStore, question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields its answers until the caller has heard enough. One question at a time."""
        process = self._ready(store)
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has exited: there is no answer
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            while line := self._line(process):
                yield json.loads(line)
        self.close()

    def _line(self, process: subprocess.Popen[str]) -> str:
        """Empty where it has ended, or says nothing for so long that nobody waits for it any more."""
        assert process.stdout is not None
        late = threading.Timer(SILENT_S, process.kill)
        late.daemon = True
        late.start()
        try:
            return process.stdout.readline()
        finally:
            late.cancel()

    def _ready(self, store: SqlStore) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self.close()
            command = [sys.executable, "-I", "-m", self._module]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            weakref.finalize(self, _end, process)
            assert process.stdin is not None
            # On standard input: the URL may contain a password, and anyone can read command lines.
            process.stdin.write(json.dumps(store.engine.url.render_as_string(hide_password=False)) + "\n")
            self.process = process
        return self.process

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # an unread question is still buffered
                pipe.close()


def answer_lines(
    begin: Callable[[SqlStore], Callable[[dict[str, Any]], Iterable[Mapping[str, object]]]],
) -> None:
    """The other end: yields to everything else, and exits when it has been idle for long."""
    os.nice(NICE)
    store = SqlStore(json.loads(sys.stdin.readline()))
    answers = begin(store)
    while line := sys.stdin.readline():
        signal.alarm(0)
        for said in answers(json.loads(line)):
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
        signal.alarm(IDLE_S)  # the next question comes before that, or it exits
    store.close()
