"""Which leases must end: their job was cancelled, or has used up its budget."""

from __future__ import annotations

from brimful.fleet.state import Fleet, JobState
from brimful.market.ledger import lease_microusd
from brimful.units import show_usd


def reason_to_stop(state: JobState, *, now_s: int) -> str | None:
    if state.cancel_requested:
        return "cancelled"
    budget = state.job.budget_microusd
    if budget is None:
        return None
    cost = cost_microusd(state, now_s=now_s)
    # At the limit, not past it: the ledger never bills above the hold, so running on would be a gift.
    return f"its budget of {show_usd(budget)} is used up" if cost >= budget else None


def cost_microusd(state: JobState, *, now_s: int) -> int:
    """What the job's leases come to so far, the running one included."""
    return sum(
        lease_microusd(
            microusd_per_gpu_hour=lease.microusd_per_gpu_hour,
            gpus=len(lease.gpus),
            seconds=lease.billed_s(now_s),
        )[0]
        for lease in state.leases
    )


def stops(fleet: Fleet, *, now_s: int) -> list[tuple[str, str]]:
    """(lease, reason) for every lease that must end now."""
    found = []
    for lease in fleet.open_leases.values():
        if lease.phase != "ending":
            reason = reason_to_stop(fleet.jobs[lease.job], now_s=now_s)
            if reason is not None:
                found.append((lease.lease, reason))
    return found
