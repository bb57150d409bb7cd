"""How few GPUs the same work would have needed: whole nodes, bisected through the production `tick`.

A fleet is *enough* (rule C) if all jobs finish, no more deadlines are missed than on the largest fleet tried,
and at most 5 % of jobs are hurt in every size class (1, 2-7, 8 and more GPUs) and by GPU-hours. A job is hurt
by a delay of more than 10 minutes and more than 10 % of its run; its delay is finish - submit - work.

Three numbers: the whole trace passes; 95 % of bootstraps over its weeks pass; every single week passes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler.rules import Rules
from brimful.sim.world import Arrival, rehearse

HURT_S, HURT_FRAC = 600.0, 0.1
MOST_HURT = 0.05
BOOTSTRAPS, PASSING = 1000, 0.95
BAND_DRAWS = 200
WEEK_S = 7 * 86400
CHECK_EVERY = 2000  # finished jobs between two checks whether a replay has already failed
CLASSES = ("1", "2-7", "8+")
EXPLAINED = 0.5  # of the real waits: below this a replay only gives a lower bound

Criterion = Callable[["Replay"], bool]


class Hurt(NamedTuple):
    """For one week: jobs and hurt jobs by size class, and the same in GPU-seconds."""

    jobs: tuple[int, ...]
    hurt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """One rehearsal on one fleet, by week of submission. `weeks` is empty if it was given up as failed."""

    gpus: int
    weeks: tuple[Hurt, ...]
    finished: bool
    late: int  # deadlines missed
    waits_s: Mapping[str, int]  # job -> from submit to its first start
    mean_delay_s: float | None = None  # of the jobs that finished

    @property
    def worst_share(self) -> float | None:
        """The largest hurt share, over size classes and by GPU-hours."""
        return _share(self.weeks) if self.weeks else None


def band(replay: Replay) -> tuple[float, float] | None:
    """The range of shares that contains nine of ten bootstraps over its weeks; None if it was given up."""
    weeks = replay.weeks
    if not weeks:
        return None
    dice = random.Random(0)  # noqa: S311 - the same draws for every fleet
    shares = sorted(_share(dice.choices(weeks, k=len(weeks))) for _ in range(BAND_DRAWS))
    return shares[BAND_DRAWS // 20], shares[-1 - BAND_DRAWS // 20]


def size_class(gpus: int) -> int:
    return 0 if gpus <= 1 else 1 if gpus < 8 else 2


def is_hurt(delay_s: float, work_s: float) -> bool:
    return delay_s > max(HURT_S, HURT_FRAC * work_s)


def _share(weeks: Iterable[Hurt]) -> float:
    """The worst of the shares, each over all these weeks together; a class without jobs has none."""
    jobs, hurt = [0] * 4, [0] * 4
    for week in weeks:
        for k in range(4):
            jobs[k] += week.jobs[k]
            hurt[k] += week.hurt[k]
    return max((hurt[k] / jobs[k] for k in range(4) if jobs[k]), default=0.0)


def passes(replay: Replay) -> bool:
    return replay.finished and bool(replay.weeks) and _share(replay.weeks) <= MOST_HURT


def passes_bootstraps(replay: Replay) -> bool:
    """In 95 % of draws of as many weeks, with replacement."""
    if not passes(replay):
        return False
    dice = random.Random(0)  # noqa: S311 - the same draws for every fleet
    weeks = replay.weeks
    passed = sum(_share(dice.choices(weeks, k=len(weeks))) <= MOST_HURT for _ in range(BOOTSTRAPS))
    return passed >= PASSING * BOOTSTRAPS


def passes_every_week(replay: Replay) -> bool:
    return passes(replay) and all(_share([week]) <= MOST_HURT for week in replay.weeks)


class _Lost(Exception):
    """So many jobs are already hurt that the rest cannot make up for it."""


class Sizing:
    """Replays of one trace under one policy, each fleet once."""

    def __init__(
        self, arrivals: Sequence[Arrival], rules: Rules, types: Collection[str] | None = None
    ) -> None:
        """`types`: of today's fleet. A job that runs fast today and slow in the replay is delayed."""
        self.arrivals, self._rules, self._types = arrivals, rules, types
        self._first_s = min(arrival.at_s for arrival in arrivals)
        self.replays: dict[tuple[tuple[Node, int], ...], Replay] = {}
        self._totals = Counter(size_class(arrival.job.gpus) for arrival in arrivals)

    def replay(self, fleet: Mapping[Node, int], *, whole: bool = False) -> Replay:
        """The trace on this many nodes of each kind. `whole`: continue even if it has already failed."""
        key = tuple((kind, n) for kind, n in fleet.items() if n)
        known = self.replays.get(key)
        if known is None or (whole and not known.weeks):
            known = self.replays[key] = self._replay(nodes_of(fleet), whole=whole)
        return known

    def _replay(self, nodes: Sequence[Node], *, whole: bool) -> Replay:
        gpus = sum(node.gpus for node in nodes)
        types = self._types or {node.gpu for node in nodes}
        work = {arrival.job.job: self._alone_s(arrival, types) for arrival in self.arrivals}
        ended = 0

        def count(done: int, _all: int) -> None:
            nonlocal ended
            ended = done

        looked = 0

        def watch(fleet: Fleet) -> None:
            nonlocal looked
            if ended - looked >= CHECK_EVERY:
                looked = ended
                self._give_up(fleet, work)

        try:
            outcome = rehearse(
                self.arrivals, nodes, self._rules, progress=count, watch=None if whole else watch
            )
        except _Lost:
            return Replay(gpus, (), finished=False, late=0, waits_s={})
        weeks: dict[int, tuple[list[int], list[int]]] = {}
        late, waits, delays = 0, {}, []
        for job, state in outcome.fleet.jobs.items():
            ended_s = state.ended_s if state.phase == "finished" else None
            if ended_s is not None:
                delays.append(max(0.0, ended_s - state.submitted_s - work[job]))
            hurt = ended_s is None or is_hurt(ended_s - state.submitted_s - work[job], work[job])
            week = weeks.setdefault((state.submitted_s - self._first_s) // WEEK_S, ([0] * 4, [0] * 4))
            for k, amount in ((size_class(state.job.gpus), 1), (3, round(state.job.gpus * work[job]))):
                week[0][k] += amount
                week[1][k] += amount * hurt
            by_s = state.job.deadline_s
            late += by_s is not None and (ended_s is None or ended_s > by_s)
            if state.first_start_s is not None:
                waits[job] = state.first_start_s - state.submitted_s
        found = tuple(Hurt(tuple(jobs), tuple(hurt)) for _, (jobs, hurt) in sorted(weeks.items()))
        finished = outcome.fleet.finished.jobs == len(self.arrivals)
        return Replay(gpus, found, finished, late, waits, sum(delays) / len(delays) if delays else None)

    def _give_up(self, fleet: Fleet, work: Mapping[str, float]) -> None:
        """Counts who is hurt, and who would be even if it finished now."""
        now_s = fleet.last_end_s or 0
        hurt = Counter(
            size_class(state.job.gpus)
            for job, state in fleet.jobs.items()
            if is_hurt((state.ended_s or now_s) - state.submitted_s - work[job], work[job])
        )
        if any(hurt[k] > MOST_HURT * self._totals[k] for k in hurt):
            raise _Lost

    def _alone_s(self, arrival: Arrival, types: Collection[str]) -> float:
        """Its run time on the available type that suits it best."""
        best = max((arrival.job.rate(gpu) for gpu in types), default=0.0)
        return arrival.work_s / best if best > 0 else arrival.work_s


def nodes_of(fleet: Mapping[Node, int]) -> list[Node]:
    kinds = [kind for kind, n in fleet.items() for _ in range(n)]
    return [replace(kind, node=f"node-{i}") for i, kind in enumerate(kinds)]


def peak_gpus(arrivals: Sequence[Arrival]) -> int:
    """The most that ran at once if nobody ever waited: with this many, nobody does."""
    ends: list[tuple[float, int]] = []
    now = most = 0
    for arrival in sorted(arrivals, key=lambda a: a.at_s):
        while ends and ends[0][0] <= arrival.at_s:
            now -= heappop(ends)[1]
        heappush(ends, (arrival.at_s + arrival.work_s, arrival.job.gpus))
        now += arrival.job.gpus
        most = max(most, now)
    return most


def fewest(
    sizing: Sizing, fleet: dict[Node, int], kind: Node, enough: Criterion, *, low: int = 0
) -> int | None:
    """The fewest nodes of one kind, with the others unchanged, that are enough; None if `fleet` is not.

    `low` is known to be one too few. Bisecting assumes that more nodes are never worse.
    """
    high = fleet[kind]

    def at(n: int) -> bool:
        replay = sizing.replay({**fleet, kind: n})
        return enough(replay) and replay.late <= sizing.replay(fleet).late

    if not at(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if at(middle):
            high = middle
        else:
            low = middle + 1
    return high


@dataclass(frozen=True, slots=True)
class Answer:
    """How many nodes of each kind are enough; None if not even the largest fleet is."""

    enough: Mapping[Node, int] | None
    bootstrap_gpus: int | None
    worst_week_gpus: int | None

    @property
    def gpus(self) -> int | None:
        return None if self.enough is None else gpus_of(self.enough)


def gpus_of(fleet: Mapping[Node, int]) -> int:
    return sum(kind.gpus * n for kind, n in fleet.items())


def least(sizing: Sizing, fleet: Mapping[Node, int]) -> dict[Node, int] | None:
    """One type after another, the most expensive first, each with as few nodes as the others allow."""
    counts = dict(fleet)
    for kind in sorted(counts, key=lambda kind: (-kind.microusd_per_gpu_hour, kind.gpu)):
        found = fewest(sizing, counts, kind, passes, low=_lower_bound(sizing, counts, kind))
        if found is None:
            return None
        counts[kind] = found
    return counts


def size(sizing: Sizing, fleet: Mapping[Node, int]) -> Answer:
    counts = least(sizing, fleet)
    if counts is None:
        return Answer(None, None, None)
    first = max(counts, key=lambda kind: kind.gpus * counts[kind])
    return Answer(
        counts,
        _enough_by(sizing, counts, first, fleet[first], passes_bootstraps),
        _enough_by(sizing, counts, first, fleet[first], passes_every_week),
    )


def _lower_bound(sizing: Sizing, fleet: Mapping[Node, int], kind: Node) -> int:
    """Fewer cannot carry the mean load, even if it were spread evenly."""
    if len(fleet) > 1:
        return 0
    last_s = max(arrival.at_s + arrival.work_s for arrival in sizing.arrivals)
    mean = sum(a.job.gpus * a.work_s for a in sizing.arrivals) / max(1.0, last_s - sizing.arrivals[0].at_s)
    widest = max(arrival.job.gpus for arrival in sizing.arrivals)
    return min(fleet[kind], int(max(mean, widest)) // kind.gpus)


def _enough_by(
    sizing: Sizing, fleet: Mapping[Node, int], kind: Node, most: int, enough: Criterion
) -> int | None:
    """How many are enough by a stricter measure: up in doubling steps, then back by halves."""
    low, step = fleet[kind], 1
    while not enough(sizing.replay({**fleet, kind: min(most, low + step - 1)})):
        if low + step - 1 >= most:
            return None
        low, step = low + step, step * 2
    found = fewest(sizing, {**fleet, kind: min(most, low + step - 1)}, kind, enough, low=low)
    return None if found is None else gpus_of({**fleet, kind: found})


def explained(real_s: Mapping[str, int], replayed_s: Mapping[str, int]) -> float | None:
    """How much of the real waiting time the replay reproduces, job by job; None if nobody waited."""
    total = sum(real_s.values())
    both = sum(min(wait, replayed_s.get(job, 0)) for job, wait in real_s.items())
    return both / total if total else None


def silos(arrivals: Sequence[Arrival], rules: Rules, kind: Node) -> dict[str, int | None]:
    """Each queue on separate GPUs: how many it would need alone."""
    by_queue: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        by_queue.setdefault(arrival.job.queue or arrival.job.tenant, []).append(arrival)
    return {queue: _alone(mine, rules, kind) for queue, mine in sorted(by_queue.items())}


def _alone(arrivals: Sequence[Arrival], rules: Rules, kind: Node) -> int | None:
    sizing = Sizing(arrivals, rules)
    top = {kind: -(-peak_gpus(arrivals) // kind.gpus) + 1}
    found = fewest(sizing, top, kind, passes, low=_lower_bound(sizing, top, kind))
    return None if found is None else found * kind.gpus
