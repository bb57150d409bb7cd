"""One machine: an ssh process, our agent at the far end, and a thread that waits for its answers."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import os
import select
import shlex
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

from brimful.adapters.engines.ssh import command as ssh
from brimful.adapters.engines.ssh.wire import MOST_LINE
from brimful.errors import WorldFailed
from brimful.language import Seconds, say, verbatim
from brimful.language.record import said_by_anybody

BEGIN_S = 60.0  # to connect, and to send our code once
ANSWER_S = 20.0  # for an answer, before the connection counts as broken
AGAIN_S = 5.0  # before an unreachable machine is tried again
MOST_ASKED = 16  # requests queued for one machine
SHOWN_CHARS = 300
# Starts the agent from code stored under its hash; asks for the code if it is not there yet.
BOOT = """
import json, os, sys
def line():
    found = b""
    while not found.endswith(b"\\n"):
        got = os.read(0, 1)
        if not got: sys.exit(1)
        found += got
    return json.loads(found)
def say(**said): os.write(1, json.dumps(said).encode() + b"\\n")
if sys.version_info < (3, 11):
    say(old="%d.%d" % sys.version_info[:2]); sys.exit(1)
told = line()
root = os.path.expanduser(told["folder"])
code = os.path.join(root, ".brimful-" + told["hash"][:16])
if not os.path.isdir(code):
    import gzip, hashlib, io, tarfile, tempfile
    say(send=True)
    size, data = line()["bytes"], b""
    while len(data) < size:
        got = os.read(0, min(1 << 20, size - len(data)))
        if not got: sys.exit(1)
        data += got
    data = gzip.decompress(data)
    assert hashlib.sha256(data).hexdigest() == told["hash"]
    os.makedirs(root, mode=0o700, exist_ok=True)
    new = tempfile.mkdtemp(dir=root)
    tarfile.open(fileobj=io.BytesIO(data)).extractall(new)
    try: os.rename(new, code)
    except OSError: pass
os.environ["PYTHONPATH"] = code
say(send=False)
os.execv(sys.executable, [sys.executable, "-P", "-m", "brimful.adapters.engines.ssh.node"])
"""


class Code(NamedTuple):
    """This package: the same bytes for the same code."""

    tar: bytes
    hash: str


_packing = threading.Lock()


def ourselves() -> Code:
    """Built once, even if many machines ask at the same time: a starting server connects to all at once."""
    with _packing:
        return _read_ourselves()


@functools.cache
def _read_ourselves() -> Code:
    package = Path(__file__).parents[3]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = tarfile.TarInfo(str(path.relative_to(package.parent)))
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    return Code(out.getvalue(), hashlib.sha256(out.getbuffer()).hexdigest())


def packed() -> bytes:
    """As sent. Most machines already have it, so it is packed for the first that does not."""
    code = ourselves()
    with _packing:
        return _compress(code.tar)


_compress = functools.cache(functools.partial(gzip.compress, mtime=0))


class Connection:
    """`ask` is for one thread at a time. It raises WorldFailed; the next `ask` reconnects."""

    def __init__(self, address: str, python: str, more: Sequence[str], hello: Mapping[str, Any]) -> None:
        """`hello`: folder, node and settings of the agent; `more`: ssh flags."""
        self._address, self._hello = address, hello
        self._command = [*ssh.ssh_to(address, *more), shlex.join((python, "-c", BOOT))]
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None  # stderr of ssh and the machine
        self._read = b""

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        if self._process is None:
            self._begin()
        return self._answer_to([method, arguments], within_s=ANSWER_S)

    def _answer_to(self, question: object, *, within_s: float) -> Any:  # noqa: ANN401
        self._send(json.dumps(question).encode() + b"\n", within_s=within_s)
        found = self._line(within_s=within_s)
        if not isinstance(found, dict) or "ok" not in found:
            failed = found.get("failed") if isinstance(found, dict) else None
            raise WorldFailed(
                say("adapters.ssh_agent_failed", address=self._address, why=said_by_anybody(failed) or "-")
            )
        return found["ok"]

    def _begin(self) -> None:
        env = {key: os.environ[key] for key in ssh.PASSED_ON if key in os.environ}
        self._said, self._read = tempfile.TemporaryFile(), b""  # noqa: SIM115 - closed with the connection
        try:
            self._process = subprocess.Popen(
                self._command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise self._broken(str(error)) from error
        told = {"hash": ourselves().hash, "folder": self._hello["folder"]}
        self._send(json.dumps(told).encode() + b"\n", within_s=BEGIN_S)
        answer = self._line(within_s=BEGIN_S)
        if isinstance(answer, dict) and answer.get("send"):
            code = packed()
            self._send(json.dumps({"bytes": len(code)}).encode() + b"\n" + code, within_s=BEGIN_S)
            answer = self._line(within_s=BEGIN_S)
        if isinstance(answer, dict) and "old" in answer:
            self.close()
            version = verbatim(str(answer["old"])[:20])
            raise WorldFailed(say("adapters.ssh_old_python", address=self._address, version=version))
        self._answer_to(dict(self._hello), within_s=BEGIN_S)

    def _send(self, data: bytes, *, within_s: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        pipe, until = self._process.stdin.fileno(), time.monotonic() + within_s
        try:
            while data:
                if not _is_ready(pipe, select.POLLOUT, until):
                    raise self._silent(within_s)
                data = data[os.write(pipe, data[: select.PIPE_BUF]) :]
        except OSError as error:
            raise self._broken(str(error)) from error

    def _line(self, *, within_s: float) -> Any:  # noqa: ANN401
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + within_s
        while b"\n" not in self._read[-(1 << 20) :]:
            if not _is_ready(pipe, select.POLLIN, until):
                raise self._silent(within_s)
            got = os.read(pipe, 1 << 20)
            if not got or len(self._read) > MOST_LINE:
                raise self._broken("-")
            self._read += got
        line, self._read = self._read, b""  # it answers one request at a time
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._broken(str(error)) from error

    def _silent(self, within_s: float) -> WorldFailed:
        self.close()
        limit = Seconds(within_s)
        return WorldFailed(
            say("adapters.ssh_silent", address=self._address, limit_s=limit), code="ssh_silent"
        )

    def _broken(self, why: str) -> WorldFailed:
        """With the last words of ssh, which say more than a closed pipe."""
        self._end()
        if self._said is not None:
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4 * SHOWN_CHARS))
            last = self._said.read().decode(errors="replace").strip().splitlines()
            why = last[-1][-SHOWN_CHARS:] if last else why
        self.close()
        said = say("adapters.ssh_failed", address=self._address, why=verbatim(why))
        return WorldFailed(said, code="ssh_failed")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def close(self) -> None:
        """The machine's jobs keep running."""
        self._end()
        if self._said is not None:
            self._said.close()
            self._said = None


def _is_ready(pipe: int, event: int, until: float) -> bool:
    """Not by `select`, which knows the first 1,024 files alone: whoever connects to the server holds some."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, 1000 * (until - time.monotonic()))))


class Machine:
    """A connection that never blocks the caller: requests are answered in turn, later or not at all."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ssh")
        self._asked: list[Future[Any]] = []
        self.heard, self.heard_s = time.monotonic(), time.time()  # when it last answered
        self.answers = 0
        self.failed: WorldFailed | None = None
        self._failed_at = float("-inf")

    def ask(self, method: str, *arguments: object) -> Future[Any]:
        self._asked = [each for each in self._asked if not each.done()]
        if len(self._asked) >= MOST_ASKED:
            late: Future[Any] = Future()
            late.set_exception(WorldFailed(say("adapters.ssh_busy")))
            return late
        asked = self._thread.submit(self._ask, method, arguments)
        self._asked.append(asked)
        return asked

    def _ask(self, method: str, arguments: tuple[object, ...]) -> Any:  # noqa: ANN401
        if self.failed is not None and time.monotonic() - self._failed_at < AGAIN_S:
            raise WorldFailed(self.failed.said)
        try:
            found = self._connection.ask(method, *arguments)
        except WorldFailed as error:
            if error.code in ("ssh_failed", "ssh_silent"):
                self.failed, self._failed_at = error, time.monotonic()
            raise
        self.heard, self.heard_s, self.failed = time.monotonic(), time.time(), None
        self.answers += 1
        return found

    def close(self) -> None:
        self._thread.submit(self._connection.close)
        self._thread.shutdown(wait=False)
