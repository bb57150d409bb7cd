"""What a runner watches while its job runs: stop orders, signals, cloud notices, its gang and its log."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from brimful.adapters.engines.job_users import isolation
from brimful.adapters.engines.logs import name_of, shorten
from brimful.adapters.engines.slurm.ear import Ear
from brimful.adapters.files import open_to_write, read_json, write_json
from brimful.adapters.providers.cloud_word import cloud_word
from brimful.errors import BrimfulError

if TYPE_CHECKING:
    from brimful.adapters.providers.notices import Notice

BEAT_S = 1.0  # between two signs of life, and two looks at the log
HURRY_S = 0.05  # between two looks at a log that grows too fast for that
SENDING = 2  # a cloud's notice is split in two: one part for the job to save, one for the carrier to send
GRACE_S = 10  # if neither the stop nor the order says
# In the folder of a gang whose ranks have separate runners, why the others end: "RANK CODE" of the rank that
# failed first; the nodes that the cloud takes back; the batch script above the ranks was told to end.
FAILED, TAKEN, SIGNALLED = "failed", "taken", "signalled"
Asker = Literal["us", "cloud", "signal"]  # who wants a job to end; a signal is ours if stop.json exists


class StoppedBeforeBegun(Exception):
    """Told to stop while its checkpoints were being prepared: raised by the signal handler."""


class Watched(Protocol):
    """A job: `pid` is that of its process group."""

    @property
    def pid(self) -> int: ...

    def is_over(self) -> bool:
        """Whether all its ranks have ended, reaped or not."""
        ...


class Watch:
    """Runs beside the wait: signs of life, passing on a stop, and the kill when the grace is over."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self._folder = folder
        self._log_bytes: int | None = order.get("log_bytes")
        self._logs = [folder / name_of(rank) for rank in range(len(order.get("ranks") or [{}]))]
        self._own_grace_s: int = order.get("grace_s", GRACE_S)
        self._gang = Path(order["gang"]) if order.get("gang") else None  # of ranks with other runners
        self._node = (order.get("ranks") or [{}])[0].get("BRIMFUL_NODE", "")
        self._job: Watched | None = None
        self._early: Asker | None = None  # who asked before there was a job
        self._deadline_s: float | None = None
        self._cloud = cloud_word(order.get("notices") or "")
        self._warned = False  # by the cloud, which may still call it off
        self.taken = False  # by the cloud
        self.sent_away = False  # by a signal that is not ours: the engine's, or a machine's shutdown
        self.prepares = False  # checkpoints are being fetched and hashed, which may take hours
        self._ear = Ear() if order.get("hears_engine") else None
        self._listens = False
        signal.signal(signal.SIGTERM, lambda _signal, _frame: self._hear())
        for wakes in (signal.SIGALRM, signal.SIGURG):
            signal.signal(wakes, lambda _signal, _frame: self._look())
        signal.setitimer(signal.ITIMER_REAL, BEAT_S, BEAT_S)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """A stop during this time need not wait."""
        self.prepares = True
        try:
            if self._early:
                self.ask(by=self._early)
            yield
        finally:
            self.prepares = False

    @property
    def told(self) -> bool:
        return self._deadline_s is not None

    @property
    def _is_stopped(self) -> bool:
        return (self._folder / "stop.json").exists()

    def over(self, job: Watched) -> None:
        self._job = job
        if self._early or self._is_stopped:  # it was asked before there was anything to stop
            self.ask(by=self._early or "us")

    def let_go(self) -> None:
        self._job = None

    def _hear(self) -> None:
        """An engine that signals all processes of a job has already told the job: do not signal it twice."""
        if self._listens:  # an alarm that interrupts this: what is heard counts for it too
            return
        self._listens = True
        # Once the job is over, the ear may be gone too.
        has_heard = self._job is not None and self._ear is not None and self._ear.has_heard()
        self._listens = False
        self.ask(by="signal", passes_on=not has_heard)

    def ask(self, *, by: Asker = "us", passes_on: bool = True, most_s: int | None = None) -> None:
        """End the job: SIGTERM, its grace, then SIGKILL."""
        if self._job is None and not self.prepares:
            self._early = by
            return
        # A job that is over before we pass the stop on has ended by itself, reaped or not.
        is_over = passes_on and self._job is not None and self._job.is_over()
        if is_over or self.told:
            return
        self._deadline_s = float("inf")  # first of all: another signal may arrive meanwhile
        self.taken, self.sent_away = by == "cloud", by == "signal" and not self._is_stopped
        if self.prepares:
            raise StoppedBeforeBegun
        assert self._job is not None
        grace_s = self._grace_s() if most_s is None else min(self._grace_s(), most_s)
        self._deadline_s = time.monotonic() + grace_s
        with contextlib.suppress(OSError):  # a full disk must not block the signal
            notice = {"deadline_s": int(time.time()) + grace_s}
            write_json(isolation.notice_file(self._folder), notice, mode=isolation.NOTICE_MODE)
        if passes_on:
            signal_group(self._job.pid, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, min(grace_s, BEAT_S), min(grace_s, BEAT_S))

    def _pass_on_notice(self, notice: Notice | None) -> None:
        """Pass the cloud's notice on like our own: the file, and the signal once it is certain.

        If the cloud may still call it off, the job keeps working, as with our own warnings, until saving and
        sending take all the remaining time.
        """
        path = isolation.notice_file(self._folder)
        if notice is None:
            if self._warned:
                path.unlink(missing_ok=True)
            self._warned = False
            return
        left_s = notice.deadline_s - time.time()
        if notice.may_stay and left_s > SENDING * self._own_grace_s:
            if not self._warned:
                said = {"deadline_s": int(notice.deadline_s), "may_stay": True}
                write_json(path, said, mode=isolation.NOTICE_MODE)
            self._warned = True
            return
        if self._gang is not None:
            with contextlib.suppress(OSError), open_to_write(self._gang / TAKEN) as taken:
                taken.write(f"{self._node}\n".encode())
        self.ask(by="cloud", most_s=max(1, int(left_s / SENDING)))

    def _grace_s(self) -> int:
        with contextlib.suppress(BrimfulError, OSError, TypeError, ValueError):
            return max(
                1, int((read_json(self._folder / "stop.json") or {}).get("grace_s", self._own_grace_s))
            )
        return self._own_grace_s

    def shorten_logs(self) -> bool:
        """Whether there was anything to shorten."""
        found = False
        with contextlib.suppress(OSError):
            for log in self._logs if self._log_bytes else ():
                found |= shorten(log, keep_bytes=self._log_bytes or 0)
        return found

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._folder / "beat", follow_symlinks=False)
        if self.shorten_logs():
            # A fast writer fills a disk within seconds: look again soon.
            signal.setitimer(signal.ITIMER_REAL, HURRY_S, BEAT_S)
        if self._job is None and not self.prepares:
            return
        if self._deadline_s is None:
            # The signal did not reach us; or a gang ends as a whole, since the others would wait forever.
            gang_ends = self._gang is not None and any(
                (self._gang / each).exists() for each in (FAILED, TAKEN)
            )
            if gang_ends or self._is_stopped:
                self.ask()
            elif self._gang is not None and (self._gang / SIGNALLED).exists():
                self._hear()
            elif self._cloud is not None:
                with contextlib.suppress(OSError):
                    self._pass_on_notice(self._cloud.notice)
            return
        left_s = self._deadline_s - time.monotonic()
        if self._job is None:
            return
        if left_s <= 0:
            signal_group(self._job.pid, signal.SIGKILL)
        elif left_s < BEAT_S:
            signal.setitimer(signal.ITIMER_REAL, left_s, BEAT_S)


def ignore_signals() -> None:
    """To be called once the end is recorded.

    Python resets its handlers while it exits, so the next alarm would kill the runner. `srun` takes that for
    a failed rank and ends the others. An ignored signal stays ignored.
    """
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
