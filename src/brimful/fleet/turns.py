"""Leases of jobs whose turn it was: who was late went first (scheduler/whose_turn.py), and stays.

An order that serves short jobs first would let the others wait for as long as a fleet is short of GPUs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from brimful.fleet.hazards import FRESH_S
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.lengths import Lengths


def length_s(state: JobState) -> float:
    """How long it is: by its prediction, else what it has had so far, which was counted when it stopped."""
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
    _open: list[_Open] = field(default_factory=list)  # whose turn is over soonest first
    _gpu_milli: list[int] = field(default_factory=lambda: [0] * len(PRIORITIES))  # of these, by class

    def submitted(self, job: Job) -> None:
        if job.predicted_work_s is not None:
            self.lengths.count(job.predicted_work_s)

    def granted(self, state: JobState, lease: Lease, *, at_s: int) -> None:
        """A lease that begins in its job's turn is part of it until the job is one of the longest itself.

        One that was so before, and has a turn for having waited even longer, runs that long once more.
        """
        known, had_s = state.job.predicted_work_s is not None, state.run_s
        long_s = max(FRESH_S, self.lengths.long_s or 0.0)
        lease.turn_until_s = inf if known else at_s + long_s - (had_s if had_s < long_s else 0)
        self._expire(at_s)
        each = _open(state, lease)
        insort(self._open, each)
        self._gpu_milli[each.rank] += each.gpu_milli

    def ended(self, state: JobState, lease: Lease, *, ran_s: int) -> None:
        """`state.run_s` is still without this lease."""
        if ran_s and state.job.predicted_work_s is None:
            self.lengths.count(state.run_s + ran_s, before_s=state.run_s)
        if lease.turn_until_s:
            each = _open(state, lease)
            at = bisect_left(self._open, each)
            if at < len(self._open) and self._open[at] == each:
                del self._open[at]
                self._gpu_milli[each.rank] -= each.gpu_milli

    def _expire(self, at_s: int) -> None:
        """Forget whose turn is over. Only an event does: who reads must find the same on every reading."""
        while self._open and self._open[0].until_s <= at_s:
            each = self._open.pop(0)
            self._gpu_milli[each.rank] -= each.gpu_milli

    def gpus(self, now_s: int, *, rank: int = len(PRIORITIES) - 1) -> float:
        """GPUs that leases of this class and of higher ones hold whose job's turn it is."""
        gpu_milli = sum(self._gpu_milli[: rank + 1])
        for each in self._open:
            if each.until_s > now_s:
                break
            gpu_milli -= each.gpu_milli if each.rank <= rank else 0
        return gpu_milli / WHOLE_GPU


def _open(state: JobState, lease: Lease) -> _Open:
    rank = PRIORITIES[state.job.priority]
    return _Open(lease.turn_until_s, lease.lease, rank, lease.size * lease.gpu_milli)
