"""Who is next: the order in which waiting jobs are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brimful.fleet.job import PRIORITIES
from brimful.fleet.state import JobState

Order = Callable[[Iterable[JobState]], list[JobState]]


def fifo(waiting: Iterable[JobState]) -> list[JobState]:
    """First come, first served; the order of the log breaks ties, so equal runs stay equal."""
    return sorted(waiting, key=lambda state: state.submitted_s)


def priority(waiting: Iterable[JobState]) -> list[JobState]:
    """Urgent before normal before background; within a class first come, first served."""
    return sorted(waiting, key=lambda state: (PRIORITIES[state.job.priority], state.submitted_s))


ORDERS: dict[str, Order] = {"fifo": fifo, "priority": priority}
