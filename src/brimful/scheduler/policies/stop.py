"""Which leases must end: their job was cancelled, or has used up its budget or its time."""

from __future__ import annotations

from collections.abc import Iterator

from brimful.fleet.state import Fleet, JobState
from brimful.units import show_seconds, show_usd


def reason_to_stop(state: JobState, *, now_s: int) -> str | None:
    if state.cancel_requested:
        return "cancelled"
    longest = state.job.max_run_s
    if longest is not None and state.attained_s(now_s) >= longest:
        return f"it has run its {show_seconds(longest)}"
    budget = state.job.budget_microusd
    if budget is None:
        return None
    cost = cost_microusd(state, now_s=now_s)
    # At the limit, not past it: the ledger never bills above the hold, so running on would be a gift.
    return f"its budget of {show_usd(budget)} is used up" if cost >= budget else None


def cost_microusd(state: JobState, *, now_s: int) -> int:
    """What the job's leases come to so far, the running one included."""
    return sum(lease.cost_microusd(now_s) for lease in state.leases)


def stops(fleet: Fleet, *, now_s: int) -> Iterator[tuple[str, str]]:
    """(lease, reason) for every lease that must end now; looks at those that may, not at all."""
    for state in fleet.cancelling.values():
        lease = state.open_lease
        if lease is not None and lease.phase != "ending":
            yield lease.lease, "cancelled"
    for lease in fleet.limits_due(now_s):
        state = fleet.jobs[lease.job]
        if lease.phase != "ending" and not state.cancel_requested:
            reason = reason_to_stop(state, now_s=now_s)
            if reason is not None:
                yield lease.lease, reason
