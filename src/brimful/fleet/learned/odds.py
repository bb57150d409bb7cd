"""What a fleet knows about jobs of unknown length: how long similar jobs were, and how often deadlines
promised on that basis were kept.

Similar are jobs of one user and name, with about as many GPUs and about as much time until their deadline: a
user who gives a job a day knows something about it. Jobs that are not over count as longer than their work so
far (Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958); without them, the long
ones would be missing. The job itself counts as one more, which makes the chance that it is at most the k-th
shortest of n k / (n + 1), as for any draw from one distribution (conformal prediction).

A slot is not the whole story: a job may start before it, and under drift there is no single distribution. So
the stated chance is corrected by results: by how many more of the open and the newest promises are kept than
their lengths said. Here too an open promise counts for the part of its time that is gone; counting only those
that are over would favour the kept ones. Only events change anything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import log
from typing import NamedTuple

from brimful.fleet.events import DeadlineAnswered
from brimful.fleet.job import Job

SURE = 0.9  # a slot has room for all but one in ten of its kind
ENOUGH = round(SURE / (1 - SURE))  # jobs: with fewer, the longest is not longer than nine in ten
NEWEST = 1000  # jobs remembered
NEAREST = 50  # of these, the number of most similar jobs used
OTHER = 2.0  # distance between a job with a deadline and one without
PROMISES = 100  # the newest, which correct the next


class Run(NamedTuple):
    """A job, and its work in total or so far."""

    who: tuple[str, str]
    name: str
    log_gpus: float
    log_due: float | None  # of the seconds from its submit to its deadline
    work_s: float
    is_over: bool


def run_of(job: Job, *, submitted_s: int, work_s: float, is_over: bool) -> Run:
    due_s = None if job.deadline_s is None else max(1, job.deadline_s - submitted_s)
    return Run(
        (job.tenant, job.user),
        job.name,
        log(job.min_gpus or job.gpus),
        None if due_s is None else log(due_s),
        work_s,
        is_over,
    )


class Promise(NamedTuple):
    said: float  # by lengths alone
    since_s: int
    by_s: int


class Came(NamedTuple):
    """The outcome of a promise: the part of its time after which it was kept, or that passed without."""

    said: float
    part: float
    is_kept: bool


@dataclass(slots=True)
class Odds:
    _newest: deque[Run] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _open: dict[str, Promise] = field(default_factory=dict)
    _came: deque[Came] = field(default_factory=lambda: deque(maxlen=PROMISES))

    def finished(self, job: Job, work_s: float, *, submitted_s: int, at_s: int) -> None:
        self._newest.append(run_of(job, submitted_s=submitted_s, work_s=work_s, is_over=True))
        promise = self._open.pop(job.job, None)
        if promise is not None:
            self._came.append(_came(promise, at_s=at_s, is_kept=at_s <= promise.by_s))

    def given_up(self, job: str) -> None:
        """It failed or was cancelled: its promise was neither kept nor broken."""
        self._open.pop(job, None)

    def answered(self, event: DeadlineAnswered) -> None:
        if event.is_promised and event.work_s is not None and event.done_by_s is not None:
            self.promised(event.job, event.by_lengths, at_s=event.at_s, by_s=event.done_by_s)

    def promised(self, job: str, said: float, *, at_s: int, by_s: int) -> None:
        for name, promise in [*self._open.items()]:
            if promise.by_s < at_s:
                self._came.append(_came(self._open.pop(name), at_s=at_s, is_kept=False))
        self._open[job] = Promise(said, at_s, by_s)

    def corrected(self, said: float, *, now_s: int) -> float:
        """Never certain: even after many promises that were all kept, the next may be broken."""
        going = (_came(each, at_s=now_s, is_kept=False) for each in self._open.values())
        came = sorted([*self._came, *going], key=lambda each: (each.part, not each.is_kept))
        known = sum(each.is_kept or each.part >= 1.0 for each in came)
        if not known:
            return said
        kept = _chances([each.is_kept for each in came], others=0)[-1]
        more = (kept - sum(each.said for each in came) / len(came)) * known / (known + ENOUGH)
        return min(PROMISES / (PROMISES + 1), max(0.0, said + more))

    def like(self, job: Run, going: Iterable[Run]) -> list[tuple[float, float]]:
        """(work, the chance that the job is no longer), shortest first."""

        def unlike(other: Run) -> float:
            if job.log_due is None or other.log_due is None:
                due = OTHER * (job.log_due is not other.log_due)
            else:
                due = abs(job.log_due - other.log_due)
            gpus = abs(job.log_gpus - other.log_gpus)
            return due + gpus + (job.who != other.who) + (job.name != other.name)

        near = sorted(
            nsmallest(NEAREST, [*self._newest, *going], key=unlike),
            key=lambda run: (run.work_s, not run.is_over),
        )
        chances = _chances([run.is_over for run in near], others=1)
        return [(run.work_s, chance) for run, chance in zip(near, chances, strict=True) if run.is_over]


def _came(promise: Promise, *, at_s: int, is_kept: bool) -> Came:
    part = (at_s - promise.since_s) / max(1, promise.by_s - promise.since_s)
    return Came(promise.said, min(1.0, part), is_kept)


def _chances(ended: Sequence[bool], *, others: int) -> list[float]:
    """The chance of ending by each of these, in order; one that has not ended is only known to end later."""
    longer, found = 1.0, list[float]()
    for at, is_end in enumerate(ended):
        left = len(ended) - at + others
        longer *= (left - 1) / left if is_end else 1.0
        found.append(round(1.0 - longer, 9))  # float error must not turn nine in ten into slightly less
    return found
