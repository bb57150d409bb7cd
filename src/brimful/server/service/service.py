"""The parts put together: one state for the readers, one for the loop, one log that both follow.

The loop has a separate state, so that it may wait for engines and the database. Whatever it or a user reads
from or writes to the log is folded into a second state, which all readers share: no reader waits for the
outside world.

Several servers may share one database. All of them answer and accept jobs; one of them, the leader, acts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from brimful.adapters.capabilities import Admits, environment_keepers
from brimful.adapters.code import CodeStore
from brimful.adapters.observed import Observer
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.market.pools import Market
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.cloud.providers import Provider
from brimful.scheduler.ports import Engine
from brimful.scheduler.rules import Rules
from brimful.server.rehearsing.forecaster import Forecaster
from brimful.server.rehearsing.rehearser import BESIDE_S as REHEARSE_LOOK_S
from brimful.server.rehearsing.rehearser import RehearsalTerms, Rehearser
from brimful.server.service.beside import Beside
from brimful.server.service.driver import Driver
from brimful.server.service.health import Health
from brimful.server.service.hindsight import LOOK_S as AUDIT_LOOK_S
from brimful.server.service.hindsight import Hindsight, Monthly
from brimful.server.service.history import History
from brimful.server.service.idle import LOOK_S as IDLE_LOOK_S
from brimful.server.service.idle import IdleHolders, IdleRule
from brimful.server.service.notify import LOOK_S as NOTIFY_LOOK_S
from brimful.server.service.notify import Notifier, Outbound
from brimful.server.service.observed_store import ObservedStore
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions

log = logging.getLogger("brimful")

CHECKPOINT_S = 2.0
COURSES_S = 300.0


class Service:
    """The control plane of one server."""

    def __init__(
        self,
        store: History,
        engines: Sequence[Engine],
        rules: Rules,
        *,
        policy: str = "unnamed",
        leadership: Leadership | None = None,
        market: Market | None = None,
        providers: Sequence[Provider] = (),
        observers: Sequence[Observer] = (),
        buying: Buying | None = None,
        code: CodeStore | None = None,
        notify: tuple[NotifyStore, Outbound] | None = None,
        idle: dict[str, IdleRule] | None = None,
        rehearsal: RehearsalTerms | None = None,
        tick_s: float = 1.0,
        folders: Sequence[Path] = (),
        courses: Path | None = None,
        max_queued: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a `leadership` it is alone, and leads; without a `market` all pools have posted prices.

        `providers` sell nodes, as far as `buying` lets the scheduler spend. `policy` is the name of the
        rules, `code` the store of packed code. Without `notify` no one is notified, without `idle` no job is
        reported as idle, and without `rehearsal` it does not rehearse its past. `courses` is the file that
        saves what jobs measured over time.
        """
        self.code = code
        health, keepers = Health(tick_s=tick_s), environment_keepers(engines)
        self.reader = Reader(
            store,
            {engine.site: engine for engine in engines},
            rules,
            policy=policy,
            market=market,
            buying=buying,
            providers=providers,
            health=health,
            clock=clock,
        )
        as_leader = store if leadership is None else leadership.fenced_log()
        self.driver = Driver(
            self.reader,
            ObservedStore(as_leader, self.reader, keepers),
            leadership=leadership,
            health=health,
            tick_s=tick_s,
            folders=folders,
            providers=providers,
            observers=observers,
        )
        self.submissions = Submissions(
            self.reader,
            ObservedStore(store, self.reader, keepers),
            keepers,
            wake=self.driver.wake,
            max_queued=max_queued,
            admitting=[engine for engine in engines if isinstance(engine, Admits)],
        )
        self.hindsight, self.forecaster = Hindsight(self.reader), Forecaster(self.reader)
        self.notifier = None if notify is None else Notifier(self.reader, *notify)
        self.idle = IdleHolders(self.reader, self.submissions.note, idle or {})
        self.rehearser = None if rehearsal is None else Rehearser(self.reader, self.submissions, rehearsal)
        self._courses = courses
        if courses is not None:
            self.reader.samples.load_courses(courses)
        self._beside: list[Beside] = []
        self._add_rounds(store, idle=bool(idle))

    def _add_rounds(self, store: History, *, idle: bool) -> None:
        if self.rehearser is not None:
            self.beside("rehearsal", self.rehearser.look, every_s=REHEARSE_LOOK_S, at_once=False)
        if isinstance(store, SqlStore):
            self.beside("checkpoint", store.checkpoint, every_s=CHECKPOINT_S, at_once=False)
        if self._courses is not None:
            self.beside("courses", self._save_courses, every_s=COURSES_S, at_once=False)
        if idle:
            self.beside("idle", self.idle.look, every_s=IDLE_LOOK_S)
        if self.notifier is not None:
            self.beside("notify", self.notifier.round, every_s=NOTIFY_LOOK_S)
            self.monthly = Monthly(self.hindsight, self.notifier.store, self.reader.now_s)
            self.beside("audit", self.monthly.round, every_s=AUDIT_LOOK_S)

    def beside(self, name: str, act: Callable[[], None], *, every_s: float, at_once: bool = True) -> None:
        """Do this off the loop, from `start` to `stop`, while this server leads."""
        leads = lambda: self.driver.leads  # noqa: E731
        self._beside.append(Beside(name, act, every_s=every_s, at_once=at_once, leads=leads))

    def _save_courses(self) -> None:
        if self._courses is not None:
            self.reader.samples.save_courses(self._courses)

    def start(self) -> None:
        self.driver.start(self.submissions.check_tenants)
        for each in self._beside:
            each.start()

    def stop(self) -> None:
        """End the loop. Running jobs keep running; the next start finds them again."""
        if self.rehearser is not None:
            self.rehearser.close()
        self.hindsight.close()
        self.forecaster.close()
        for each in self._beside:
            each.stop()
        try:
            self._save_courses()
        except OSError as error:  # a full disk must not prevent a stop
            log.warning("%s", error)
        self.driver.stop()
