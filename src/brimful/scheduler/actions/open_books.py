"""How many of their own GPUs lending queues wait for, and how many the other queues would have to return."""

from __future__ import annotations

from brimful.fleet.state import JobState
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.quotas import borrowed, owed


def open_books(cycle: Cycle) -> None:
    fleet, rules = cycle.fleet, cycle.rules
    if not rules.quotas:
        return

    def wants_now(state: JobState) -> bool:
        if not cycle.pools(state.shape):
            return False
        may_wait = state.job.deferrable or cycle.limits is not None
        return not may_wait or cycle.not_now(state, quotas=False) is None

    cycle.waited_for = owed(fleet, rules, cycle.held, wants_now)
    if rules.reclaim:
        cycle.borrowed = borrowed(fleet, rules, cycle.held)
