"""A server's own log as a trace: from the state it really had, under any policy, through the same `tick`.

What people did is taken from the log: they submit, cancel, hold and change jobs; nodes come and go. What the
scheduler did is left out and decided again. The length of a job that is over is known. A job that is not over
is longer than its work so far: its length is drawn from the longer jobs of the same tenant, name and size.

Leaves out: failures specific to one placement, silent sites, and nodes that were bought.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from brimful.fleet import events as happened
from brimful.fleet.adoption import Adoption
from brimful.fleet.events import NOT_ITS_FAULT, Event, PolicyRehearsed, Rehearsed
from brimful.fleet.job import Job
from brimful.fleet.lease import OVER, JobState, Lease
from brimful.fleet.metrics import mean, percentile
from brimful.fleet.node import Node, bare_name
from brimful.fleet.state import Fleet
from brimful.market.pools import Market
from brimful.scheduler.auction import Auctions
from brimful.scheduler.deadlines.promise import answer
from brimful.scheduler.loop import IDLE_LOOK_S, catch_up, tick
from brimful.scheduler.policies import read_policy
from brimful.scheduler.ports import Ports
from brimful.scheduler.rules import Rules
from brimful.sim.kernel import Kernel
from brimful.sim.world import Due, MemoryStore, TimedEngine, gc_paused
from brimful.units import DAY_S

KEEP = 5_000  # ended jobs that stay in memory, as on a server
NEWEST = 100  # lengths per kind of job to draw from
STRETCHES = 8  # parts a past is divided into: their differences show how much of its result is chance
SHORTEST_S = 600.0  # the length of a job about which nothing is known
# What people do. Everything else is caused by the scheduler or the world.
ASKED = (
    *(happened.JobSubmitted, happened.ArraySubmitted, happened.CancelRequested, happened.JobHeld),
    *(happened.JobReleased, happened.MoveRequested, happened.BidChanged, happened.TermsChanged),
    *(happened.NodeDrained, happened.NodeResumed, happened.QueuesSet, happened.BudgetSet),
    *(happened.CreditGranted, happened.ReservationBought, happened.ReservationExtended),
    *(happened.ReservationChanged, happened.NodeJoined, happened.NodeLeft),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What happened from `start_s` to `end_s`, and the state it began from."""

    start_s: int
    end_s: int
    fleet: bytes
    asked: Sequence[Event]
    work_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a policy made of a past. Times are of the jobs submitted in it; None: there are none."""

    jobs: int
    finished: int
    mean_jct_s: float | None
    p99_jct_s: float | None
    mean_delay_s: float | None
    deadlines: int
    deadlines_kept: int
    fill: float | None  # held GPU-seconds / available GPU-seconds, until the past's end
    preemptions: int
    # Job-seconds by stretch of the past: JCT of the jobs submitted in it, and in the first also the delay of
    # earlier jobs.
    costs_s: tuple[int, ...]


class PastReader:
    """Folds a log, and keeps the state at each moment from which a past is expected to begin."""

    def __init__(self) -> None:
        self.fleet = Fleet(keep=KEEP)
        self._lengths = _Lengths()
        self._expected: list[int] = []
        self._states: dict[int, tuple[bytes, int]] = {}  # and how many requests there had been by then
        self._asked: list[Event] = []

    def expect(self, start_s: int) -> None:
        """A past will begin here. Call in order, and before anything later is read."""
        self._expected.append(start_s)

    def read(self, events: Iterable[Event]) -> None:
        fleet, expected = self.fleet, self._expected
        for event in events:
            while expected and event.at_s >= expected[0]:
                self._keep(expected.pop(0))
            if self._states and isinstance(event, ASKED):
                self._asked.append(event)
            if isinstance(event, happened.LeaseEnded):
                lease = fleet.open_leases[event.lease]
                fleet.apply(event)
                self._lengths.ended(event, lease, fleet.jobs[lease.job])
            else:
                fleet.apply(event)

    def _keep(self, start_s: int) -> None:
        self._states[start_s] = (pickle.dumps(self.fleet, protocol=5), len(self._asked))

    def past(self, start_s: int, end_s: int) -> Past:
        """The past between these times; its start state is then dropped."""
        while self._expected and self._expected[0] <= start_s:  # nothing has happened since
            self._keep(self._expected.pop(0))
        state, first = self._states.pop(start_s)
        return Past(
            start_s=start_s,
            end_s=end_s,
            fleet=state,
            asked=[event for event in self._asked[first:] if event.at_s < end_s],
            work_s=self.lengths(end_s),
        )

    def present(self, now_s: int, ahead_s: int) -> Past:
        """What comes after the log ends, if people do nothing more."""
        fleet = pickle.dumps(self.fleet, protocol=5)
        return Past(start_s=now_s, end_s=now_s + ahead_s, fleet=fleet, asked=(), work_s={})

    def lengths(self, now_s: int, *, seed: int = 0) -> dict[str, float]:
        """Useful work of every job; drawn for jobs that are not over."""
        return self._lengths.all(self.fleet, now_s=now_s, seed=seed)


class _Lengths:
    """Useful work of jobs: known lengths, and the work so far of jobs that are not done."""

    def __init__(self) -> None:
        self._done: defaultdict[str, float] = defaultdict(float)
        self._known: dict[str, float] = {}
        # The newest of each kind (`_kinds`).
        self._newest: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=NEWEST))

    def ended(self, event: happened.LeaseEnded, lease: Lease, state: JobState) -> None:
        job = state.job
        self._done[job.job] += _work_of(event, lease, job)
        if state.phase in ("finished", "failed"):
            self._known[job.job] = self._done.pop(job.job)
            for kind in _kinds(job):
                self._newest[kind].append(self._known[job.job])

    def all(self, fleet: Fleet, *, now_s: int, seed: int = 0) -> dict[str, float]:
        lengths = {kind: sorted(newest) for kind, newest in self._newest.items()}
        found = dict(self._known)
        left = (each.state for each in fleet.leaving.values())
        for state in (*fleet.jobs.values(), *left):
            name, lease = state.job.job, state.open_lease
            if name not in found:
                had_s = self._done.get(name, 0.0)
                if lease is not None:
                    had_s += lease.done_s(now_s)
                found[name] = _drawn(state.job, had_s, lengths, seed)
        return found


def _kinds(job: Job) -> tuple[Hashable, Hashable]:
    """The closer kind first. Not by prediction: that is what may have become worthless."""
    return (job.tenant, job.name, job.gpus), job.gpus


def _work_of(event: happened.LeaseEnded, lease: Lease, job: Job) -> float:
    """Work of a lease that need not be repeated; a failed one would take as long again."""
    worked_s = max(0, lease.billed_s(event.at_s) - lease.setup_s)
    if not (lease.was_stopped or event.cause in NOT_ITS_FAULT):
        return worked_s * lease.speed
    if event.kept_work_s is not None:
        return event.kept_work_s
    every_s = job.checkpoint_interval_s
    if every_s is None or (every_s == 0 and not lease.was_stopped):
        return 0.0
    return (worked_s - worked_s % every_s if every_s else worked_s) * lease.speed


def _drawn(job: Job, had_s: float, lengths: Mapping[Hashable, Sequence[float]], seed: int) -> float:
    """The length of a job that is longer than its work so far; repeatable."""
    for kind in _kinds(job):
        known = lengths.get(kind, ())
        first = bisect_right(known, had_s)
        if first < len(known):
            return Random(job.job + "/" * seed).choice(known[first:])  # noqa: S311 - not a secret
    if job.predicted_work_s is not None and job.predicted_work_s > had_s:
        return job.predicted_work_s
    return max(SHORTEST_S, 2 * had_s)  # the longer it has run, the longer it will go on


def rehearse_past(past: Past, rules: Rules, *, market: Market | None = None) -> Figures:
    """Run a past under these rules, then without new jobs until all are over or a day has passed."""
    run = PastRun(past, rules, market)
    with gc_paused():
        run.go()
    return run.figures()


def rehearse_all(past: Past, policies: Sequence[str], *, market: Market | None = None) -> PolicyRehearsed:
    """The same past under each of these policies, as the event to log."""
    found = {text: rehearse_past(past, read_policy(text).rules, market=market) for text in policies}
    first = next(iter(found.values()))
    return PolicyRehearsed(
        at_s=past.end_s,
        since_s=past.start_s,
        until_s=past.end_s,
        jobs=first.jobs,
        deadlines=first.deadlines,
        results=tuple(_result(text, figures) for text, figures in found.items()),
    )


def resized(past: Past, nodes: int) -> Past:
    """The same past with this many nodes more (copies), or fewer (nothing starts on them).

    Nodes that joined later count too; their copies join when they do.
    """
    fleet: Fleet = pickle.loads(past.fleet)  # noqa: S301 - our own, from a moment ago
    since = dict.fromkeys(fleet.nodes, past.start_s)
    there = dict(fleet.nodes)
    for event in past.asked:
        if isinstance(event, happened.NodeJoined) and event.node not in there:
            there[event.node], since[event.node] = event.described(), event.at_s
    names = list(there)
    changed: list[Event] = [
        happened.NodeDrained(at_s=past.start_s, node=name)
        for name in names[max(0, len(names) + nodes) :]
        if nodes < 0
    ]
    for i in range(nodes if names else 0):
        name = names[i % len(names)]
        more = replace(there[name], node=f"{name}-more-{i}")
        changed.append(happened.NodeJoined.of(more, at_s=since[name]))
    # By time, so that no job waits for a node that joins later; requests keep their order.
    return replace(past, asked=_merged(changed, past.asked))


def _merged(changed: Sequence[Event], asked: Sequence[Event]) -> list[Event]:
    """Each change before the first later event."""
    merged, rest = list[Event](), sorted(changed, key=lambda event: event.at_s)
    for event in asked:
        while rest and rest[0].at_s < event.at_s:
            merged.append(rest.pop(0))
        merged.append(event)
    return [*merged, *rest]


def _result(policy: str, figures: Figures) -> Rehearsed:
    return Rehearsed(
        policy=policy,
        costs_s=figures.costs_s,
        mean_jct_s=_whole(figures.mean_jct_s),
        p99_jct_s=_whole(figures.p99_jct_s),
        mean_delay_s=_whole(figures.mean_delay_s),
        deadlines_kept=figures.deadlines_kept,
        fill_permille=_whole(figures.fill, 1000),
    )


def _whole(value: float | None, times: int = 1) -> int:
    return -1 if value is None else round(times * value)


class PastRun:
    """A rehearsal in progress."""

    def __init__(self, past: Past, rules: Rules, market: Market | None) -> None:
        self.past, self.rules = past, rules
        # A job that waits forever under one policy is counted up to the same moment under all of them.
        self.until_s = past.end_s + max(DAY_S, past.end_s - past.start_s)
        self.fleet: Fleet = pickle.loads(past.fleet)  # noqa: S301 - our own, from a moment ago
        self.fleet.adoption = Adoption()  # here `rules` decide
        self.kernel: Kernel[Due] = Kernel()
        self.store = MemoryStore(begins=self.fleet.seq)
        self.now_s = past.start_s
        self._asked, self._at = past.asked, 0
        self._wake_s = self._idle_seq = -1
        self.before = {
            state.job.job: state.delay_s(past.start_s)
            for state in self.fleet.jobs.values()
            if state.phase not in OVER
        }
        self.was_leased = self.fleet.leased_gpu_s(past.start_s)
        self.had_gpu_s = self.fleet.gpu_s(past.start_s)
        self.fill: float | None = None
        self.engines = self._engines()
        self.kernel.at(self.now_s, None)
        self.ports = Ports(
            store=self.store,
            engines=self.engines,
            market=None if market is None else Auctions(market),
            sees_load=True,
        )

    def _engines(self) -> dict[str, TimedEngine]:
        fleet, kept = self.fleet, dict[str, float]()
        joining = [event.described() for event in self._asked if isinstance(event, happened.NodeJoined)]
        sites = dict.fromkeys(node.site for node in (*fleet.nodes.values(), *joining))
        work_s = dict(self.past.work_s)
        engines = {}
        for site in sites:
            here = [_bare(node) for node in fleet.nodes.values() if node.site == site]
            engines[site] = TimedEngine(here, work_s, self.kernel, site=site, kept=kept)
            engines[site].now_s = self.now_s
        for name in self.before:
            state = fleet.jobs[name]
            if any(lease.ended_s is not None and lease.started_s is not None for lease in state.leases):
                kept[name] = state.kept_work_s
            lease = state.open_lease
            if lease is not None and lease.started_s is not None and lease.site in engines:
                parts = tuple((bare_name(lease.site, node), gpus) for node, gpus in lease.parts)
                engines[lease.site].go_on(lease.lease, state.job, parts, started_s=lease.started_s)
        return engines

    def go(self) -> None:
        while self.step():
            pass
        if self.fill is None:
            self._measure_fill()

    def step(self) -> bool:
        """Advance to the next moment when something happens; False: there is none, or all jobs are over."""
        now_s = self._next_s()
        if now_s is None or now_s >= self.until_s:
            return False
        if self.fill is None and now_s >= self.past.end_s:
            self._measure_fill()
        self.now_s = now_s
        self._happen()
        plan = tick(self.fleet, self.ports, self.rules, now_s=now_s).plan
        self._look_again(plan.look_again_s)
        return self._at < len(self._asked) or not self.fleet.is_idle()

    def _measure_fill(self) -> None:
        there = self.fleet.gpu_s(self.past.end_s) - self.had_gpu_s
        held = self.fleet.leased_gpu_s(self.past.end_s) - self.was_leased
        self.fill = held / there if there > 0 else None

    def _next_s(self) -> int | None:
        later = self.kernel.next_s()
        if self._at == len(self._asked):
            return later
        comes_s = max(self.now_s, self._asked[self._at].at_s)
        return comes_s if later is None or comes_s <= later else later

    def _happen(self) -> None:
        now_s = self.now_s
        for engine in self.engines.values():
            engine.now_s = now_s
        while self._at < len(self._asked) and self._asked[self._at].at_s <= now_s:
            self._do(self._asked[self._at])
            self._at += 1
        for what in self.kernel.due(now_s):
            if isinstance(what, str):
                any(engine.finish(what) for engine in self.engines.values())

    def _do(self, event: Event) -> None:
        """Carry out a request; requests for a job that is already over are ignored."""
        catch_up(self.fleet, self.ports)
        match event:
            case happened.NodeJoined():
                self.engines[event.site].add(_bare(event.described()))
            case happened.NodeLeft():
                if (node := self.fleet.nodes.get(event.node)) is not None and node.site in self.engines:
                    self.engines[node.site].fail(bare_name(node.site, event.node))
            case happened.JobSubmitted():
                told = answer(self.fleet, self.rules, event.job, now_s=self.now_s)
                self.store.log += [event] if told is None else [event, told]
            case (
                happened.CancelRequested()
                | happened.JobHeld()
                | happened.JobReleased()
                | happened.MoveRequested()
                | happened.BidChanged()
                | happened.TermsChanged()
            ):
                state = self.fleet.jobs.get(event.job)
                if state is not None and state.phase not in OVER:
                    self.store.log += [event, *self._stopped_by(event, state)]
            case _:
                self.store.log.append(event)

    def _stopped_by(self, event: Event, state: JobState) -> list[Event]:
        """A running job that is put on hold is stopped."""
        lease = state.open_lease
        if not isinstance(event, happened.JobHeld) or lease is None or lease.phase == "ending":
            return []
        return [happened.LeaseEnding(at_s=self.now_s, lease=lease.lease, reason=event.reason, requeue=True)]

    def _look_again(self, again_s: int | None) -> None:
        if again_s is not None and (self._wake_s <= self.now_s or again_s < self._wake_s):
            self._wake_s = again_s
            self.kernel.at(again_s, None)
        if len(self.fleet.waiting) and not self.fleet.open_leases and self._idle_seq != self.fleet.seq:
            self._idle_seq = self.fleet.seq
            self.kernel.at(self.now_s + IDLE_LOOK_S, None)

    def figures(self) -> Figures:
        states = (*self.fleet.jobs.values(), *(left.state for left in self.fleet.leaving.values()))
        new = [state for state in states if state.submitted_s >= self.past.start_s]
        here = [state for state in states if state.job.job in self.before]
        until_s = self.until_s
        over_s: Callable[[JobState], int] = lambda state: (  # noqa: E731
            until_s if state.ended_s is None else state.ended_s
        )
        asked = [state for state in new if state.phase not in ("held", "pending")]
        jcts = [float(max(0, over_s(state) - state.ready_s)) for state in asked]
        due = [state for state in (*new, *here) if state.job.deadline_s is not None]
        in_time = [s for s in due if s.phase == "finished" and over_s(s) <= (s.job.deadline_s or 0)]
        costs_s = [0.0] * STRETCHES
        costs_s[0] = sum(max(0.0, state.delay_s(until_s) - self.before[state.job.job]) for state in here)
        start_s, long_s = self.past.start_s, self.past.end_s - self.past.start_s
        for state, jct_s in zip(asked, jcts, strict=True):
            costs_s[min(STRETCHES - 1, STRETCHES * (state.submitted_s - start_s) // long_s)] += jct_s
        return Figures(
            jobs=len(new),
            finished=sum(state.phase == "finished" for state in new),
            mean_jct_s=mean(jcts),
            p99_jct_s=percentile(jcts, 99),
            mean_delay_s=mean([state.delay_s(until_s) for state in asked]),
            deadlines=len(due),
            deadlines_kept=len(in_time),
            fill=self.fill,
            preemptions=sum(state.preemptions for state in (*new, *here)),
            costs_s=tuple(map(round, costs_s)),
        )


def _bare(node: Node) -> Node:
    return replace(node, node=bare_name(node.site, node.node))
