"""One try: the user's command as a separate process, its output passed on as it comes and kept in a log.

It sees a terminal if we have one. Signals that reach us reach its whole group, and when it is over nothing of
it is left, whatever it started and however we ended.
"""

from __future__ import annotations

import errno
import os
import pty
import selectors
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import FrameType

from brimful.errors import BadInput
from brimful.guard import warden
from brimful.language import Quoted, Sentence, os_words, say
from brimful.tracing.launch import end_marked

MARK = "BRIMFUL_RUN"
_TAIL_BYTES = 256 * 1024  # of its output: a PyTorch message with a deep traceback is a tenth of it
_LOOK_S = 0.5  # between looks at the watchers
_DRAIN_S = 2.0  # for output still in the pipes when it is over
STOP_GRACE_S = 60.0  # from SIGTERM to SIGKILL, if we stop it ourselves
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# Called twice a second with what was printed since; a returned reason ends the run.
Watch = Callable[[bytes], Sentence | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a try ended."""

    status: int  # of the process; negative: the signal that ended it
    seconds: float
    tail: str  # the end of what it printed
    passed_on: int | None  # the signal that reached us and was passed on
    stopped: Sentence | None  # why we ended it ourselves

    @property
    def exit_code(self) -> int:
        """What a shell would show."""
        return 128 - self.status if self.status < 0 else self.status


class Child:
    """Runs one command once. `stdout` is our file descriptor for its standard output."""

    def __init__(self, words: Sequence[str], *, mark: str, log: Path, stdout: int) -> None:
        self._words, self._mark, self._log = words, mark, log
        self._out = {"stdout": stdout, "stderr": 2}
        self._process: subprocess.Popen[bytes] | None = None
        self._passed_on: int | None = None
        self._stopped: Sentence | None = None
        self._kill_at: float | None = None
        self._tail = bytearray()
        self._fresh = bytearray()
        self._closed: set[int] = set()
        self._master: int | None = None

    def run(self, watch: Watch | None) -> Ended:
        began = time.monotonic()
        # We handle signals from before it starts until all is over: none may end us while it is half started
        # or half cleaned up.
        with self._log.open("xb", buffering=0) as log, self._signals():
            process, sources = self._start({**os.environ, MARK: self._mark})
            self._process = process
            keeper = _warden(process.pid, self._mark)
            if self._passed_on is not None:
                self._send(self._passed_on)
            try:
                self._pump(process, sources, log, watch)
            finally:
                self._send(signal.SIGKILL)
                process.wait()
                end_marked(MARK, self._mark)
                keeper.communicate(b"over")
                for source in sources:
                    os.close(source)
        return Ended(
            status=process.returncode,
            seconds=time.monotonic() - began,
            tail=bytes(self._tail).decode("utf-8", "replace"),
            passed_on=self._passed_on,
            stopped=self._stopped,
        )

    def _start(self, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
        """The process, and which of its outputs goes to which of ours."""
        sources: dict[int, int] = {}
        ends: dict[str, int] = {}
        slave = -1
        if any(os.isatty(fd) for fd in (0, *self._out.values())):
            self._master, slave = _terminal()
        for name, ours in self._out.items():
            if os.isatty(ours):
                assert self._master is not None
                sources[self._master] = ours
                ends[name] = slave
            else:
                read, ends[name] = os.pipe()
                sources[read] = ours
        if self._master is not None and self._master not in sources:
            sources[self._master] = self._out["stderr"]
        try:
            process = subprocess.Popen(
                self._words, stdin=slave if os.isatty(0) else None, stdout=ends["stdout"],
                stderr=ends["stderr"], env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            for source in sources:
                os.close(source)
            raise BadInput(
                say("guard.cannot_start", program=Quoted(self._words[0][:100]), error=os_words(error)),
                code="cannot_start",
            ) from error
        finally:
            for end in {*ends.values(), slave} - {-1}:
                os.close(end)
        return process, sources

    def _pump(
        self, process: subprocess.Popen[bytes], sources: Mapping[int, int], log: FileIO, watch: Watch | None
    ) -> None:
        with selectors.DefaultSelector() as ready, _pidfd(process.pid) as over:
            for source in sources:
                ready.register(source, selectors.EVENT_READ)
            if over is not None:
                ready.register(over, selectors.EVENT_READ)
            if self._master is not None and os.isatty(0):
                ready.register(0, selectors.EVENT_READ)
            looked = time.monotonic()
            while process.poll() is None:
                for key, _ in ready.select(_LOOK_S):
                    if key.fd in sources and not self._pass_output(key.fd, sources[key.fd], log):
                        ready.unregister(key.fd)
                    elif key.fd == 0:
                        self._pass_input(ready)
                if time.monotonic() - looked >= _LOOK_S:
                    self._look(watch)
                    looked = time.monotonic()
            # Processes it started may hold the pipes open forever; end the group first.
            self._send(signal.SIGKILL)
            self._drain(ready, sources, log)

    def _drain(self, ready: selectors.BaseSelector, sources: Mapping[int, int], log: FileIO) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            left = [key for key, _ in ready.select(0.05) if key.fd in sources]
            if not left:
                return
            for key in left:
                if not self._pass_output(key.fd, sources[key.fd], log):
                    ready.unregister(key.fd)

    def _pass_output(self, source: int, ours: int, log: FileIO) -> bool:
        """Bytes as they come: to us, to the log, to the tail. False at the end of the stream."""
        try:
            data = os.read(source, 65536)
        except OSError as error:  # a terminal whose other side is closed
            if error.errno != errno.EIO:
                raise
            return False
        if not data:
            return False
        log.write(data)
        self._tail += data
        del self._tail[:-_TAIL_BYTES]
        self._fresh += data
        del self._fresh[:-_TAIL_BYTES]
        if ours not in self._closed:
            try:
                _write(ours, data)
            except OSError:  # the reader is gone (`| head`): the run and its log go on
                self._closed.add(ours)
        return True

    def _pass_input(self, ready: selectors.BaseSelector) -> None:
        """What the user types goes to the run."""
        assert self._master is not None
        typed = os.read(0, 4096)
        if typed:
            _write(self._master, typed)
        else:
            ready.unregister(0)

    def _look(self, watch: Watch | None) -> None:
        fresh = bytes(self._fresh)
        self._fresh.clear()
        if watch is not None and self._passed_on is None and self._stopped is None:
            self._stopped = watch(fresh)
            if self._stopped is not None:
                self._kill_at = time.monotonic() + STOP_GRACE_S
                self._send(signal.SIGTERM)
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        """To its whole group, if it exists."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals that reach us reach its whole group; a second stop signal kills it at once."""

        def forward(number: int, _: FrameType | None) -> None:
            stops = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
            again = stops and self._passed_on is not None
            if stops:
                self._passed_on = number
            self._send(signal.SIGKILL if again else number)

        def pause(_: int, __: FrameType | None) -> None:
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)  # until `fg`
            self._send(signal.SIGCONT)

        def resize(_: int, __: FrameType | None) -> None:
            if self._master is not None:
                _copy_size(self._master)
                self._send(signal.SIGWINCH)

        handlers = dict.fromkeys(_FORWARDED, forward) | {signal.SIGTSTP: pause, signal.SIGWINCH: resize}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _terminal() -> tuple[int, int]:
    """A terminal for the run, as wide as ours, that does not change what passes through it."""
    master, slave = pty.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST  # ours turns \n into \r\n, once
    settings[3] &= ~termios.ECHO  # ours has already echoed what was typed
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    _copy_size(slave)
    return master, slave


def _copy_size(to: int) -> None:
    for ours in (1, 2, 0):
        with suppress(termios.error):
            termios.tcsetwinsize(to, termios.tcgetwinsize(ours))
            return


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """Readable when the process is over; None on a kernel without it: polling twice a second will do."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _warden(group: int, mark: str) -> subprocess.Popen[bytes]:
    """If we are killed without warning, it sees its pipe close."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", warden.__file__, str(group), f"{MARK}={mark}"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
