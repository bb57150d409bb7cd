"""The simulated world: a store in memory, an engine that only keeps time, and the run itself."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import Cause, Event, JobSubmitted, Parts
from brimful.fleet.job import Job
from brimful.fleet.sharing import Paces, may_share, speed_beside, work_done_s
from brimful.fleet.state import Fleet, Node
from brimful.language import say
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.scheduler.auction import Auctions
from brimful.scheduler.deadlines.promise import answer
from brimful.scheduler.loop import IDLE_LOOK_S, catch_up, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import CannotStart, Failures, Observation, Ports, Start
from brimful.scheduler.rules import Rules
from brimful.sim.faults import Dice, Faults, Mishap, NodeFails, NodeReturns, SiteSilent
from brimful.sim.kernel import Kernel

SITE = "sim"
NEARLY = 1e-6  # of a second: rounding errors in sums must not add a second to a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job of the trace. Its true amount of work is known to the world, not to the scheduler."""

    at_s: int
    job: Job
    work_s: float  # useful seconds of the whole gang at rate 1.0
    first_s: int = 0  # setup of its first start; later ones take `checkpoint_cost_s`


class MemoryStore:
    """The log in memory; `begins`: the number of earlier events."""

    def __init__(self, begins: int = 0) -> None:
        self.log: list[Event] = []
        self._begins = begins

    def since(self, seq: int) -> Sequence[Event]:
        at = seq - self._begins
        return self.log[at:] if at < len(self.log) else ()

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        if after != len(self.log) + self._begins:
            return False
        self.log.extend(events)
        return True


@dataclass(slots=True)
class _Run:
    """A running lease: when it began to work, how fast, and how much work completes it."""

    job: Job
    nodes: tuple[str, ...]
    started_s: int
    works_from_s: int
    speed: float
    alone: float  # its speed with the GPU to itself
    at: tuple[str, tuple[int, ...]]  # its first node and the GPUs there
    before: Paces = ()
    ends_s: int = 0

    def done_s(self, until_s: int) -> float:
        if not self.before:
            return max(0, until_s - self.works_from_s) * self.speed
        return work_done_s(self.before, self.speed, began_s=self.works_from_s, until_s=until_s)


Due = Mishap | str | None  # a lease's end is its name; None: look again


class TimedEngine:
    """Runs nothing: a lease ends when its job's work is done at the speed of its GPUs.

    A stop leaves of a lease's work what its last checkpoint holds, see `Job.checkpoint_interval_s`.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        work_s: dict[str, float],
        kernel: Kernel[Due],
        dice: Dice | None = None,
        *,
        site: str = SITE,
        kept: dict[str, float] | None = None,
        first_s: Mapping[str, int] | None = None,
    ) -> None:
        """`kept`: work in each job's checkpoint, if engines of several sites share them."""
        self._first_s = first_s or {}
        self.site = site
        self.now_s = 0
        self.silent_until_s = 0
        self._nodes = list(nodes)
        self._all = {node.node: node for node in nodes}
        self._work_s = work_s
        self._kernel = kernel
        self._dice = dice
        self._kept: dict[str, float] = {} if kept is None else kept  # job -> work in its checkpoint
        self._running: dict[str, _Run] = {}
        # Leases of jobs that may share, by GPU.
        self._sharing: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        self._news: dict[str, Observation] = {}

    def nodes(self) -> Sequence[Node]:
        if self.now_s < self.silent_until_s:
            raise WorldFailed(say("sim.site_silent", site=self.site))
        return self._nodes

    def start(self, starts: Sequence[Start]) -> Failures:
        failed: dict[str, BrimfulError] = {}
        for each in starts:
            lease = each.lease
            if lease in self._running or lease in self._news:
                continue
            if self._dice is not None and self._dice.start_fails():
                self._kernel.at(self.now_s + 1, None)  # so that a tick happens
                failed[lease] = CannotStart(say("sim.could_not_start", node=each.parts[0][0], lease=lease))
            else:
                self._begin(lease, each.job, each.parts)
        return failed

    def go_on(self, lease: str, job: Job, parts: Parts, *, started_s: int) -> None:
        """It has been running since before the rehearsal. `_kept` has its job's work of earlier leases."""
        self._begin(lease, job, parts, started_s)
        del self._news[lease]

    def _begin(self, lease: str, job: Job, parts: Parts, started_s: int | None = None) -> None:
        nodes = tuple([name for name, _ in parts])
        speed = job.rate(self._all[nodes[0]].gpu) * (job.spread_rate if len(nodes) > 1 else 1.0)
        if self._dice is not None and self._dice.slow.intersection(nodes):
            speed *= self._dice.faults.slow_rate  # a gang is as fast as its slowest worker
        kept = self._kept.get(job.job)
        now_s = self.now_s if started_s is None else started_s
        begins_s = now_s + (job.checkpoint_cost_s if kept is not None else self._first_s.get(job.job, 0))
        run = self._running[lease] = _Run(job, nodes, now_s, begins_s, speed, speed, parts[0])
        self._news[lease] = Observation(lease, "running", now_s)
        self._expect_end(lease, run)
        if may_share(job):
            self._sharing.setdefault(run.at, []).append(lease)
            self._change_pace(run.at)
        if job.max_run_s is not None or job.budget_microusd is not None:
            self._kernel.at(self.now_s, None)  # so that a tick happens: from here on a limit counts

    def _expect_end(self, lease: str, run: _Run) -> None:
        since_s = max(run.works_from_s, run.before[-1][0]) if run.before else run.works_from_s
        left = self._work_s[run.job.job] - self._kept.get(run.job.job, 0.0) - run.done_s(since_s)
        run.ends_s = max(self.now_s, since_s + ceil(left / run.speed - NEARLY))
        self._kernel.at(run.ends_s, lease)

    def _change_pace(self, at: tuple[str, tuple[int, ...]]) -> None:
        """Leases on this GPU run at the speed measured for the pair, or at their speed alone."""
        here = [(lease, self._running[lease]) for lease in self._sharing[at]]
        for lease, run in here:
            gpu, speed = self._all[at[0]].gpu, run.alone
            for other, beside in here:
                speed *= speed_beside(run.job, beside.job, gpu) if other != lease else 1.0
            if speed != run.speed:
                run.before += ((self.now_s, run.speed),)
                run.speed = speed
                self._expect_end(lease, run)

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:  # noqa: ARG002 - it stops at once
        for lease in leases:
            if lease in self._running:
                saved = self._saved_s(self._running[lease], is_asked=True)
                self._end(lease, exit_code=None, saved=saved, cause="stopped_by_us")
                self._kernel.forget(lease)
                self._kernel.at(self.now_s, None)  # so that a tick happens
        return {}

    def finish(self, lease: str) -> bool:
        """Its time has come, unless its node was lost before."""
        run = self._running.get(lease)
        if run is None or run.ends_s > self.now_s:  # it now shares its GPU, and takes longer
            return False
        saved = self._work_s[run.job.job] - self._kept.get(run.job.job, 0.0)
        self._end(lease, exit_code=0, saved=saved, cause="finished")
        return True

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:  # noqa: ARG002 - it keeps its news
        if not self._news:
            return ()
        news, self._news = list(self._news.values()), {}
        return news

    def fail(self, name: str) -> bool:
        """A node goes down, and with it every gang that has a worker there. False: it was already down."""
        if all(node.node != name for node in self._nodes):
            return False
        self._nodes = [node for node in self._nodes if node.node != name]
        for lease, run in list(self._running.items()):
            if name in run.nodes:
                saved = self._saved_s(run, is_asked=False)
                self._end(lease, exit_code=None, saved=saved, cause="node_lost", node=name)
        return True

    def add(self, node: Node) -> None:
        """Add a node, or replace its description."""
        self._all[node.node] = node
        self._nodes = [*(each for each in self._nodes if each.node != node.node), node]

    def forget(self, name: str) -> None:
        """A node that has failed and does not come back."""
        del self._all[name]

    def back(self, name: str) -> None:
        if all(node.node != name for node in self._nodes):
            self._nodes = [*self._nodes, self._all[name]]

    def _saved_s(self, run: _Run, *, is_asked: bool) -> float:
        """Useful work of this lease in a checkpoint. One that is asked to stop may save first, if it can."""
        worked_s = max(0, self.now_s - run.works_from_s)
        every_s = run.job.checkpoint_interval_s
        if every_s is None or (every_s == 0 and not is_asked):
            return 0.0
        if every_s:
            worked_s -= worked_s % every_s
        if self._dice is not None and worked_s and self._dice.checkpoint_is_lost():
            return 0.0
        return run.done_s(run.works_from_s + worked_s)

    def _end(self, lease: str, *, exit_code: int | None, saved: float, cause: Cause, node: str = "") -> None:
        run = self._running.pop(lease)
        if run.at in self._sharing and lease in self._sharing[run.at]:
            self._sharing[run.at].remove(lease)
            self._change_pace(run.at)
        self._kept[run.job.job] = self._kept.get(run.job.job, 0.0) + saved
        self._news.pop(lease, None)
        self._news[lease] = Observation(
            lease=lease,
            state="ended",
            started_s=run.started_s,
            ended_s=self.now_s,
            exit_code=exit_code,
            problem=say("sim.node_lost", node=node) if node else None,
            kept_work_s=saved,
            cause=cause,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    fleet: Fleet
    log: list[Event]
    end_s: int
    waits: dict[str, Said]  # jobs that never ran, and why

    @cached_property
    def ledger(self) -> Ledger:
        """The bills, built on request: on a fleet without prices they are not needed."""
        ledger = Ledger()
        for event in self.log:
            ledger.apply(event)
        return ledger


def rehearse(
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    rules: Rules,
    *,
    faults: Faults | None = None,
    seed: int = 0,
    market: Market | None = None,
    before: Sequence[Event] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    watch: Callable[[Fleet], None] | None = None,
) -> Outcome:
    """Run the trace to its end through the production `tick`. `watch` gets the fleet after every tick.

    `before` is in the log from the start: budgets that were set.
    """
    run = _Rehearsal(arrivals, nodes, faults, seed=seed, market=market)
    run.store.log.extend(before)
    with gc_paused():
        while (now_s := run.next_s()) is not None:
            run.happen(now_s, rules, progress)
            plan = tick(run.fleet, run.ports, rules, now_s=now_s).plan
            if watch is not None:
                watch(run.fleet)
            if run.is_over(plan):
                break
    waits = dict(run.plan.waits) if len(run.fleet.waiting) else {}
    return Outcome(fleet=run.fleet, log=run.store.log, end_s=run.engine.now_s, waits=waits)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: a run makes millions of objects and no cycles among them.

    Searching for cycles takes a fifth of the time, and seconds at once on a long run.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Rehearsal:
    """A run in progress: the ports, what is still to come, and when to look again."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        nodes: Sequence[Node],
        faults: Faults | None,
        *,
        seed: int,
        market: Market | None = None,
    ) -> None:
        self.kernel: Kernel[Due] = Kernel()
        # Known beforehand and in order: a heap would carry them all to the end of the run.
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)
        self.dice = None if faults is None else Dice(faults, nodes, seed=seed)
        first_s = {a.job.job: a.first_s for a in arrivals if a.first_s}
        work_s = {a.job.job: a.work_s for a in arrivals}
        self.engine = TimedEngine(nodes, work_s, self.kernel, self.dice, first_s=first_s)
        self.store = MemoryStore()
        self.ports = Ports(
            store=self.store,
            engines={SITE: self.engine},
            market=None if market is None else Auctions(market),
        )
        self.fleet, self.plan = Fleet(), Plan()
        self._arrived = 0
        self._ended = self._down = 0
        self._wake_s = self._idle_seq = -1
        if self.dice is not None and arrivals:
            self._schedule_mishap(self.dice.next_loss(arrivals[0].at_s))
            self._schedule_mishap(self.dice.next_outage(arrivals[0].at_s))

    def next_s(self) -> int | None:
        """The next moment at which anything is due."""
        later = self.kernel.next_s()
        if self._arrived == len(self._arrivals):
            return later
        comes_s = self._arrivals[self._arrived].at_s
        return comes_s if later is None or comes_s <= later else later

    def happen(self, now_s: int, rules: Rules, progress: Callable[[int, int], None]) -> None:
        """Jobs arrive, leases end and things break: everything that is due now."""
        self.engine.now_s = now_s
        arrivals, at = self._arrivals, self._arrived
        while at < len(arrivals) and arrivals[at].at_s == now_s:
            job = arrivals[at].job
            self.store.log.append(JobSubmitted(now_s, job))
            at += 1
            if job.deadline_s is not None:
                catch_up(self.fleet, self.ports)
                told = answer(self.fleet, rules, job, now_s=now_s)
                self.store.log += [] if told is None else [told]
        self._arrived = at
        for what in self.kernel.due(now_s):
            if isinstance(what, str):
                if self.engine.finish(what):
                    self._ended += 1
                    progress(self._ended, len(arrivals))
            elif what is not None:
                self._apply_mishap(what)

    def is_over(self, plan: Plan) -> bool:
        """Whether only mishaps can still happen; if not, schedule the next look."""
        self.plan = plan
        now_s, again_s = self.engine.now_s, plan.look_again_s
        if again_s is not None and (self._wake_s <= now_s or again_s < self._wake_s):
            self._wake_s = again_s
            self.kernel.at(again_s, None)
        if self._arrived < len(self._arrivals) or self.fleet.open_leases or plan.starts or self._down:
            return False
        if now_s < self.engine.silent_until_s:
            return False  # a job that waits for the site to answer does not wait forever
        if len(self.fleet.waiting) and self._idle_seq != self.fleet.seq:
            # Nothing moves, and a job waits: look once more, later, as a live loop does every second.
            self._idle_seq = self.fleet.seq
            self.kernel.at(now_s + IDLE_LOOK_S, None)
            return False
        # A job that waits on an idle fleet waits for a quiet hour, for spot while its deadline is far, or
        # forever.
        looks = again_s is not None and self.fleet.spot and self.fleet.due
        return not looks and not any(state.job.deferrable for state in self.fleet.waiting.values())

    def _schedule_mishap(self, drawn: tuple[int, Mishap] | None) -> None:
        if drawn is not None:
            self.kernel.at(*drawn)

    def _apply_mishap(self, what: Mishap) -> None:
        """Let it happen, and draw when it happens next."""
        assert self.dice is not None
        now_s = self.engine.now_s
        match what:
            case NodeFails(node=name):
                if self.engine.fail(name):
                    self._down += 1
                    self.kernel.at(now_s + self.dice.faults.node_back_s, NodeReturns(name))
                self._schedule_mishap(self.dice.next_loss(now_s))
            case NodeReturns(node=name):
                self.engine.back(name)
                self._down -= 1
            case SiteSilent(until_s=until_s):
                self.engine.silent_until_s = until_s
                self.kernel.at(until_s, None)
                self._schedule_mishap(self.dice.next_outage(until_s))
