"""One cycle of thought: the state and the prices in, a plan out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from brimful.fleet.state import Fleet, JobState, Pool
from brimful.scheduler.plan import Plan, Start, Stop
from brimful.scheduler.policies.order import ORDERS
from brimful.scheduler.policies.place import best_fit, why_not
from brimful.scheduler.policies.stop import stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The choices a policy is made of."""

    order: str = "priority"
    grace_s: int = 10  # between the polite signal and the last one


def decide(
    fleet: Fleet,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    unreachable: Collection[str] = (),
) -> Plan:
    """Stop what must end, then give free GPUs to waiting jobs in order.

    Nobody overtakes a job that is blocked only for now: small jobs would otherwise starve large gangs
    for ever. A job that cannot be placed on this fleet at all blocks nobody. Nothing starts at a site
    that cannot be reached.
    """
    plan = Plan(stops=[Stop(lease=lease, reason=why) for lease, why in stops(fleet, now_s=now_s)])
    free = {name: () if node.site in unreachable else fleet.free(name) for name, node in fleet.nodes.items()}
    blocked: JobState | None = None
    for state in ORDERS[rules.order](fleet.waiting.values()):
        job = state.job
        spot = None if blocked else best_fit(job, fleet, free)
        if spot is None:
            reason, can_help = why_not(job, fleet, free)
            if blocked is None and can_help:
                blocked = state
            elif blocked is not None and can_help:
                reason = f"waits behind {blocked.job.job}, which needs {blocked.job.gpus}; {reason}"
            plan.waits[job.job] = reason
            continue
        node, gpus = spot
        free[node.node] = tuple(i for i in free[node.node] if i not in gpus)
        plan.starts.append(
            Start(
                job=job.job,
                lease=f"{job.job}.{len(state.leases) + 1}",
                node=node.node,
                gpus=gpus,
                microusd_per_gpu_hour=prices[node.pool],
            )
        )
    return plan
