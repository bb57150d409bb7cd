"""How long jobs run, as far as the fleet has seen: the length that only one in a hundred exceeds.

A job of predicted work counts by that as soon as it comes, any other by what it has had, each time it leaves
its GPUs: one that was stopped is known to be at least so long. Were only finished jobs counted, those that
are kept waiting because they are long would never make anybody's length look ordinary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2

RARE = 0.01
ENOUGH = 100  # jobs: fewer say nothing about one in a hundred
LATELY = 20_000  # jobs: whenever there are twice as many, what was counted so far counts half
PER_DOUBLING = 8  # lengths are kept to 9 %
BUCKETS = 32 * PER_DOUBLING  # up to a century


@dataclass(slots=True)
class Lengths:
    """Jobs counted by length, in equal steps of its logarithm."""

    counts: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    jobs: float = 0.0
    long_s: float | None = None  # one job in a hundred is longer; None: too few are known
    long_at: int = 0  # the step that begins there: who falls into it or above is one of the longest
    stale: int = 0  # counted since `long_s` was found

    def count(self, length_s: float, before_s: float = 0.0) -> None:
        """A job is at least so long; `before_s` is what was said of it before."""
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
    """Which step it falls into; `long_s` is where one begins."""
    return int(min(BUCKETS - 1, PER_DOUBLING * log2(length_s))) if length_s > 1.0 else 0


def least_s(at: int) -> float:
    """The length with which this step begins."""
    found: float = 2.0 ** (at / PER_DOUBLING)
    return found
