"""Talks to the answering process: starts it when needed, and ends it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast

from brimful.client.answers import FitAnswer
from brimful.errors import BadInput, NotFound, Refused, WorldFailed
from brimful.language import Seconds, say, tongue, verbatim

log = logging.getLogger("brimful.fit")

ANSWER_S = 20.0  # an answer takes 50 ms; a busy machine may need longer
MOST_WAITING = 8  # each blocks a server thread
MOST_OF_ONE = 3  # of those, so that one person's long texts leave room for others
ANSWERS_EACH = 500  # then a new process, to release its memory
KINDS = {"BadInput": BadInput, "NotFound": NotFound, "Refused": Refused}


class Fitter:
    """One process, one question at a time; the others wait their turn."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._waiting: list[str] = []  # who asked, once per question
        self._process: subprocess.Popen[str] | None = None
        self._left = 0

    def ask(self, *, asker: str = "", **asked: Any) -> FitAnswer:  # noqa: ANN401 - JSON
        """`asker`: a user or an address; the server itself asks without one."""
        with self._place(asker), self._turn:
            line = self._line(json.dumps({"language": tongue().code, **asked}))
        answer = json.loads(line)
        if "data" in answer:
            return cast("FitAnswer", answer["data"])
        if (error := answer["error"]) is None:
            raise BadInput(say("server.fit_too_deep"))
        hint = verbatim(error["hint"]) if error["hint"] else None
        raise KINDS.get(error["kind"], BadInput)(verbatim(error["problem"]), hint=hint, code=error["code"])

    @contextlib.contextmanager
    def _place(self, asker: str) -> Iterator[None]:
        with self._counting:
            most = MOST_OF_ONE if asker else MOST_WAITING
            if len(self._waiting) >= MOST_WAITING or self._waiting.count(asker) >= most:
                raise Refused(say("server.fit_busy", most=min(most, len(self._waiting))), code="too_many")
            self._waiting.append(asker)
        try:
            yield
        finally:
            with self._counting:
                self._waiting.remove(asker)

    def _line(self, question: str) -> str:
        process = self._ready()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(self._answer_s, process.kill)
        late.start()
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            late.cancel()
        if not line:
            self.close()
            raise WorldFailed(say("server.fit_no_answer", limit=Seconds(self._answer_s)), code="fit_failed")
        return line

    def _ready(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None or self._left == 0:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "brimful.server.fitting.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={"PATH": os.environ.get("PATH", "")},  # none of the server's secrets
            )
            self._left = ANSWERS_EACH
            weakref.finalize(self, _end, self._process)
        self._left -= 1
        return self._process

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # an unread question is still buffered
                pipe.close()
