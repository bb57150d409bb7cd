"""One worker for each site looks and acts there, so that the loop never waits for a site.

The loop asks a worker as it would ask the engine, and is answered at once: by the last look, unless that is
too old, in which case the site counts as lost. What the loop orders is queued. An order that failed says so
when it is given again, which the loop does until it sees what it wanted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.language import Seconds, say, verbatim
from brimful.scheduler.ports import CannotStart, Carries, Engine, Observation, Warns

log = logging.getLogger("brimful")

SILENT_S = 15.0  # a site that has not answered for so long counts as lost
STUCK_S = 5.0  # one step that takes so long is named in the server's log
AGAIN_S = 1.0  # an order that was carried out is given to the engine again no sooner
ORDERS_S = 1.0  # how long orders go before the next look, at least one of them
FIRST_LOOK_S = 5.0  # how long a server that starts waits for the first answers of all sites
CLOSE_S = 10.0  # how long one that stops waits for what they are doing

Permit = Callable[[], Callable[[], object]]


@dataclass(slots=True)
class Look:
    """What an engine told, and when it was asked."""

    at: float
    nodes: Sequence[Node]
    seen: dict[str, Observation] = field(default_factory=dict)  # not passed on to the loop yet


@dataclass(frozen=True, slots=True)
class Order:
    kind: str
    lease: str
    carry_out: Callable[[], None]
    may_act: Callable[[], object]


def no_limit() -> Callable[[], object]:
    return lambda: None


class SiteWorker:
    """The scheduler's Engine port, answered from memory."""

    def __init__(
        self,
        engine: Engine,
        *,
        tell: Callable[[], object] = lambda: None,
        permit: Permit = no_limit,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        """`tell` is called where the loop should look; `permit` gives what an order asks before it acts."""
        self._engine, self._tell, self._permit = engine, tell, permit
        self._clock, self._silent_s = clock, silent_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._looked = threading.Event()
        self._closing = False
        self._due = True
        self._leases: frozenset[str] = frozenset()
        self._last: Look | None = None
        self._failed: BrimfulError | None = None  # the last look, unless it went well
        self._queue: deque[Order] = deque()
        self._pending: set[tuple[str, str]] = set()
        self._done: dict[tuple[str, str], float] = {}
        self._errors: dict[tuple[str, str], BrimfulError] = {}
        self._acted: dict[str, float] = {}  # by lease, when its last order had been carried out
        self._from: dict[str, str] = {}
        self._step: tuple[str, float] | None = None  # what it is doing, and since when
        self._named: tuple[str, float] | None = None
        self._heard = clock()  # when it was last asked and answered, be it by an error
        self._thread = threading.Thread(target=self._run, name=f"site {engine.site}", daemon=True)

    @property
    def site(self) -> str:
        return self._engine.site

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

    def nodes(self) -> Sequence[Node]:
        """As of the last look; WorldFailed where that failed, or is too old. Looks again meanwhile."""
        self._due = True
        self._wake.set()
        with self._lock:
            silent_s, failed = self._clock() - self._heard, self._failed
            if silent_s <= self._silent_s and failed is not None:
                # A new one each time: one that is raised again and again would gather tracebacks.
                raise WorldFailed(failed.said, hint=failed.way_out, code=failed.code)
            if self._last is None or silent_s > self._silent_s:
                step = say("adapters.site_looks") if self._step is None else verbatim(self._step[0])
                raise WorldFailed(
                    say("adapters.site_silent", site=self.site, silent_s=Seconds(silent_s), step=step),
                    code="site_silent",
                )
            return self._last.nodes

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        """News since the loop last asked."""
        with self._lock:
            if self._leases != leases:
                self._leases, self._due = frozenset(leases), True
            self._forget(leases)
            last = self._last
            if last is None:
                return []
            seen = [each for each in last.seen.values() if self._is_news(each, at=last.at)]
            last.seen.clear()
        self._wake.set()
        return seen

    def start(self, lease: str, job: Job, *, node: str, gpus: Sequence[int], rest: Parts = ()) -> None:
        engine, source = self._engine, self._from.pop(lease, None)

        def carry_out() -> None:
            if source is not None:
                assert isinstance(engine, Carries)
                engine.start_from(lease, source)
            engine.start(lease, job, node=node, gpus=gpus, rest=rest)

        self._give("start", lease, carry_out)

    def stop(self, lease: str, *, grace_s: int) -> None:
        self._give("stop", lease, lambda: self._engine.stop(lease, grace_s=grace_s))

    def _give(self, kind: str, lease: str, carry_out: Callable[[], None]) -> None:
        """Queue an order, unless it waits already or was just carried out. Raises what went wrong before."""
        key = (kind, lease)
        with self._lock:
            error = self._errors.pop(key, None)
            if error is None and key not in self._pending and self._is_over(key):
                self._pending.add(key)
                self._queue.append(Order(kind, lease, carry_out, self._permit()))
        if error is not None:
            raise error
        self._wake.set()

    def _is_over(self, key: tuple[str, str]) -> bool:
        done = self._done.get(key)
        return done is None or self._clock() - done >= AGAIN_S

    def _is_news(self, seen: Observation, *, at: float) -> bool:
        """No trace of a lease means nothing if it was looked for before its last order was carried out."""
        if seen.state != "absent":
            return True
        waits = any(lease == seen.lease for _, lease in self._pending)
        return not waits and self._acted.get(seen.lease, at) <= at

    def _forget(self, leases: Collection[str]) -> None:
        """What is known of leases that are over."""
        if len(self._acted) > 2 * len(leases) + 100:
            self._acted = {lease: at for lease, at in self._acted.items() if lease in leases}
            self._done = {key: at for key, at in self._done.items() if key[1] in leases}
            self._errors = {key: error for key, error in self._errors.items() if key[1] in leases}

    # -- what the worker does ----------------------------------------------------------------------------

    def stuck(self) -> tuple[str, float] | None:
        """The step that takes too long, and for how long it has; each is told once."""
        step = self._step
        if step is None or step == self._named or self._clock() - step[1] < STUCK_S:
            return None
        self._named = step
        return step[0], self._clock() - step[1]

    def _run(self) -> None:
        """Looks and orders take turns: a slow look that is always due again keeps no order waiting."""
        orders_until: float | None = None
        while not self._closing:
            with self._lock:
                due = self._due and (not self._queue or orders_until is None)
                order = None if due or not self._queue else self._queue.popleft()
                self._due = self._due and not due
            if due:
                self._look()
                orders_until = self._clock() + ORDERS_S
            elif order is not None:
                self._carry_out(order)
                if orders_until is not None and self._clock() >= orders_until:
                    orders_until = None
            else:
                self._wake.wait()
                self._wake.clear()

    def _look(self) -> None:
        at, leases = self._clock(), self._leases
        self._step = ("nodes", at)
        try:
            nodes = self._engine.nodes()
            self._step = ("observe", at)
            seen = self._engine.observe(leases)
        except Exception as error:  # noqa: BLE001 - a site's bug is this site's trouble, and nobody else's
            self._keep_failure(_foreseen(error, self.site), at=at)
            return
        finally:
            self._step = None
            self._looked.set()
        with self._lock:
            before = self._last
            kept = {} if before is None else before.seen
            news = {each.lease: each for each in seen}
            differs = self._failed is not None or before is None or before.nodes != nodes
            differs = differs or any(each != kept.get(lease) for lease, each in news.items())
            self._failed, self._last, self._heard = None, Look(at, nodes, {**kept, **news}), at
        if differs:
            self._tell()

    def _keep_failure(self, error: BrimfulError, *, at: float) -> None:
        with self._lock:
            before, self._failed, self._heard = self._failed, error, at
        if before is None or before.problem != error.problem:
            self._tell()

    def _carry_out(self, order: Order) -> None:
        key = (order.kind, order.lease)
        failed: BrimfulError | None = None
        self._step = (f"{order.kind} {order.lease}", self._clock())
        try:
            order.may_act()
            order.carry_out()
        except Exception as error:  # noqa: BLE001 - one lease's trouble keeps nobody from the others
            failed = _foreseen(error, self.site)
        self._step = None
        with self._lock:
            self._pending.discard(key)
            self._acted[order.lease] = self._done[key] = self._clock()
            if failed is not None:
                self._errors[key] = failed
                del self._done[key]  # to be tried again when it is asked for again
            self._due = True
        if isinstance(failed, CannotStart) or not self._queue:
            self._tell()


class CarryingWorker(SiteWorker):
    """For an engine whose jobs can be warned and whose checkpoints can be fetched."""

    def checkpoints(self, job: str) -> str:
        assert isinstance(self._engine, Carries)
        return self._engine.checkpoints(job)

    def start_from(self, lease: str, checkpoints: str) -> None:
        self._from[lease] = checkpoints

    def warn(self, lease: str, *, until_s: int | None) -> None:
        engine = self._engine
        assert isinstance(engine, Warns)
        # What is told differs with its moment: a new one is a new order.
        self._give(f"warn until {until_s} of", lease, lambda: engine.warn(lease, until_s=until_s))


def worker_for(
    engine: Engine, *, tell: Callable[[], object], permit: Permit, silent_s: float = SILENT_S
) -> SiteWorker:
    both = isinstance(engine, Carries) and isinstance(engine, Warns)
    made = CarryingWorker if both else SiteWorker
    return made(engine, tell=tell, permit=permit, silent_s=silent_s)


def begin_all(workers: Collection[SiteWorker]) -> None:
    """Wait for their first answers side by side, and not for ever: a dead site costs the others nothing."""
    for worker in workers:
        worker.begin()
    _wait_for([worker.has_looked for worker in workers], most_s=FIRST_LOOK_S)


def close_all(workers: Collection[SiteWorker]) -> None:
    for worker in workers:
        worker.ask_to_close()
    _wait_for([worker.has_closed for worker in workers], most_s=CLOSE_S)


def _wait_for(waits: Collection[Callable[[float], bool]], *, most_s: float) -> None:
    """For all of them together no longer than that."""
    until = time.monotonic() + most_s
    for wait in waits:
        wait(max(0.0, until - time.monotonic()))


def _foreseen(error: Exception, site: str) -> BrimfulError:
    if isinstance(error, BrimfulError):
        return error
    log.error("site %s: internal error", site, exc_info=error)
    return WorldFailed(say("adapters.site_met_a_bug", site=site, error=f"{type(error).__name__}: {error}"))
