"""One worker per site and provider looks and acts there, so that the loop never waits for any of them.

The loop calls a worker like an engine and is answered at once from the last look. If the next one takes too
long, the site counts as lost. Orders from the loop are queued. A failed order raises when it is given again,
and the loop repeats orders until it sees their effect.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from brimful.adapters.plausible import plausible
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.state import Node
from brimful.language import say, verbatim
from brimful.scheduler.cloud.providers import Host, Takes
from brimful.scheduler.ports import CannotStart, Carries, Engine, Failures, Observation, Start, Warns

log = logging.getLogger("brimful")

SILENT_S = 15.0  # a site that has not answered for this long counts as lost
STUCK_S = 5.0  # a step that takes this long is named in the server's log
AGAIN_S = 1.0  # before an order that was carried out is given to the engine again
BATCH = 32  # orders per call to an engine: it looks in between
ORDERS_S = 1.0  # how long orders run before the next look, at least one of them
FIRST_LOOK_S = 5.0  # how long a starting server waits for the first answers of all sites
CLOSE_S = 10.0  # how long a stopping server waits for workers to finish

ENDS = frozenset({"stop", "remove"})  # kinds of orders that change nothing when they are carried out again

Key = tuple[str, str, object]  # an order: kind, name and what distinguishes it
Permit = Callable[[], Callable[[], object]]


@dataclass(slots=True)
class Look:
    """An engine's answer, and when it was asked."""

    at: float
    nodes: Sequence[Node]
    seen: dict[str, Observation] = field(default_factory=dict)
    unread: dict[str, Observation] = field(default_factory=dict)  # by the loop, of any look so far


@dataclass(frozen=True, slots=True)
class Order:
    kind: str  # start, stop or warn; make or remove
    name: str  # of the lease or the node
    what: Any  # for a start or a node, the order itself; for a stop, its grace; for a warning, its deadline
    may_act: Callable[[], object]


def no_limit() -> Callable[[], object]:
    return lambda: None


class Worker(ABC):
    """A thread that alternates between looks and orders. Subclasses say what these ask of the world."""

    certain: type[BrimfulError]  # the failure of an order that is final
    again_s = AGAIN_S

    def __init__(
        self,
        name: str,
        *,
        tell: Callable[[], object] = lambda: None,
        permit: Permit = no_limit,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        """`tell` is called when the loop should look; `permit` is called before an order acts."""
        self.site, self._tell, self._permit = name, tell, permit
        self._clock, self._silent_s = clock, silent_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._looked = threading.Event()
        self._closing = False
        self._wanted: float | None = clock()  # since when a look is asked for that has not begun
        self._awaited: float | None = None  # the same of the look that goes on
        self._failed: BrimfulError | None = None  # of the last look, unless it succeeded
        self._queue: deque[Order] = deque()
        self._pending: set[Key] = set()
        self._done: dict[Key, float] = {}
        self._errors: dict[Key, BrimfulError] = {}
        self._acted: dict[str, float] = {}  # by name, when the last order that could change it was completed
        self.took_s: dict[str, float] = {}  # by step, how long the last one took
        self._step: tuple[str, float] | None = None  # the current step, and since when
        self._named: tuple[str, float] | None = None
        self._heard = clock()  # when it last answered, even with an error
        self._thread = threading.Thread(target=self._run, name=f"site {name}", daemon=True)

    @abstractmethod
    def _ask_world(self) -> object:
        """One look, off the loop."""

    @abstractmethod
    def _keep(self, found: Any, *, at: float) -> bool:  # noqa: ANN401 - the result of `_ask_world`
        """Store what a look found, under the lock; returns whether it differs from the last one."""

    @abstractmethod
    def _act(self, orders: Sequence[Order]) -> Failures:
        """Carry out orders of one kind, off the loop."""

    def begin(self) -> None:
        self._thread.start()

    def has_looked(self, within_s: float) -> bool:
        return self._looked.wait(within_s)

    def ask_to_close(self) -> None:
        self._closing = True
        self._wake.set()

    def has_closed(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # -- what the loop asks ------------------------------------------------------------------------------

    def _check_heard(self, *, is_known: bool) -> None:
        """Under the lock. WorldFailed if the last look failed, or one that was asked for takes too long."""
        asked, failed = self._wanted if self._awaited is None else self._awaited, self._failed
        is_late = asked is not None and self._clock() - max(asked, self._heard) > self._silent_s
        if failed is not None and not is_late:
            # A new one each time: an exception raised again and again would accumulate tracebacks.
            raise WorldFailed(failed.said, hint=failed.way_out, code=failed.code)
        if is_late or not is_known:
            step = say("adapters.site_looks") if self._step is None else verbatim(self._step[0])
            said = say("adapters.site_silent", step=step)
            if failed is not None:
                said = say("adapters.site_failed_then_silent", before=failed.said, now=said)
            raise WorldFailed(said, code="site_silent")

    def _ask_for_look(self) -> None:
        """Under the lock."""
        if self._wanted is None:
            self._wanted = self._clock()
        self._wake.set()

    def _give(self, kind: str, orders: Mapping[str, Any]) -> Failures:
        """Queue orders unless already queued or just carried out; raises what went wrong with them before."""
        failed: dict[str, BrimfulError] = {}
        with self._lock:
            for name, what in orders.items():
                key = _key(kind, name, what)
                error = self._errors.pop(key, None)
                if error is not None:
                    failed[name] = error
                elif key not in self._pending and self._is_over(key):
                    self._pending.add(key)
                    self._queue.append(Order(kind, name, what, self._permit()))
        self._wake.set()
        return failed

    def _is_over(self, key: Key) -> bool:
        done = self._done.get(key)
        return done is None or self._clock() - done >= self.again_s

    def _may_change(self, key: Key) -> bool:
        """Whether a look before this order is completed may be out of date afterwards.

        The loop repeats an order until it sees its effect. A look that takes longer than that would be out of
        date each time, and the effect would never be seen.
        """
        return key[0] not in ENDS or key not in self._done

    def _unsure(self) -> set[str]:
        """Names with an order in progress that may change what a look finds."""
        return {key[1] for key in self._pending if self._may_change(key)}

    def _forget(self, names: Collection[str]) -> None:
        """Drop what is known of those that are over."""
        if len(self._acted) > 2 * len(names) + 100:
            self._acted = {name: at for name, at in self._acted.items() if name in names}
            self._done = {key: at for key, at in self._done.items() if key[1] in names}
            self._errors = {key: error for key, error in self._errors.items() if key[1] in names}

    # -- what the worker does ----------------------------------------------------------------------------

    def stuck(self) -> tuple[str, float] | None:
        """The step that takes too long, and for how long; each is reported once."""
        step = self._step
        if step is None or step == self._named or self._clock() - step[1] < STUCK_S:
            return None
        self._named = step
        return step[0], self._clock() - step[1]

    def latency(self) -> dict[str, float]:
        """How long the last run of each step took, or the current run if that is longer."""
        took_s, step = dict(self.took_s), self._step
        if step is not None:
            kind = step[0].partition(" ")[0]
            took_s[kind] = max(took_s.get(kind, 0.0), self._clock() - step[1])
        return took_s

    def _run(self) -> None:
        """Looks and orders alternate: a slow look that is always due again does not block orders."""
        orders_until: float | None = None
        while not self._closing:
            with self._lock:
                due = self._wanted is not None and (not self._queue or orders_until is None)
                orders = [] if due else self._next_batch()
                if due:
                    self._awaited, self._wanted = self._wanted, None
            if due:
                self._look()
                orders_until = self._clock() + ORDERS_S
            elif orders:
                self._carry_out(orders)
                if orders_until is not None and self._clock() >= orders_until:
                    orders_until = None
            else:
                self._wake.wait()
                self._wake.clear()

    def _next_batch(self) -> list[Order]:
        """The orders that can be given at once: of one kind, in order of arrival."""
        batch: list[Order] = []
        while self._queue and len(batch) < BATCH and (not batch or _alike(batch[0], self._queue[0])):
            batch.append(self._queue.popleft())
        return batch

    def _look(self) -> None:
        at = self._clock()
        try:
            found = self._ask_world()
        except Exception as error:  # noqa: BLE001 - a site's bug must not affect other sites
            self._keep_failure(error)
            return
        finally:
            self._looked.set()
        with self._lock:
            # Only if something differs from the last look: the loop looks again each time it is told.
            failed = self._failed
            differs = self._keep(found, at=at) or failed is not None
            self._failed, self._heard, self._awaited = None, at, None
        if failed is not None:
            log.info("site %s answers again", self.site)
        if differs:
            self._tell()

    def _keep_failure(self, error: Exception) -> None:
        """It has been heard now: a look that fails may take longer than a site may be silent."""
        ours = _as_brimful_error(error, self.site)
        with self._lock:
            before, self._failed, self._heard = self._failed, ours, self._clock()
            self._awaited = None
        if before is None or before.problem != ours.problem:  # not again for each look
            bug = None if ours is error else error
            log.warning("site %s does not answer: %s", self.site, ours.problem, exc_info=bug)
            self._tell()

    def _carry_out(self, orders: Sequence[Order]) -> None:
        kind, more = orders[0].kind, f" and {len(orders) - 1} more" if len(orders) > 1 else ""
        failed: dict[str, BrimfulError] = {}
        try:
            for order in orders:
                order.may_act()
            with self._timed(kind, f" {orders[0].name}{more}"):
                failed = {name: self._foreseen(error) for name, error in self._act(orders).items()}
        except Exception as error:  # noqa: BLE001 - one site's failure must not block others
            foreseen = self._foreseen(error)
            if isinstance(foreseen, self.certain):  # from one of them, but we do not know which
                foreseen = WorldFailed(foreseen.said)
            failed = dict.fromkeys((order.name for order in orders), foreseen)
        with self._lock:
            for order in orders:
                key = _key(kind, order.name, order.what)
                self._pending.discard(key)
                if self._may_change(key):
                    self._acted[order.name] = self._clock()
                self._done[key] = self._clock()
                if order.name in failed:
                    self._errors[key] = failed[order.name]
                    del self._done[key]  # will be tried again when asked again
            self._ask_for_look()
        if any(isinstance(error, self.certain) for error in failed.values()) or not self._queue:
            self._tell()

    def _foreseen(self, error: Exception) -> BrimfulError:
        ours = _as_brimful_error(error, self.site)
        if ours is not error:
            log.error("site %s: internal error", self.site, exc_info=error)
        return ours

    @contextmanager
    def _timed(self, step: str, of: str = "") -> Iterator[None]:
        began = self._clock()
        self._step = (f"{step}{of}", began)
        try:
            yield
        finally:
            self._step = None
            self.took_s[step] = self._clock() - began


class SiteWorker(Worker):
    """The scheduler's Engine port, answered from memory."""

    certain = CannotStart

    def __init__(
        self,
        engine: Engine,
        *,
        tell: Callable[[], object] = lambda: None,
        permit: Permit = no_limit,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        super().__init__(engine.site, tell=tell, permit=permit, clock=clock, silent_s=silent_s)
        self._engine = engine
        self._leases: frozenset[str] = frozenset()
        self._last: Look | None = None

    def nodes(self) -> Sequence[Node]:
        """As of the last look; WorldFailed if that failed or the next takes too long. Asks for a new look."""
        with self._lock:
            self._ask_for_look()
            self._check_heard(is_known=self._last is not None)
            assert self._last is not None
            return self._last.nodes

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        """News since the loop last asked."""
        with self._lock:
            if self._leases != leases:
                self._leases = frozenset(leases)
                self._ask_for_look()
            self._forget(leases)
            last = self._last
            if last is None:
                return []
            seen = [each for each in last.unread.values() if self._is_news(each, at=last.at)]
            last.unread.clear()
        self._wake.set()
        return seen

    def start(self, starts: Sequence[Start]) -> Failures:
        return self._give("start", {each.lease: each for each in starts})

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        return self._give("stop", dict.fromkeys(leases, grace_s))

    def _is_news(self, seen: Observation, *, at: float) -> bool:
        """A missing lease means nothing if we looked before its last order was completed."""
        if seen.state != "absent":
            return True
        return seen.lease not in self._unsure() and self._acted.get(seen.lease, at) <= at

    def _ask_world(self) -> tuple[Sequence[Node], Sequence[Observation]]:
        leases = self._leases
        with self._timed("nodes"):
            nodes = self._engine.nodes()
        with self._timed("observe"):
            seen, now_s = self._engine.observe(leases), time.time()
        believed = (plausible(each, now_s=now_s) for each in seen)
        return nodes, [each for each in believed if each is not None]

    def _keep(self, found: tuple[Sequence[Node], Sequence[Observation]], *, at: float) -> bool:
        nodes, seen = found
        before, now = self._last or Look(at, ()), {each.lease: each for each in seen}
        self._last = Look(at, nodes, now, {**before.unread, **now})
        return before.nodes != nodes or any(each != before.seen.get(lease) for lease, each in now.items())

    def _act(self, orders: Sequence[Order]) -> Failures:
        first = orders[0]
        if first.kind == "start":
            return self._engine.start([each.what for each in orders if isinstance(each.what, Start)])
        if first.kind == "stop":
            assert isinstance(first.what, int)
            return self._engine.stop([each.name for each in orders], grace_s=first.what)
        assert isinstance(self._engine, Warns)
        assert not isinstance(first.what, Start)
        self._engine.warn(first.name, until_s=first.what)
        return {}


def _key(kind: str, name: str, what: object) -> Key:
    """A warning differs by its deadline: a new deadline is a new order."""
    return (kind, name, what if kind == "warn" else None)


def _alike(one: Order, other: Order) -> bool:
    return one.kind == other.kind != "warn" and (one.kind in ("start", "make") or one.what == other.what)


class CarryingWorker(SiteWorker):
    """For an engine that can warn jobs and whose checkpoints can be fetched."""

    def checkpoints(self, job: str) -> str:
        assert isinstance(self._engine, Carries)
        return self._engine.checkpoints(job)

    def warn(self, lease: str, *, until_s: int | None) -> None:
        for error in self._give("warn", {lease: until_s}).values():
            raise error


class TakingWorker(CarryingWorker):
    """For one whose machines are made by a provider."""

    def take(self, hosts: Mapping[str, Host]) -> None:
        assert isinstance(self._engine, Takes)
        self._engine.take(hosts)


def worker_for(
    engine: Engine, *, tell: Callable[[], object], permit: Permit, silent_s: float = SILENT_S
) -> SiteWorker:
    made = SiteWorker
    if isinstance(engine, Carries) and isinstance(engine, Warns):
        made = TakingWorker if isinstance(engine, Takes) else CarryingWorker
    return made(engine, tell=tell, permit=permit, silent_s=silent_s)


def begin_all(workers: Collection[Worker]) -> None:
    """Wait for their first answers in parallel, and not forever: a dead site costs the others nothing."""
    for worker in workers:
        worker.begin()
    _wait_for([worker.has_looked for worker in workers], most_s=FIRST_LOOK_S)


def close_all(workers: Collection[Worker]) -> None:
    for worker in workers:
        worker.ask_to_close()
    _wait_for([worker.has_closed for worker in workers], most_s=CLOSE_S)


def _wait_for(waits: Collection[Callable[[float], bool]], *, most_s: float) -> None:
    """No longer than this for all of them together."""
    until = time.monotonic() + most_s
    for wait in waits:
        wait(max(0.0, until - time.monotonic()))


def _as_brimful_error(error: Exception, site: str) -> BrimfulError:
    if isinstance(error, BrimfulError):
        return error
    return WorldFailed(say("adapters.site_met_a_bug", site=site, error=f"{type(error).__name__}: {error}"))
