"""How long a job will go on, learned from how long others of its kind did.

Of each kind of job it is counted how many came to each step of length and how many ended in it. What few
have shown is filled up from the wider kind (this tenant's jobs of this name and width, all of this width,
all), and where nobody has been yet, by what heavy tails have in common: a job goes on for as long again as
it has run.

`left_s` is Gittins' index of a job that has had so much (Gittins, "Bandit processes and dynamic allocation
indices", 1979): the least time for each job that ends, over all times one could let it run. On one machine
no order that does not know lengths has a smaller mean than the smallest first. It is least attained service
where tails are heavy, and first come, first served where all are about as long.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import exp, inf

from brimful.fleet.job import Job

FIRST_S = 64.0  # the first step is all that is shorter
STEPS = 18  # up to half a year
STARTS = (0.0, *[FIRST_S * 2.0**i for i in range(STEPS)])
MOST_S = STARTS[-1]
FRESH_S = 1800.0  # what a new job is expected to take while nothing is known
# Who ends in a step where nobody has been: a new job at an even rate, one that has run at one that falls.
UNSEEN = [min(1 - exp(-(end_s - start_s) / FRESH_S), 0.5) for start_s, end_s in pairwise(STARTS)]
BELIEF = 3.0  # jobs: what the wider kind says counts as much as so many of one's own
LATELY = 20_000  # jobs: whenever there are twice as many, what was counted so far counts half


def step(length_s: float) -> int:
    return bisect_right(STARTS, length_s, 0, STEPS) - 1


class Kind:
    """Jobs that are taken to be alike."""

    __slots__ = ("_all", "_came", "_ended", "_left", "_mean", "_new", "_wider", "reached", "share")

    def __init__(self, wider: Kind | None = None) -> None:
        self._wider = wider
        self._came, self._ended = [0.0] * STEPS, [0.0] * STEPS
        self._new = self.reached = 0  # the longest step that anybody came to
        self._left: dict[int, float] = {}
        self._mean: dict[int, float] = {}
        self._all: Kind = self if wider is None else wider._all
        self.share: list[float] = UNSEEN if wider is None else wider.share

    def count(self, had_s: float, length_s: float, *, over: bool) -> None:
        """A job that had had `had_s` has had `length_s` now, and is over or is not. Only events count."""
        first, last = step(had_s), step(length_s)
        for at in range(first + (had_s > 0), last + 1):
            self._came[at] += 1
        self._ended[last] += over
        self._new += 1
        self.reached = max(self.reached, last)
        if self._wider is not None:
            self._wider.count(had_s, length_s, over=over)
        if self._new * 8 >= self._came[0]:
            self._look()

    def _look(self) -> None:
        if self._came[0] >= 2 * LATELY:
            self._came, self._ended = [x / 2 for x in self._came], [x / 2 for x in self._ended]
        wider = UNSEEN if self._wider is None else self._wider.share
        self.share = [
            (ended + BELIEF * believed) / (came + BELIEF)
            for came, ended, believed in zip(self._came, self._ended, wider, strict=True)
        ]
        self._new, self._left, self._mean = 0, {}, {}

    def left_s(self, had_s: float) -> float:
        at = bisect_right(STARTS, had_s, 0, STEPS) - 1  # `step`, asked for at every look at a running job
        found = self._left.get(at)
        if found is None:
            found = self._left[at] = self._index(at)
        return found

    def mean_left_s(self, had_s: float) -> float:
        """What it is expected to have yet, if nobody is longer than the longest so far."""
        at = step(had_s)
        found = self._mean.get(at)
        if found is None:
            alive, found = 1.0, 0.0
            for i in range(at, max(at, self._all.reached) + 1):
                found += alive * (STARTS[i + 1] - STARTS[i]) * (1 - self.share[i] / 2)
                alive *= 1 - self.share[i]
            self._mean[at] = found
        return found

    def _index(self, at: int) -> float:
        best, alive, spent_s = inf, 1.0, 0.0
        for i in range(at, STEPS):
            share = self.share[i]
            spent_s += alive * (STARTS[i + 1] - STARTS[i]) * (1 - share / 2)
            alive *= 1 - share
            best = min(best, spent_s / (1 - alive))
            if alive < 1e-3:
                break
        return best


class Kinds:
    """All kinds of jobs a fleet has seen."""

    def __init__(self) -> None:
        self._all = Kind()
        self._of_width: dict[int, Kind] = {}
        self._own: dict[tuple[str, str, int], Kind] = {}

    def of(self, job: Job) -> Kind:
        key = (job.tenant, job.name, job.gpus)
        found = self._own.get(key)
        if found is None:
            width = self._of_width.get(job.gpus)
            if width is None:
                width = self._of_width[job.gpus] = Kind(self._all)
            found = self._own[key] = Kind(width)
        return found
