"""What the API, the console and the loop do, without HTTP.

The loop has a state of its own, so that it may take its time with engines and database. Whatever it or a user
reads from the log or writes to it is folded into a second one, which all readers share: nobody who only looks
waits for the world. Two locks: `_turn` for one look of the loop at a time, and `_lock`, short and never held
over I/O, for what readers see.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from brimful.adapters.capabilities import Complains, KeepsEnvironments, KeepsLogs, LogPiece
from brimful.errors import BrimfulError, NotFound, Refused, WorldFailed
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
)
from brimful.fleet.job import Job
from brimful.fleet.state import OVER, Fleet, JobState, Lease
from brimful.market.ledger import Ledger
from brimful.market.posted import PostedPrice
from brimful.scheduler.cycle import Rules, decide
from brimful.scheduler.loop import MAX_CONFLICTS, Tick, catch_up, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import Engine, Ports, Store

log = logging.getLogger("brimful")

E = TypeVar("E", bound=Event)

CHANGING_S = 0.2  # while something starts or stops, look more often: somebody is watching
SILENT_S = 60  # a loop that has not come round for so long is in trouble, whatever it says


class Service:
    """The running control plane on one machine."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        rules: Rules,
        *,
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = _Told(store, self._fold)
        self._ports = Ports(store=self._store, engines={engine.site: engine}, clearing=PostedPrice())
        self._rules = rules
        self._tick_s = tick_s
        self._clock = clock
        self._turn = threading.Lock()
        self._numbering = threading.Lock()  # one submit at a time: what is kept for a number is its winner's
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loops = Fleet()  # the loop's own, under `_turn`
        self._came_round_s = time.monotonic()
        self._trouble = ""  # why the last tick failed, empty while all is well
        self.last = Tick(plan=Plan())
        # What readers see, under `_lock`.
        self.fleet = Fleet()
        self.ledger = Ledger()
        self._reasons: tuple[tuple[int, int], Plan] | None = None
        self._prices = PostedPrice()

    # -- what users do ---------------------------------------------------------------------------------

    def submit(self, job: Job) -> JobState:
        """Take a job in. Its number is given here, in the order of the log.

        The values of its environment go to those who run it, before it is in the log, and not into the log.
        """
        keepers = self._keepers()
        public = replace(job, env=tuple((key, "") for key, _ in job.env)) if keepers else job

        def event() -> JobSubmitted:
            return JobSubmitted(at_s=self.now_s(), job=replace(public, job=f"job-{len(self.fleet.jobs) + 1}"))

        def keep(submitted: JobSubmitted) -> None:
            for engine in keepers:
                engine.keep_env(submitted.job.job, dict(job.env))

        with self._numbering:
            name = self._write(event, first=keep).job.job
        log.info("%s submitted: %d GPU(s), %s, %s", name, job.gpus, job.priority, " ".join(job.command)[:200])
        self._wake.set()
        return self.job(name)

    def cancel(self, name: str) -> JobState:
        def event() -> CancelRequested:
            state = self.job(name)
            if state.phase in OVER:
                raise Refused(f"{name} is already {state.phase}", hint="there is nothing left to cancel")
            return CancelRequested(at_s=self.now_s(), job=name)

        self._write(event)
        log.info("%s: cancel requested", name)
        self._wake.set()
        return self.job(name)

    # -- what users see --------------------------------------------------------------------------------

    def job(self, name: str) -> JobState:
        with self._lock:
            if name not in self.fleet.jobs:
                raise NotFound(f"there is no job {name[:100]!r}", hint="`brimful jobs` lists them")
            return self.fleet.jobs[name]

    def refresh(self) -> None:
        """Fold what others have written since. The loop does so at every look; readers need not."""
        self._store.since(self.fleet.seq)

    def why_waiting(self, name: str) -> str:
        """Decided again on what readers see, once for each state of the log: the loop's plan is its own."""
        with self._lock:
            now_s = self.now_s()
            if self._reasons is None or self._reasons[0] != (self.fleet.seq, now_s):
                prices = self._prices.clear(self.fleet, now_s=now_s)
                plan = decide(
                    self.fleet, self._rules, prices, now_s=now_s, unreachable=self.last.problems.keys()
                )
                self._reasons = ((self.fleet.seq, now_s), plan)
            return self._reasons[1].waits.get(name, "")  # nothing to say of one that is about to start

    def read_log(self, lease: Lease, *, offset: int, limit: int) -> LogPiece:
        engine: object = self._ports.engines.get(lease.site)
        if not isinstance(engine, KeepsLogs):
            raise Refused(f"the engine at {lease.site} keeps no logs", code="no_logs")
        return engine.log(lease.lease, offset=offset, limit=limit)

    def problems(self) -> dict[str, str]:
        """By site: why it cannot be reached, or what it cannot tell of some leases."""
        found = {
            site: "; ".join(engine.complaints().values())
            for site, engine in self._ports.engines.items()
            if isinstance(engine, Complains) and engine.complaints()
        }
        return found | self.last.problems

    def trouble(self) -> str:
        """Why the scheduler cannot go on; empty while all is well."""
        if self._trouble or self._thread is None or self._stopping.is_set():
            return self._trouble
        if not self._thread.is_alive():
            return "the scheduler has ended; see the server's log and start brimful again"
        silent_s = time.monotonic() - self._came_round_s
        if silent_s > SILENT_S + self._tick_s:
            return f"the scheduler has been at one look for {silent_s:.0f} s; an engine or the database hangs"
        return ""

    def locked(self) -> threading.RLock:
        """Hold this while reading several things that must agree, and over no I/O."""
        return self._lock

    def now_s(self) -> int:
        return int(self._clock())

    # -- the loop --------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        with self._turn:
            self.last = tick(self._loops, self._ports, self._rules, now_s=self.now_s())
            return self.last

    def start(self) -> None:
        with self._turn:
            catch_up(self._loops, self._ports)
        self._came_round_s = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="tick", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop. Running jobs go on; the next start finds them again."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            pause_s = self._tick_s
            try:
                self.tick()
                if self._loops.unsettled:
                    pause_s = min(pause_s, CHANGING_S)
                if self._trouble:
                    log.info("the scheduler is well again")
                self._trouble = ""
            except BrimfulError as error:
                if error.problem != self._trouble:
                    log.error("the scheduler cannot go on: %s", error.problem)  # noqa: TRY400 - foreseen
                self._trouble = error.problem
            except Exception:  # a broken tick must be seen, and must not end the server silently
                log.exception("the scheduler met a bug; trying again every %s s", self._tick_s)
                self._trouble = "the scheduler met a bug; see the server's log"
            self._came_round_s = time.monotonic()
            self._wake.wait(pause_s)
            self._wake.clear()

    # -- the log ---------------------------------------------------------------------------------------

    def _write(self, make: Callable[[], E], *, first: Callable[[E], None] = lambda _event: None) -> E:
        """Append one event made from the current state; made again whenever somebody else was faster.

        `first` is what must be done, outside of the lock, before the event may be in the log.
        """
        for _ in range(MAX_CONFLICTS):
            with self._lock:
                event, after = make(), self.fleet.seq
            first(event)
            if self._store.append([event], after=after):
                return event
            self.refresh()
        raise WorldFailed(
            f"the log was written by others {MAX_CONFLICTS} times in a row", hint="try again", code="log_busy"
        )

    def _fold(self, events: Sequence[Event], *, after: int, written: bool) -> None:
        """Bring what readers see up to date, and say in the server's log what has just happened."""
        with self._lock:
            known = self.fleet.seq - after
            assert known >= 0, "whoever reads or writes the log has told of everything before"
            for event in events[known:]:
                self.fleet.apply(event)
                self.ledger.apply(event)
            moved = self._moved(events) if written else {}
            over = [name for name in moved if self.fleet.jobs[name].phase in OVER]
        for line in filter(None, moved.values()):
            log.info("%s", line)
        for engine in self._keepers() if over else ():
            for name in over:
                engine.forget_env(name)

    def _keepers(self) -> list[KeepsEnvironments]:
        """The engines, if all of them keep what jobs were submitted with."""
        engines: list[object] = list(self._ports.engines.values())
        keepers = [engine for engine in engines if isinstance(engine, KeepsEnvironments)]
        return keepers if len(keepers) == len(engines) else []

    def _moved(self, events: Sequence[Event]) -> dict[str, str]:
        """The jobs that have moved on, with one readable line for each."""
        lines: dict[str, str] = {}
        for event in events:
            if isinstance(event, CancelRequested):
                lines[event.job] = ""  # told where it was asked for
            if not isinstance(event, LeaseGranted | LeaseStarted | LeaseEnding | LeaseEnded):
                continue
            lease = self.fleet.leases[event.lease]
            state = self.fleet.jobs[lease.job]
            reason = f": {state.reason}" if state.reason else ""
            gpus = ",".join(map(str, lease.gpus))
            lines[lease.job] = f"{lease.job} {state.phase} on {lease.node} GPU {gpus}{reason}"
        return lines


class _Told:
    """The log, as a Store that tells of all that is read from it and written to it."""

    def __init__(self, store: Store, tell: Callable[..., None]) -> None:
        self._store, self._tell = store, tell

    def since(self, seq: int) -> Sequence[Event]:
        events = self._store.since(seq)
        self._tell(events, after=seq, written=False)
        return events

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        if not self._store.append(events, after=after):
            return False
        self._tell(events, after=after, written=True)
        return True
