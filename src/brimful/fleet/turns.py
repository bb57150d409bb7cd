"""Whose turn it is: who has waited longer than nearly every job runs, and is not itself one of the longest.

An order that serves short jobs first would let the others wait for as long as a fleet is short of GPUs. The
few longest have no turn: they are what others wait for, and whatever the order, they are the last to be done.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import inf

from brimful.fleet.job import Job
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.lengths import Lengths


def length_s(state: JobState) -> float:
    """How long it is: by its prediction, else what it has had so far, which was counted when it stopped."""
    predicted_s = state.job.predicted_work_s
    return state.run_s if predicted_s is None else predicted_s


@dataclass(slots=True)
class Turns:
    lengths: Lengths = field(default_factory=Lengths)
    _open: list[tuple[float, str, int]] = field(default_factory=list)  # until when, lease, GPUs
    _gpus: int = 0

    def submitted(self, job: Job) -> None:
        if job.predicted_work_s is not None:
            self.lengths.count(job.predicted_work_s)

    def granted(self, state: JobState, lease: Lease, *, at_s: int) -> None:
        """A lease that begins in its job's turn is part of it until the job is one of the longest itself."""
        known = state.job.predicted_work_s is not None
        lease.turn_until_s = inf if known else at_s + (self.lengths.long_s or 0.0) - state.run_s
        insort(self._open, (lease.turn_until_s, lease.lease, lease.size))
        self._gpus += lease.size

    def ended(self, state: JobState, lease: Lease, *, ran_s: int) -> None:
        """`state.run_s` is still without this lease."""
        if ran_s and state.job.predicted_work_s is None:
            self.lengths.count(state.run_s + ran_s, before_s=state.run_s)
        if lease.turn_until_s:
            entry = (lease.turn_until_s, lease.lease, lease.size)
            at = bisect_left(self._open, entry)
            if at < len(self._open) and self._open[at] == entry:
                del self._open[at]
                self._gpus -= lease.size

    def gpus(self, now_s: int) -> int:
        """GPUs that leases hold whose job's turn it is."""
        while self._open and self._open[0][0] <= now_s:
            self._gpus -= self._open.pop(0)[2]
        return self._gpus
