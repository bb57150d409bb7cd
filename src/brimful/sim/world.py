"""The simulated world: a store in memory, an engine that only keeps time, and the run itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil

from brimful.fleet.events import Event, JobSubmitted
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Node
from brimful.market.ledger import Ledger
from brimful.market.posted import PostedPrice
from brimful.scheduler.cycle import Rules
from brimful.scheduler.loop import catch_up, tick
from brimful.scheduler.ports import Observation, Ports
from brimful.sim.kernel import Kernel

SITE = "sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job as the trace tells it: how much work it is, is known to the world, not to the scheduler."""

    at_s: int
    job: Job
    work_s: float  # useful seconds of the whole gang at rate 1.0


class MemoryStore:
    def __init__(self) -> None:
        self.log: list[Event] = []

    def since(self, seq: int) -> Sequence[Event]:
        return self.log[seq:]

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        if after != len(self.log):
            return False
        self.log.extend(events)
        return True


class TimedEngine:
    """Runs nothing: a lease ends when its job's run time has passed."""

    site = SITE

    def __init__(
        self, nodes: Sequence[Node], work_s: dict[str, float], kernel: Kernel[Arrival | str]
    ) -> None:
        self.now_s = 0
        self._nodes = nodes
        self._work_s = work_s
        self._kernel = kernel
        self._running: dict[str, int] = {}  # lease -> when it started
        self._news: list[Observation] = []

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, lease: str, job: Job, *, node: str, gpus: Sequence[int]) -> None:  # noqa: ARG002
        if lease in self._running:
            return
        self._running[lease] = self.now_s
        self._news.append(Observation(lease=lease, state="running", started_s=self.now_s))
        self._kernel.at(self.now_s + ceil(self._work_s[job.job]), lease)

    def stop(self, lease: str, *, grace_s: int) -> None:  # noqa: ARG002 - it obeys at once
        if lease in self._running:
            self._end(lease, exit_code=None)
            self._kernel.at(self.now_s, lease)  # so that somebody looks

    def finish(self, lease: str) -> None:
        """Its time has come. A lease that was stopped before is long gone."""
        if lease in self._running:
            self._end(lease, exit_code=0)

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:  # noqa: ARG002 - it keeps its news
        news, self._news = self._news, []
        return news

    def _end(self, lease: str, *, exit_code: int | None) -> None:
        started_s = self._running.pop(lease)
        self._news = [seen for seen in self._news if seen.lease != lease]
        self._news.append(
            Observation(
                lease=lease, state="ended", started_s=started_s, ended_s=self.now_s, exit_code=exit_code
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    fleet: Fleet
    ledger: Ledger
    log: list[Event]
    end_s: int
    waits: dict[str, str]  # jobs that never ran, and why


def rehearse(
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    rules: Rules,
    *,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Outcome:
    """Run the trace to its end through the production `tick`."""
    kernel: Kernel[Arrival | str] = Kernel()
    for arrival in arrivals:
        kernel.at(arrival.at_s, arrival)
    engine = TimedEngine(nodes, {a.job.job: a.work_s for a in arrivals}, kernel)
    store = MemoryStore()
    ports = Ports(store=store, engines={SITE: engine}, clearing=PostedPrice())
    fleet, waits, ended = Fleet(), {}, 0
    while (due := kernel.next()) is not None:
        engine.now_s, batch = due
        for what in batch:
            if isinstance(what, Arrival):
                catch_up(fleet, ports)
                submitted = JobSubmitted(at_s=engine.now_s, job=what.job)
                store.append([submitted], after=fleet.seq)
            else:
                engine.finish(what)
                ended += 1
                progress(ended, len(arrivals))
        waits = tick(fleet, ports, rules, now_s=engine.now_s).plan.waits
    ledger = Ledger()
    for event in store.log:
        ledger.apply(event)
    return Outcome(fleet=fleet, ledger=ledger, log=store.log, end_s=engine.now_s, waits=waits)
