"""When to change the policy: what a rehearsal of the server's own past must have shown.

The last day is replayed under every candidate and under the current policy, all from the state the server
really had a day ago; each run costs some number of job-seconds (`sim/past.py`). The day is divided into
stretches; leaving out one at a time shows how much of the ratio of two costs is chance (the block jackknife:
Künsch, "The jackknife and the bootstrap for general stationary observations", 1989). A candidate is better if

    log(its cost / the other's) + SURE x standard error < log(1 - WORTH)

and it keeps as many deadlines, and its p99 is at most `TAIL` times the other's. A whole day, because load
follows a daily cycle: parts of a day differ more than days do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

from brimful.fleet.events import PolicyRehearsed, Rehearsed

WINDOW_S = 86_400
WORTH = 0.10  # of the cost: a smaller gain is not worth a change
SURE = 3.0  # standard errors
TAIL = 1.25  # times the current p99


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How a candidate compares with the current policy."""

    policy: str
    gain: float  # of the cost: 0.3 is 30 % less
    least_gain: float  # the same, with an allowance for chance subtracted
    more_deadlines: int  # extra deadlines kept
    tail: float  # its p99 over the other's

    @property
    def is_enough(self) -> bool:
        return self.least_gain > WORTH and self.more_deadlines >= 0 and self.tail <= TAIL


def evidence(rehearsed: PolicyRehearsed, policy: str) -> list[Evidence]:
    """One entry per candidate rehearsed beside the current policy, surest first."""
    ours = next((each for each in rehearsed.results if each.policy == policy), None)
    if ours is None:
        return []
    found = [_compared(ours, each) for each in rehearsed.results if each is not ours]
    return sorted(found, key=lambda each: -each.least_gain)


def choose(rehearsed: PolicyRehearsed, policy: str) -> Evidence | None:
    """The candidate to adopt, if the evidence suffices for one."""
    return next((each for each in evidence(rehearsed, policy) if each.is_enough), None)


def _compared(ours: Rehearsed, theirs: Rehearsed) -> Evidence:
    ratio, error = _ratio(ours.costs_s, theirs.costs_s)
    return Evidence(
        policy=theirs.policy,
        gain=1 - exp(ratio),
        least_gain=1 - exp(min(ratio + SURE * error, 700.0)),
        more_deadlines=theirs.deadlines_kept - ours.deadlines_kept,
        tail=theirs.p99_jct_s / ours.p99_jct_s if ours.p99_jct_s else 1.0,
    )


def _ratio(ours_s: Sequence[float], theirs_s: Sequence[float]) -> tuple[float, float]:
    """The logarithm of their cost over ours, and its standard error."""
    n, ours, theirs = len(ours_s), sum(ours_s), sum(theirs_s)
    if n != len(theirs_s) or ours <= 0 or theirs <= 0:
        return 0.0, inf
    pairs = [(ours - a, theirs - b) for a, b in zip(ours_s, theirs_s, strict=True)]
    if any(a <= 0 or b <= 0 for a, b in pairs):  # all the cost is in one stretch
        return log(theirs / ours), inf
    without = [log(b / a) for a, b in pairs]
    middle = sum(without) / n
    return log(theirs / ours), sqrt((n - 1) / n * sum((each - middle) ** 2 for each in without))
