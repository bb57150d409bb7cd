"""How soon a job of unknown length is likely to end, given how long it has run: what other jobs here did.

The answer is the Gittins index, in seconds: the least that the fleet expects to pay per job that ends,

    min over h of  E[service within the next h] / P(it ends within the next h),

which gives the least mean time in the system on one server (Gittins, "Bandit processes and dynamic
allocation indices", 1979) and nearly so on many (Scully, Grosof and Harchol-Balter, "The Gittins policy is
nearly optimal in the M/G/k under extremely general conditions", 2020). Where the long-running go on longest,
it is least attained service; where all jobs are alike, first come, first served; where half of them end early
and the others run for a day, it tries each for a moment and then lets it run.

Lengths are counted in steps of their logarithm, with jobs that were stopped or still run as "longer than so
far" (Kaplan and Meier, 1958). Where few jobs were seen, hazards are drawn towards a prior: for all jobs, that
a job goes on for as long again as it has run; for those of one width, what all jobs did. Left out: names and
users, which say more where they are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log2

PER_DOUBLING = 4  # steps of 19 %
STEPS = 22 * PER_DOUBLING  # up to 48 days
EDGES_S: tuple[float, ...] = (0.0, *(2.0 ** (at / PER_DOUBLING) for at in range(1, STEPS + 1)))
FRESH_S = 1800.0  # what a job is expected to need at first, before any has ended
QUANTUM_S = 300.0  # the shortest horizon: a job that has started is not stopped earlier
PRIOR_JOBS = 5.0  # how many jobs a prior counts for, at each length: 3 to 10 are equally good
LATELY = 20_000  # jobs: at twice this many, earlier ones count half
FIRST, GROWTH = 10, 0.1  # it is computed again after so many jobs, and after so much growth


def step_of(length_s: float) -> int:
    return min(STEPS - 1, int(PER_DOUBLING * log2(length_s))) if length_s > 1.0 else 0


def _unseen(at: int) -> float:
    """The chance of ending within a step with which the index is the time so far, and at least `FRESH_S`."""
    wide_s = EDGES_S[at + 1] - EDGES_S[at]
    return wide_s / (max(FRESH_S, EDGES_S[at]) + wide_s / 2)


UNSEEN = tuple(_unseen(at) for at in range(STEPS))


def index_s(hazards: Sequence[float], first: int) -> float:
    """The Gittins index of a job that has reached this step.

    Horizons end where a step does; jobs that end within one do so in its middle.
    """
    served_s, alive, best_s = 0.0, 1.0, inf
    for at in range(first, STEPS):
        served_s += alive * (EDGES_S[at + 1] - EDGES_S[at]) * (1.0 - hazards[at] / 2)
        alive *= 1.0 - hazards[at]
        if alive < 1.0 and EDGES_S[at + 1] - EDGES_S[first] >= QUANTUM_S:
            best_s = min(best_s, served_s / (1.0 - alive))
        if alive < 1e-3:
            break
    return best_s if best_s < inf else max(FRESH_S, EDGES_S[first])


def _zeros() -> list[float]:
    return [0.0] * STEPS


@dataclass(slots=True)
class Kind:
    """Jobs that are taken to be alike."""

    ended: list[float] = field(default_factory=_zeros)
    stopped: list[float] = field(default_factory=_zeros)  # jobs that wait to go on, at what they have run
    hazards: tuple[float, ...] = UNSEEN
    # By step, as they are asked for: most policies ask for none, and jobs that wait need a few.
    _indices_s: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def left_s(self, had_s: float) -> float:
        at = step_of(had_s)
        from_s, to_s = EDGES_S[at], EDGES_S[at + 1]
        known_s = self._indices_s
        now = known_s.get(at) or self._index_s(at)
        then = known_s.get(at + 1) or self._index_s(at + 1)
        return now + (then - now) * min(1.0, (had_s - from_s) / (to_s - from_s))

    def _index_s(self, at: int) -> float:
        found = max(self._index_s(STEPS - 1), EDGES_S[-1]) if at == STEPS else index_s(self.hazards, at)
        self._indices_s[at] = found
        return found

    def learn(self, going_s: Iterable[float], prior: Sequence[float]) -> None:
        """`going_s`: how long those that run now have run. `prior`: hazards that count for `PRIOR_JOBS`."""
        longer = [*self.stopped]
        for had_s in going_s:
            longer[step_of(had_s)] += 1.0
        reached, hazards = 0.0, [0.0] * STEPS
        for at in reversed(range(STEPS)):
            # Of those only known to be longer, half were seen through the step.
            risked = reached + self.ended[at] + longer[at] / 2
            hazards[at] = (self.ended[at] + PRIOR_JOBS * prior[at]) / (risked + PRIOR_JOBS)
            reached += self.ended[at] + longer[at]
        self.hazards = tuple(hazards)
        self._indices_s.clear()

    def halve(self) -> None:
        self.ended = [count / 2 for count in self.ended]
        self.stopped = [count / 2 for count in self.stopped]


@dataclass(slots=True)
class Lifetimes:
    """Only events change anything here, so that a restarted server and a rehearsal expect the same."""

    _all: Kind = field(default_factory=Kind)
    _of_width: dict[int, Kind] = field(default_factory=dict)
    learned: int = 0  # how often: what is sorted by it is sorted again
    _jobs: float = 0.0
    _next: float = FIRST

    def kind_of(self, gpus: int) -> Kind:
        """A job keeps it: what is learned later shows there."""
        found = self._of_width.get(gpus)
        if found is None:
            found = self._of_width[gpus] = Kind(hazards=self._all.hazards)
        return found

    def left(self, gpus: int, *, before_s: float, ran_s: float, is_over: bool) -> bool:
        """A job left its GPUs after `ran_s`, and had had some for `before_s` before. Is it time to learn?"""
        for kind in (self._all, self.kind_of(gpus)):
            if before_s > 0:
                at = step_of(before_s)
                kind.stopped[at] = max(0.0, kind.stopped[at] - 1.0)
            (kind.ended if is_over else kind.stopped)[step_of(before_s + ran_s)] += 1.0
        self._jobs += is_over
        return self._jobs >= self._next

    def learn(self, going: Iterable[tuple[int, float]]) -> None:
        """`going`: width and time so far of each job that runs."""
        if self._jobs >= 2 * LATELY:
            self._jobs /= 2
            for kind in (self._all, *self._of_width.values()):
                kind.halve()
        self.learned += 1
        self._next = self._jobs + max(1.0, GROWTH * self._jobs)
        of_width: dict[int, list[float]] = {}
        for gpus, had_s in going:
            of_width.setdefault(gpus, []).append(had_s)
        self._all.learn((had_s for each in of_width.values() for had_s in each), UNSEEN)
        for gpus, kind in self._of_width.items():
            kind.learn(of_width.get(gpus, ()), self._all.hazards)
