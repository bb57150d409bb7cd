"""How long jobs run, as far as the fleet has seen: the length that only one in a hundred exceeds.

A job with predicted work counts by its prediction on arrival; any other counts by its run time so far, each
time it leaves its GPUs: a stopped job is known to be at least that long. If only finished jobs counted, those
kept waiting because they are long would never make a length look ordinary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2

RARE = 0.01
ENOUGH = 100  # jobs: fewer say nothing about one in a hundred
LATELY = 20_000  # jobs: at twice this many, earlier counts are halved
PER_DOUBLING = 8  # a resolution of 9 %
BUCKETS = 32 * PER_DOUBLING  # up to a century


@dataclass(slots=True)
class Lengths:
    """Jobs counted by length, in equal steps of its logarithm."""

    counts: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    jobs: float = 0.0
    long_s: float | None = None  # one job in a hundred is longer; None: too few jobs known
    long_at: int = 0  # the step that begins there: jobs in it or above are among the longest
    stale: int = 0  # jobs counted since `long_s` was computed

    def count(self, length_s: float, before_s: float = 0.0) -> None:
        """A job is at least this long; `before_s` is what was counted for it before."""
        if before_s > 0:
            at = bucket(before_s)
            self.jobs -= min(1.0, self.counts[at])
            self.counts[at] = max(0.0, self.counts[at] - 1.0)
        self.counts[bucket(length_s)] += 1.0
        self.jobs += 1.0
        self.stale += 1
        if self.jobs >= ENOUGH and (self.long_s is None or self.stale * 100 >= self.jobs):
            self._look()

    def _look(self) -> None:
        if self.jobs >= 2 * LATELY:
            self.counts = [count / 2 for count in self.counts]
            self.jobs = sum(self.counts)
        longer, at = 0.0, BUCKETS - 1
        while longer + self.counts[at] <= RARE * self.jobs:
            longer += self.counts[at]
            at -= 1
        self.long_s, self.long_at, self.stale = least_s(at + 1), at + 1, 0


def bucket(length_s: float) -> int:
    """The step that this length falls into; `long_s` is where one begins."""
    return int(min(BUCKETS - 1, PER_DOUBLING * log2(length_s))) if length_s > 1.0 else 0


def least_s(at: int) -> float:
    """The length at which this step begins."""
    found: float = 2.0 ** (at / PER_DOUBLING)
    return found
