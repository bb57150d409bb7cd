"""What the API, the console and the loop do, without HTTP.

The loop has a state of its own, so that it may take its time with engines and database. Whatever it or a user
reads from the log or writes to it is folded into a second one, which all readers share: nobody who only looks
waits for the world. Two locks: `_turn` for one look of the loop at a time, and `_lock`, short and never held
over I/O, for what readers see.

Several servers may share one database. All of them answer and take jobs in; one of them, the leader, acts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from brimful.adapters.capabilities import Complains, KeepsEnvironments, KeepsLogs, LogPiece
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.past import PastJob
from brimful.adapters.stores.sql import LostLead, SqlStore
from brimful.errors import BrimfulError, NotFound, Refused, WorldFailed
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobHeld,
    JobReleased,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    MoveRequested,
    NodeDrained,
    NodeResumed,
)
from brimful.fleet.job import Job
from brimful.fleet.state import OVER, Fleet, JobState, Lease, Pool
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.market.posted import PostedPrice
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cycle import Rules, decide
from brimful.scheduler.loop import MAX_CONFLICTS, Tick, catch_up, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import Engine, Ports, Store
from brimful.server.measured import Samples
from brimful.server.submissions import Submissions
from brimful.server.tellers import Fenced, Told

log = logging.getLogger("brimful")

CHANGING_S = 0.2  # while something starts or stops, look more often: somebody is watching
SAMPLES_S = 2.0  # how often samples are looked at: a Meter writes no sooner
SEEK_S = 1.5  # how often a server says that it leads, or looks whether it may
LEAVING = 500  # jobs that have left memory are looked for among past ones once so many have
SILENT_S = 60  # a loop that has not come round for so long is in trouble, whatever it says


class Service:
    """The running control plane on one machine."""

    def __init__(
        self,
        store: Store,
        engines: Engine | Sequence[Engine],
        rules: Rules,
        *,
        leadership: Leadership | None = None,
        market: Market | None = None,
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a `leadership` it is alone, and leads; without a `market` all pools have posted prices."""
        self.store = store
        self._leadership = leadership
        self._store = Told(store, self._fold)
        mine = Told(Fenced(store, leadership), self._fold) if leadership is not None else self._store
        self._ports = Ports(
            store=mine,
            engines={each.site: each for each in (engines if isinstance(engines, Sequence) else [engines])},
            clearing=PostedPrice(),
            market=None if market is None else Auctions(market),
            may_act=self._may_act,
        )
        self.samples = Samples(self._ports.engines)
        self._sampled_s = 0.0
        self._rules = rules
        self._tick_s = tick_s
        self._clock = clock
        self._turn = threading.Lock()
        self._submissions = Submissions(
            lambda: self.fleet, write=self._write, keepers=self._keepers, now_s=self.now_s
        )
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seeker: threading.Thread | None = None
        self._snapshots: threading.Thread | None = None
        self._turns_token: int | None = None  # the one with which the loop began its turn
        self._loops = Fleet(keep=snapshot.KEEP)  # the loop's own, under `_turn`
        self._snapshot_seq = 0
        self._came_round_s = time.monotonic()
        self._trouble = ""  # why the last tick failed, empty while all is well
        self.last = Tick(plan=Plan())
        # What readers see, under `_lock`.
        self._seen = snapshot.Fold()
        self._reasons: tuple[tuple[int, int], Plan] | None = None
        self._rest_until = 0.0
        self._prices = PostedPrice()
        self.market = market
        self._readers_market = None if market is None else Auctions(market)

    # -- what users do ---------------------------------------------------------------------------------

    def submit(self, job: Job) -> JobState:
        """Take a job in. Its number is given here, in the order of the log.

        The values of its environment go to those who run it, before it is in the log, and not into the log.
        A second submission under a submitter's key is the first: the job it made is given back.
        """
        name, is_new = self._submissions.take(job)
        if is_new:
            # Not its command: people put passwords on command lines.
            log.info("%s submitted by %s: %d GPU(s), %s", name, job.tenant, job.gpus, job.priority)
            self._wake.set()
        return self.job(name)

    def cancel(self, name: str) -> JobState:
        def events() -> Sequence[Event]:
            state = self.job(name)
            if state.phase in OVER:
                raise Refused(f"{name} is already {state.phase}", hint="there is nothing left to cancel")
            return [CancelRequested(at_s=self.now_s(), job=name)]

        return self.asked(name, "cancel", events)

    def hold(self, name: str, *, reason: str = "put on hold") -> JobState:
        """Keep it from starting; one that runs is stopped as a preemption stops it. Again changes nothing."""

        def events() -> Sequence[Event]:
            state = self.going(name, "hold")
            if state.hold:
                return ()
            now_s = self.now_s()
            return [JobHeld(at_s=now_s, job=name, reason=reason), *_stop_of(state, reason, now_s=now_s)]

        return self.asked(name, "hold", events)

    def release(self, name: str) -> JobState:
        def events() -> Sequence[Event]:
            return [JobReleased(at_s=self.now_s(), job=name)] if self.going(name, "release").hold else ()

        return self.asked(name, "release", events)

    def move(self, name: str, site: str) -> JobState:
        """From now on it runs at this site (empty: at any); one that runs elsewhere is stopped first."""

        def events() -> Sequence[Event]:
            state = self.going(name, "move")
            here = {node.site for node in self.fleet.nodes.values()}
            if site and site not in here:
                raise NotFound(
                    f"there is no site {site[:100]!r}", hint=f"there are {', '.join(sorted(here))}"
                )
            wanted = (site,) if site else ()
            if state.job.sites == wanted:
                return ()
            now_s, lease = self.now_s(), state.open_lease
            moved = MoveRequested(at_s=now_s, job=name, sites=wanted)
            elsewhere = site and lease is not None and lease.site != site
            return [moved, *(_stop_of(state, f"moves to {site}", now_s=now_s) if elsewhere else ())]

        return self.asked(name, "move", events)

    def drain(self, node: str, *, reason: str = "") -> None:
        """Nothing more starts there; what runs goes on."""

        def events() -> Sequence[Event]:
            self._node(node)
            if node in self.fleet.drained:
                return ()
            return [NodeDrained(at_s=self.now_s(), node=node, reason=reason)]

        self._write(events)
        self._wake.set()

    def resume(self, node: str) -> None:
        def events() -> Sequence[Event]:
            self._node(node)
            return [NodeResumed(at_s=self.now_s(), node=node)] if node in self.fleet.drained else ()

        self._write(events)
        self._wake.set()

    def _node(self, name: str) -> None:
        if name not in self.fleet.nodes:
            raise NotFound(f"there is no node {name[:100]!r}", hint="`brimful fleet` lists them")

    def going(self, name: str, verb: str) -> JobState:
        state = self.job(name)
        if state.phase in OVER or state.cancel_requested:
            phase = state.phase if state.phase in OVER else "being cancelled"
            raise Refused(f"{name} is already {phase}", hint=f"there is nothing left to {verb}")
        return state

    def asked(self, name: str, verb: str, events: Callable[[], Sequence[Event]]) -> JobState:
        if self.write(events):
            log.info("%s: %s requested", name, verb)
        return self.job(name)

    def write(self, events: Callable[[], Sequence[Event]]) -> Sequence[Event]:
        """Append what is made of the state, and have the loop look at it."""
        written = self._write(events)
        self._wake.set()
        return written

    # -- what users see --------------------------------------------------------------------------------

    def job(self, name: str) -> JobState:
        with self._lock:
            if name in self.fleet.jobs:
                return self.fleet.jobs[name]
            if name in self.fleet.leaving:
                return self.fleet.leaving[name].state
        past = self.store.past_job(name) if isinstance(self.store, SqlStore) else None
        if past is None:
            raise NotFound(f"there is no job {name[:100]!r}", hint="`brimful jobs` lists them")
        return past.state

    def tenants_of(self, names: Collection[str]) -> dict[str, str]:
        """Whose jobs these are, of those that there are; the database is asked once for all of the past."""
        with self._lock:
            here = {name: self.fleet.jobs.get(name) for name in names}
            left = {name: self.fleet.leaving[name].state for name in names if name in self.fleet.leaving}
        known = {name: state.job.tenant for name, state in (here | left).items() if state is not None}
        past = [name for name in names if name not in known]
        if past and isinstance(self.store, SqlStore):
            known |= self.store.past_tenants(past)
        return known

    def past_jobs(
        self, *, before_serial: int | None = None, limit: int = 200, tenant: str | None = None
    ) -> list[PastJob]:
        """Jobs that have left memory, newest first, with what they cost; those in memory are `fleet.jobs`."""
        with self._lock:
            spent = self._seen.spent
            leaving = [
                PastJob(state=left.state, spent_microusd=spent[name])
                for name, left in self.fleet.leaving.items()
                if (before_serial is None or left.state.serial < before_serial)
                and (tenant is None or left.state.job.tenant == tenant)
            ]
        kept = (
            self.store.past_jobs(before=before_serial, limit=limit, tenant=tenant)
            if isinstance(self.store, SqlStore)
            else []
        )
        found = {past.state.serial: past for past in (*kept, *leaving)}
        return [found[serial] for serial in sorted(found, reverse=True)[:limit]]

    def spent_microusd(self, name: str) -> int:
        """What is on the ledger for the job, whether or not it has left memory."""
        with self._lock:
            if name in self.fleet.jobs or name in self._seen.spent:
                return self.ledger.spent_microusd.get(name, self._seen.spent.get(name, 0))
        past = self.store.past_job(name) if isinstance(self.store, SqlStore) else None
        return 0 if past is None else past.spent_microusd

    def phase_of(self, state: JobState) -> str:
        """`unknown` while the job's site does not answer: nobody can tell whether it has ended."""
        lease = state.open_lease
        return "unknown" if lease is not None and lease.site in self.fleet.silent else state.phase

    @property
    def fleet(self) -> Fleet:
        return self._seen.fleet

    @property
    def ledger(self) -> Ledger:
        return self._seen.ledger

    @property
    def leads(self) -> bool:
        """Whether this is the server that acts."""
        return self._leadership is None or self._leadership.leads

    def refresh(self) -> None:
        """Fold what others have written since. The loop does so at every look; readers need not."""
        while self._store.since(self.fleet.seq):
            pass

    def why_waiting(self, name: str) -> str:
        """Decided again on what readers see, for the loop's plan is its own.

        Once for each state of the log and second; where that takes long, no more than a tenth of the time.
        """
        with self._lock:
            now_s, began = self.now_s(), time.monotonic()
            if self._reasons is None or (
                self._reasons[0] != (self.fleet.seq, now_s) and began > self._rest_until
            ):
                plan = decide(
                    self.fleet,
                    self._rules,
                    self._prices.clear(self.fleet, now_s=now_s),
                    now_s=now_s,
                    unreachable=self.last.problems.keys(),
                    market=self._readers_market,
                )
                self._reasons = ((self.fleet.seq, now_s), plan)
                ended = time.monotonic()
                self._rest_until = ended + 9 * (ended - began)
            try:
                return self._reasons[1].waits.get(name, "")  # nothing to say of one that is about to start
            except (KeyError, AssertionError):  # the fleet has moved on since
                return ""

    @property
    def rules(self) -> Rules:
        return self._rules

    def prices(self) -> Mapping[Pool, int]:
        """What a lease that begins now pays, in micro-dollars per GPU-hour."""
        with self._lock:
            posted = self._prices.clear(self.fleet, now_s=self.now_s())
            if self.market is None:
                return posted
            sold = (pool for pool in self.market.in_fleet(self.fleet) if pool in self.fleet.prices)
            return {**posted, **{pool: self.fleet.prices[pool].last.billed for pool in sold}}

    def records(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` events after that place of the log, as it holds them."""
        assert isinstance(self.store, SqlStore), "only a database holds records"
        return [
            {name: row[name] for name in ("seq", "at_s", "kind", "body")}
            for row in self.store.records(after, limit)
        ]

    def read_log(self, lease: Lease, *, offset: int, limit: int) -> LogPiece:
        engine: object = self._ports.engines.get(lease.site)
        if not isinstance(engine, KeepsLogs):
            raise Refused(f"the engine at {lease.site} keeps no logs", code="no_logs")
        return engine.log(lease.lease, offset=offset, limit=limit)

    def measure(self, state: JobState) -> JobState:
        """Look at what its newest lease has measured, though it be over; `samples` has it then."""
        self.samples.look(state.leases[-1:], now_s=self.now_s())
        return state

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
        """One look, and what follows from it. A server that does not lead only takes in what happened."""
        with self._turn:
            if not self.leads:
                self.refresh()
                self.last = Tick(plan=Plan())
                return self.last
            self._turns_token = None if self._leadership is None else self._leadership.token
            self.last = tick(self._loops, self._ports, self._rules, now_s=self.now_s())
            return self.last

    def start(self) -> None:
        with self._turn:
            self._load()
            catch_up(self._loops, self._ports)
        if self._leadership is not None:
            self._leadership.seek()
            self._seeker = threading.Thread(target=self._seek, name="lead", daemon=True)
            self._seeker.start()
        self._came_round_s = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="tick", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop. Running jobs go on; the next start finds them again."""
        self._stopping.set()
        self._wake.set()
        for thread in (self._thread, self._seeker, self._snapshots):
            if thread is not None:
                thread.join(timeout=30)
        if self._leadership is not None:
            try:
                self._advance(at_least=snapshot.EVERY // 5)
                self._leadership.give_back()
            except BrimfulError as error:
                log.warning("stopping all the same: %s", error.problem)

    def _load(self) -> None:
        """Begin with the newest snapshot: one for the loop, one for readers."""
        if isinstance(self.store, SqlStore):
            self._loops = snapshot.load(self.store).fleet
            with self._lock:
                self._seen = snapshot.load(self.store)
            self._snapshot_seq = self._loops.seq

    def _may_act(self) -> None:
        """With the token of this turn: who was deposed and leads again has missed what was between."""
        if self._leadership is not None and self._leadership.token != self._turns_token:
            raise LostLead("this server did not lead for a while", hint="the next turn begins anew")

    def _seek(self) -> None:
        """Beside the loop, so that an engine that takes long does not cost the lead."""
        assert self._leadership is not None
        led = self._leadership.leads
        while not self._stopping.wait(SEEK_S):
            try:
                leads = self._leadership.seek()
                if leads != led:
                    log.info("this server leads now" if leads else "another server leads now")
                    self._wake.set()
                led = leads
                self._advance_beside()
            except BrimfulError as error:
                log.warning("cannot say that this server lives: %s", error.problem)
            except Exception:  # without this thread nobody leads
                log.exception("met a bug while saying that this server lives; trying again")

    def _advance_beside(self) -> None:
        """In a thread of its own: folding a long log anew takes a minute, and the lead lasts five seconds."""
        if self._snapshots is not None and self._snapshots.is_alive():
            return

        def advance() -> None:
            try:
                self._advance(at_least=snapshot.EVERY)
            except BrimfulError as error:
                log.warning("cannot keep a snapshot: %s", error.problem)
            except Exception:
                log.exception("met a bug while keeping a snapshot; trying again")

        if self._wants_advance(at_least=snapshot.EVERY):
            self._snapshots = threading.Thread(target=advance, name="snapshots", daemon=True)
            self._snapshots.start()

    def _wants_advance(self, *, at_least: int) -> bool:
        due = self.leads and self.fleet.seq - self._snapshot_seq >= at_least
        return due or len(self.fleet.leaving) >= LEAVING

    def _advance(self, *, at_least: int) -> None:
        """Keep a snapshot once enough has happened, and let go of what it keeps."""
        if not isinstance(self.store, SqlStore) or self._leadership is None:
            return
        if self.leads and self.fleet.seq - self._snapshot_seq >= at_least:
            seq = self.fleet.seq
            snapshot.advance(self.store, fence=self._leadership.token, at_least=at_least)
            self._snapshot_seq = seq
        if len(self.fleet.leaving) >= LEAVING:
            kept = self.store.snapshot_seq()
            with self._lock:
                self._seen.let_go(by_seq=kept)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            pause_s, began = self._tick_s, time.monotonic()
            try:
                self.tick()
                self._measure_all()
                self._loops.leaving.clear()  # readers look after them
                if self.leads and self._loops.unsettled:
                    pause_s = min(pause_s, CHANGING_S)
                if self._trouble:
                    log.info("the scheduler is well again")
                self._trouble = ""
            except LostLead as error:
                log.info("%s", error.problem)
            except BrimfulError as error:
                if error.problem != self._trouble:
                    log.error("the scheduler cannot go on: %s", error.problem)  # noqa: TRY400 - foreseen
                self._trouble = error.problem
            except Exception:  # a broken tick must be seen, and must not end the server silently
                log.exception("the scheduler met a bug; trying again every %s s", self._tick_s)
                self._trouble = "the scheduler met a bug; see the server's log"
            self._came_round_s = time.monotonic()
            if self._wake.wait(pause_s):
                # While users come without pause, they get half of the time.
                self._stopping.wait(min(0.1, self._came_round_s - began))
            self._wake.clear()

    def _measure_all(self) -> None:
        """Also where another server leads: its readers ask too."""
        if time.monotonic() - self._sampled_s >= SAMPLES_S:
            with self._lock:
                leases = list(self.fleet.open_leases.values())
            self.samples.look(leases, now_s=self.now_s())
            self._sampled_s = time.monotonic()

    # -- the log ---------------------------------------------------------------------------------------

    def _write(
        self, make: Callable[[], Sequence[Event]], *, first: Callable[[], None] = lambda: None
    ) -> Sequence[Event]:
        """Append the events made from the current state, all or none; made again when somebody was faster.

        `first` is what must be done, outside of the lock, before they may be in the log.
        """
        for _ in range(MAX_CONFLICTS):
            with self._lock:
                events, after = make(), self.fleet.seq
            if not events:
                return ()
            first()
            if self._store.append(events, after=after):
                return events
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
                self._seen.apply(event)
            moved = self._moved(events) if written else {}
            over = [name for name in moved if self.job(name).phase in OVER]
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
            lease = self.fleet.leases.get(event.lease)
            if lease is None:
                continue  # it has left memory with this very event
            state = self.fleet.jobs[lease.job]
            reason = f": {state.reason}" if state.reason else ""
            gpus = ",".join(map(str, lease.gpus))
            lines[lease.job] = f"{lease.job} {state.phase} on {lease.node} GPU {gpus}{reason}"
        return lines


def _stop_of(state: JobState, reason: str, *, now_s: int) -> Sequence[Event]:
    """What ends its lease so that it waits again, if it has one that was not told to end."""
    lease = state.open_lease
    if lease is None or lease.phase == "ending":
        return ()
    return [LeaseEnding(at_s=now_s, lease=lease.lease, reason=reason, requeue=True)]
