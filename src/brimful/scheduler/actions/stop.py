"""End what must end."""

from __future__ import annotations

from brimful.language import Seconds, Usd, say
from brimful.scheduler.cycle import Cycle


def stop(cycle: Cycle) -> None:
    """Stop jobs that were cancelled or have used up their time or budget, or their tenant's.

    Looks only at jobs that may have to stop.
    """
    fleet, now_s = cycle.fleet, cycle.now_s
    if fleet.may_have_to_stop(now_s):
        for state in fleet.cancelling.values():
            lease = state.open_lease
            if lease is not None and lease.phase != "ending":
                cycle.stop(lease, say("scheduler.cancelled"), requeue=False)
        for lease in [fleet.open_leases[name] for name in fleet.limits.due(now_s)]:
            state = fleet.jobs[lease.job]
            job = state.job
            if lease.phase == "ending" or state.cancel_requested:
                continue
            if job.max_run_s is not None and state.attained_s(now_s) >= job.max_run_s:
                cycle.stop(lease, say("scheduler.has_run", longest=Seconds(job.max_run_s)), requeue=False)
            elif job.budget_microusd is not None and state.cost_microusd(now_s) >= job.budget_microusd:
                # At the limit, not past it: the ledger never bills above the hold, so running on would be
                # free.
                cycle.stop(
                    lease, say("scheduler.budget_used_up", budget=Usd(job.budget_microusd)), requeue=False
                )
    if cycle.money is not None:
        for tenant, lease in cycle.money.broke():
            cycle.stop(lease, say("scheduler.tenant_spent", tenant=tenant))
