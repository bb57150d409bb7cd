"""Everything that acts: the ticking thread, leadership, and recovery at start.

One tick at a time, on a separate state: it may wait for engines and the database while readers continue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from brimful.adapters.engines.worker import SiteWorker, Worker, begin_all, close_all, worker_for
from brimful.adapters.observed import Observer, WatchWorker
from brimful.adapters.providers.worker import ProviderWorker
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.snapshot_apart import Apart
from brimful.adapters.stores.sql import LostLead
from brimful.errors import BrimfulError, Said
from brimful.fleet.events import SiteLost
from brimful.fleet.state import Fleet, Node
from brimful.language import say
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cloud.providers import Provider
from brimful.scheduler.loop import Tick, catch_up, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import Ports, Store
from brimful.server.service.beside import Beside
from brimful.server.service.health import Health
from brimful.server.service.reader import Reader
from brimful.server.service.watchdog import Probe, Watchdog

log = logging.getLogger("brimful")

CHANGING_S = 0.2  # while something starts or stops, look more often: somebody is watching
SAMPLES_S = 2.0  # how often samples are read: a Meter writes no more often
SEEK_S = 1.5  # how often a server renews its lead, or checks whether it may take over
LOOP_NICE = -10  # only for the loop's thread: others start processes for it
# Threads of one Python process take turns. One that returns from the disk or a socket waits this long for a
# busy one, say rendering a page; a submit or a tick returns a dozen times. Python's default is 5 ms.
SWITCH_S = 0.001
SNAPSHOT_REST_S = 60.0  # after a failure
LEAVING = 500  # look for departed jobs among past ones once this many have left memory


class Driver:
    def __init__(
        self,
        reader: Reader,
        log: Store,
        *,
        leadership: Leadership | None,
        health: Health,
        tick_s: float,
        folders: Sequence[Path] = (),
        providers: Sequence[Provider] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        """`log`: as the leader writes it and readers follow it. `folders`: whose disks must have room."""
        self._reader, self._leadership, self._health = reader, leadership, health
        self._ports = Ports(
            store=log,
            engines=reader.engines,
            market=None if reader.market is None else Auctions(reader.market),
            providers={each.name: each for each in providers},
            buying=reader.buying,
            sees_load=True,
            may_act=self._may_act,
        )
        self._workers: list[SiteWorker] = []
        self._agents: list[ProviderWorker] = []
        self._observers, self._watchers = observers, list[WatchWorker]()
        self._tick_s = tick_s
        self._ticking = threading.Lock()
        self._fleet = Fleet(keep=snapshot.KEEP)  # under `_ticking`
        self._token: int | None = None  # with which the loop began this tick
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._seeker: threading.Thread | None = None
        self._snapshots: threading.Thread | None = None
        self._snapshot_seq, self._apart = 0, Apart()
        self._beside = [
            Beside("samples", self.measure_all, every_s=SAMPLES_S),
            Beside("watchdog", Watchdog(health, self._all_workers).look, every_s=tick_s),
            Beside("probe", Probe(health, reader.store, folders).look, every_s=health.probe_every_s),
        ]

    @property
    def leads(self) -> bool:
        """Whether this is the server that acts."""
        return self._leadership is None or self._leadership.leads

    def wake(self) -> None:
        """Make the loop look now."""
        self._wake.set()

    def tick(self) -> Tick:
        """One look, and what follows from it. A server that does not lead only reads what happened."""
        with self._ticking:
            if not self.leads:
                self._reader.refresh()
                self._health.problems, self._health.unwatched = {}, {}
                return Tick(plan=Plan())
            self._token = None if self._leadership is None else self._leadership.token
            done = tick(self._fleet, self._ports, self._reader.configured_rules, now_s=self._reader.now_s())
            self._health.problems, self._health.waiting = done.problems, dict(self._ports.waiting)
            self._health.unwatched = dict(self._watch())
            return done

    def _watch(self) -> Iterator[tuple[str, SiteLost]]:
        """Watched sites that do not answer: no event says so, because they are not in the fleet."""
        for each in self._watchers:
            try:
                each.check()
            except BrimfulError as error:
                before, now_s = self._health.unwatched.get(each.site), self._reader.now_s()
                at_s = now_s if before is None else before.at_s
                yield each.site, SiteLost(at_s=at_s, site=each.site, reason=error.said)

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` may raise once the log has been read: then nothing has started."""
        sys.setswitchinterval(SWITCH_S)
        with self._ticking:
            self.load()
            catch_up(self._fleet, self._ports)
        check()
        self._employ()
        if self._leadership is not None:
            self._leadership.seek()
            self._seeker = threading.Thread(target=self._seek, name="lead", daemon=True)
            self._seeker.start()
        thread = threading.Thread(target=self._loop, name="tick", daemon=True)
        thread.start()
        self._health.thread = thread
        for each in self._beside:
            each.start()

    def _employ(self) -> None:
        """From here on the loop asks workers, which never block it."""
        self._workers = [
            worker_for(engine, tell=self._wake.set, permit=self._permit)
            for engine in self._reader.engines.values()
        ]
        self._agents = [
            ProviderWorker(each, tell=self._wake.set, permit=self._permit)
            for each in self._ports.providers.values()
        ]
        begin_all([*self._workers, *self._agents])
        self._watchers = [WatchWorker(each) for each in self._observers]
        for each in self._watchers:
            each.begin()
        self._ports = replace(
            self._ports,
            engines={worker.site: worker for worker in self._workers},
            providers={worker.name: worker for worker in self._agents},
        )

    def _all_workers(self) -> list[Worker]:
        return [*self._workers, *self._agents, *self._watchers]

    def looked(self) -> tuple[list[Node], dict[str, Said]]:
        """What each site has, as of its first look; by site, why it cannot say."""
        nodes: list[Node] = []
        problems: dict[str, Said] = {}
        for worker in self._workers:
            try:
                nodes += worker.nodes()
            except BrimfulError as error:
                problems[worker.site] = error.said
        return nodes, problems

    def stop(self) -> None:
        thread, self._health.thread = self._health.thread, None
        self._stopping.set()
        self._wake.set()
        self._apart.close()
        for each in (thread, self._seeker, self._snapshots):
            if each is not None:
                each.join(timeout=30)
        for other in self._beside:
            other.stop()
        close_all(self._all_workers())
        if self._leadership is not None:
            try:
                self.advance(at_least=snapshot.EVERY // 5)
                self._leadership.give_back()
            except BrimfulError as error:
                log.warning("stopping all the same: %s", error.problem)

    def load(self) -> None:
        """Start from the newest snapshot: one copy for the loop, one for readers."""
        self._fleet = snapshot.load(self._reader.store).fleet
        self._reader.load()
        self._snapshot_seq = self._fleet.seq

    def _loop(self) -> None:
        with contextlib.suppress(OSError):  # if allowed: jobs on this machine must not delay the loop
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOOP_NICE)
        while not self._stopping.is_set():
            pause_s = self._tick_s
            self._health.began_tick()
            try:
                self.tick()
                self._fleet.leaving.clear()  # the readers handle them
                if self.leads and (self._fleet.unsettled or self._fleet.cloud.unsettled):
                    pause_s = min(pause_s, CHANGING_S)
                if self._health.error:
                    log.info("scheduler recovered")
                self._health.error = None
            except LostLead as error:
                log.info("%s", error.problem)
            except BrimfulError as error:
                if error.said != self._health.error:
                    log.error("the scheduler cannot go on: %s", error.problem)  # noqa: TRY400 - expected
                self._health.error = error.said
            except Exception:  # a broken tick must be visible, and must not end the server silently
                log.exception("internal error in the scheduler; trying again every %s s", self._tick_s)
                self._health.error = say("server.loop_bug")
            self._health.ended_tick()
            if self._wake.wait(pause_s):
                # While users come without pause, they get three quarters of the time.
                self._stopping.wait(min(0.1, 3 * self._health.last_tick_s))
            self._wake.clear()

    def measure_all(self) -> None:
        """Also if another server leads: its readers ask too. Off the loop, because jobs write these files."""
        with self._reader.locked():
            leases = list(self._reader.fleet.open_leases.values())
        self._reader.samples.read(leases, now_s=self._reader.now_s())
        self._reader.samples.read_gpus()

    # -- who leads -------------------------------------------------------------------------------------

    def _may_act(self) -> None:
        """With this tick's token: a server that was deposed and leads again has missed events in between."""
        self._check(self._token)

    def _permit(self) -> Callable[[], object]:
        """The same for an order that a worker carries out later."""
        token = self._token
        return lambda: self._check(token)

    def _check(self, token: int | None) -> None:
        if self._leadership is not None and self._leadership.token != token:
            raise LostLead(say("server.lead_lost"))

    def _seek(self) -> None:
        """Off the loop, so that a slow engine does not cost the lead."""
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
                log.exception("internal error while saying that this server lives; trying again")

    # -- snapshots -------------------------------------------------------------------------------------

    def _advance_beside(self) -> None:
        """In a separate thread: folding a long log again takes a minute, and the lead lasts five seconds."""
        if self._snapshots is not None and self._snapshots.is_alive():
            return

        def advance() -> None:
            try:
                self.advance(at_least=snapshot.EVERY, apart=True)
            except BrimfulError as error:
                log.warning("cannot keep a snapshot: %s", error.problem)
            except Exception:
                log.exception("internal error while keeping a snapshot; trying again")

        if self._is_due(at_least=snapshot.EVERY) or self._has_many_leaving():
            self._snapshots = threading.Thread(target=advance, name="snapshots", daemon=True)
            self._snapshots.start()

    def advance(self, *, at_least: int, apart: bool = False) -> None:
        """Keep a snapshot once enough has happened, and drop from memory what it keeps.

        `apart`: another process folds.
        """
        if self._leadership is None:
            return
        if self._is_due(at_least=at_least):
            seq, fence, store = self._reader.fleet.seq, self._leadership.token, self._leadership.store
            if not apart:
                snapshot.advance(store, fence=fence, at_least=at_least)
            elif problem := self._apart.advance(store, fence=fence, at_least=at_least):
                if not self._stopping.is_set():
                    log.warning("cannot keep a snapshot: %s", problem)
                self._stopping.wait(SNAPSHOT_REST_S)
                return
            self._snapshot_seq = seq
        if self._has_many_leaving():
            self._reader.let_go(by_seq=self._reader.store.snapshot_seq())

    def _is_due(self, *, at_least: int) -> bool:
        return self.leads and self._reader.fleet.seq - self._snapshot_seq >= at_least

    def _has_many_leaving(self) -> bool:
        return len(self._reader.fleet.leaving) >= LEAVING
