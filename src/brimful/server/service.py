"""What the API, the console and the loop do, without HTTP.

One lock guards the folded state; the log in the store is the truth and may be written by others too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from brimful.adapters.engines.local import LocalEngine
from brimful.errors import BrimfulError, NotFound, Refused
from brimful.fleet.events import CancelRequested, Event, JobSubmitted
from brimful.fleet.job import Job
from brimful.fleet.state import OVER, Fleet, JobState, Lease
from brimful.market.ledger import Ledger
from brimful.market.posted import PostedPrice
from brimful.scheduler.cycle import Rules
from brimful.scheduler.loop import Tick, catch_up, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import Ports, Store

log = logging.getLogger("brimful")

E = TypeVar("E", bound=Event)

CHANGING_S = 0.2  # while something starts or stops, look more often: somebody is watching


class Service:
    """The running control plane on one machine."""

    def __init__(
        self,
        store: Store,
        engine: LocalEngine,
        rules: Rules,
        *,
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ports = Ports(store=store, engines={engine.site: engine}, clearing=PostedPrice())
        self._engine = engine
        self._rules = rules
        self._tick_s = tick_s
        self._clock = clock
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.fleet = Fleet()
        self.ledger = Ledger()
        self._booked = 0  # how many events the ledger has seen
        self.last = Tick(plan=Plan())
        self.trouble = ""  # why the last tick failed, empty while all is well

    # -- what users do ---------------------------------------------------------------------------------

    def submit(self, job: Job) -> JobState:
        """Take a job in. Its number is given here, in the order of the log."""

        def event() -> JobSubmitted:
            return JobSubmitted(at_s=self.now_s(), job=replace(job, job=f"job-{len(self.fleet.jobs) + 1}"))

        with self._lock:
            name = self._write(event).job.job
            state = self.fleet.jobs[name]
        log.info("%s submitted: %d GPU(s), %s, %s", name, job.gpus, job.priority, " ".join(job.command)[:200])
        self._wake.set()
        return state

    def cancel(self, name: str) -> JobState:
        def event() -> CancelRequested:
            state = self.job(name)
            if state.phase in OVER:
                raise Refused(f"{name} is already {state.phase}", hint="there is nothing left to cancel")
            return CancelRequested(at_s=self.now_s(), job=name)

        with self._lock:
            self._write(event)
            state = self.fleet.jobs[name]
        log.info("%s: cancel requested", name)
        self._wake.set()
        return state

    # -- what users see --------------------------------------------------------------------------------

    def job(self, name: str) -> JobState:
        with self._lock:
            self.refresh()
            if name not in self.fleet.jobs:
                raise NotFound(f"there is no job {name[:100]!r}", hint="`brimful jobs` lists them")
            return self.fleet.jobs[name]

    def refresh(self) -> None:
        """Fold what others have written since."""
        with self._lock:
            catch_up(self.fleet, self._ports)
            self._book()

    def why_waiting(self, name: str) -> str:
        return self.last.plan.waits.get(name, "the scheduler has not looked at it yet")

    def read_log(self, lease: Lease, *, offset: int, limit: int) -> tuple[int, bytes]:
        start, data, _size = self._engine.log(lease.lease, offset=offset, limit=limit)
        return start, data

    def locked(self) -> threading.RLock:
        """Hold this while reading several things that must agree."""
        return self._lock

    def now_s(self) -> int:
        return int(self._clock())

    # -- the loop --------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        with self._lock:
            before = {name: state.phase for name, state in self.fleet.jobs.items() if state.phase not in OVER}
            self.last = tick(self.fleet, self._ports, self._rules, now_s=self.now_s())
            self._book()
            self._tell(before)
        return self.last

    def start(self) -> None:
        self.refresh()
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
            try:
                self.tick()
                if self.trouble:
                    log.info("the scheduler is well again")
                self.trouble = ""
            except BrimfulError as error:
                if error.problem != self.trouble:
                    log.error("the scheduler cannot go on: %s", error.problem)  # noqa: TRY400 - foreseen
                self.trouble = error.problem
            except Exception:  # a broken tick must be seen, and must not end the server silently
                log.exception("the scheduler met a bug; trying again every %s s", self._tick_s)
                self.trouble = "the scheduler met a bug; see the server's log"
            changing = any(lease.phase != "running" for lease in self.fleet.open_leases.values())
            self._wake.wait(min(self._tick_s, CHANGING_S) if changing else self._tick_s)
            self._wake.clear()

    def _write(self, make: Callable[[], E]) -> E:
        """Append one event made from the current state; made again whenever somebody else was faster."""
        while True:
            self.refresh()
            event = make()
            if self._ports.store.append([event], after=self.fleet.seq):
                self.refresh()
                return event

    def _book(self) -> None:
        for event in self._ports.store.since(self._booked):
            self.ledger.apply(event)
            self._booked += 1

    def _tell(self, before: dict[str, str]) -> None:
        """One readable line for every job that has moved on."""
        for name, phase in before.items():
            state = self.fleet.jobs[name]
            if state.phase != phase:
                lease = state.leases[-1] if state.leases else None
                where = f" on {lease.node} GPU {','.join(map(str, lease.gpus))}" if lease else ""
                log.info("%s %s%s%s", name, state.phase, where, f": {state.reason}" if state.reason else "")
