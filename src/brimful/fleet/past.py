"""Jobs that have left memory, until a store has them; and the totals of all finished jobs."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fleet.lease import JobState


@dataclass(frozen=True, slots=True)
class Left:
    """A job that left memory with the event of this number."""

    seq: int
    state: JobState


@dataclass(slots=True)
class Finished:
    """Totals of all finished jobs, in memory or not."""

    jobs: int = 0
    delay_s: float = 0.0  # finish - submit - work
    first_wait_s: int = 0  # first start - submit

    def add(self, state: JobState, *, now_s: int) -> None:
        self.jobs += 1
        self.delay_s += state.delay_s(now_s)
        started_s = state.first_start_s
        self.first_wait_s += 0 if started_s is None else started_s - state.ready_s
