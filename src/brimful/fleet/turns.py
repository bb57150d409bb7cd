"""Whose turn it is: jobs that have waited longer than nearly every job runs, and are not among the longest.

An order that serves short jobs first would let the others wait as long as a fleet is short of GPUs. The few
longest get no turn: they are what others wait for, and under any order they finish last.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.learned.lengths import Lengths
from brimful.fleet.learned.lifetimes import Lifetimes
from brimful.fleet.lease import JobState, Lease


def length_s(state: JobState) -> float:
    """Its length: by its prediction, else its run time so far, which was counted when it stopped."""
    predicted_s = state.job.predicted_work_s
    return state.run_s if predicted_s is None else predicted_s


class _Open(NamedTuple):
    until_s: float
    lease: str
    rank: int  # of its job's class, 0 the highest
    gpu_milli: int  # all it holds, in thousandths of a GPU


@dataclass(slots=True)
class Turns:
    lengths: Lengths = field(default_factory=Lengths)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    _open: list[_Open] = field(default_factory=list)  # sorted by when the turn is over, soonest first
    _gpu_milli: list[int] = field(default_factory=lambda: [0] * len(PRIORITIES))  # of these, by class

    def submitted(self, state: JobState) -> None:
        job = state.job
        state.kin = self.lifetimes.kind_of(job.gpus)
        if job.predicted_work_s is not None:
            self.lengths.count(job.predicted_work_s)

    def granted(self, state: JobState, lease: Lease, *, at_s: int) -> None:
        """A lease that begins in its job's turn belongs to it until the job itself is one of the longest.

        A job that is already one of the longest, and has a turn because it waited even longer, runs that long
        once more.
        """
        known, long_s, had_s = state.job.predicted_work_s is not None, self.lengths.long_s or 0.0, state.run_s
        lease.turn_until_s = inf if known else at_s + long_s - (had_s if had_s < long_s else 0)
        self._expire(at_s)
        each = _open(state, lease)
        insort(self._open, each)
        self._gpu_milli[each.rank] += each.gpu_milli

    def ended(
        self, state: JobState, lease: Lease, *, ran_s: int, is_over: bool, running: Iterable[JobState]
    ) -> None:
        """`state.run_s` does not include this lease yet, and `running` no longer its job."""
        assert lease.ended_s is not None
        if ran_s and self.lifetimes.left(state.job.gpus, before_s=state.run_s, ran_s=ran_s, is_over=is_over):
            self.lifetimes.learn((each.job.gpus, each.attained_s(lease.ended_s)) for each in running)
        if ran_s and state.job.predicted_work_s is None:
            self.lengths.count(state.run_s + ran_s, before_s=state.run_s)
        if lease.turn_until_s:
            each = _open(state, lease)
            at = bisect_left(self._open, each)
            if at < len(self._open) and self._open[at] == each:
                del self._open[at]
                self._gpu_milli[each.rank] -= each.gpu_milli

    def _expire(self, at_s: int) -> None:
        """Drop turns that are over. Only an event does this: reading must give the same result every time."""
        while self._open and self._open[0].until_s <= at_s:
            each = self._open.pop(0)
            self._gpu_milli[each.rank] -= each.gpu_milli

    def gpus(self, now_s: int, *, rank: int = len(PRIORITIES) - 1) -> float:
        """GPUs held by leases of this class and above whose job's turn it is."""
        gpu_milli = sum(self._gpu_milli[: rank + 1])
        for each in self._open:
            if each.until_s > now_s:
                break
            gpu_milli -= each.gpu_milli if each.rank <= rank else 0
        return gpu_milli / WHOLE_GPU


def _open(state: JobState, lease: Lease) -> _Open:
    rank = PRIORITIES[state.job.priority]
    return _Open(lease.turn_until_s, lease.lease, rank, lease.size * lease.gpu_milli)
