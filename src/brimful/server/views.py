"""The state as the API tells it and the console shows it: plain data, one shape each.

What nobody has measured is None here and "unknown" on the page, never a guess.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from brimful.fleet.metrics import measure
from brimful.fleet.state import OVER, JobState, Lease, Node
from brimful.market.ledger import lease_microusd
from brimful.scheduler.policies.stop import cost_microusd
from brimful.server.service import Service

TRANSFERS_SHOWN = 50


def job_view(service: Service, state: JobState) -> dict[str, Any]:
    with service.locked():
        return _job_view(service, state)


def _job_view(service: Service, state: JobState) -> dict[str, Any]:
    job, now_s = state.job, service.now_s()
    lease = state.leases[-1] if state.leases else None
    return {
        "job": job.job,
        "name": job.name,
        "tenant": job.tenant,
        "priority": job.priority,
        "gpus": job.gpus,
        "gpu_types": list(job.gpu_types),
        "command": list(job.command),
        "folder": job.folder,
        "phase": state.phase,
        "why": _why(service, state),
        "submitted_s": state.submitted_s,
        "now_s": now_s,
        "started_s": state.first_start_s,
        "ended_s": state.ended_s,
        "exit_code": state.exit_code,
        "node": lease.node if lease and state.phase not in OVER else None,
        "budget_microusd": job.budget_microusd,
        # What is on the ledger, and what the running lease has come to on top of that.
        "posted_microusd": service.ledger.spent_microusd.get(job.job, 0),
        "cost_microusd": _capped(cost_microusd(state, now_s=now_s), job.budget_microusd),
        "leases": [lease_view(each, now_s=now_s) for each in state.leases],
    }


def _why(service: Service, state: JobState) -> str:
    if state.phase == "waiting":
        return service.why_waiting(state.job.job)
    return state.leases[-1].reason if state.phase == "stopping" else state.reason


def lease_view(lease: Lease, *, now_s: int) -> dict[str, Any]:
    cost, _rest = lease_microusd(
        microusd_per_gpu_hour=lease.microusd_per_gpu_hour,
        gpus=lease.size,
        seconds=lease.billed_s(now_s),
    )
    return {
        "lease": lease.lease,
        "site": lease.site,
        "node": lease.node,
        "gpu": lease.gpu,
        "gpus": list(lease.gpus),
        "phase": lease.phase,
        "started_s": lease.started_s,
        "ended_s": lease.ended_s,
        "billed_s": lease.billed_s(now_s),
        "microusd_per_gpu_hour": lease.microusd_per_gpu_hour,
        "cost_microusd": cost,
        "exit_code": lease.exit_code,
        "reason": lease.reason,
    }


def jobs_view(service: Service, *, limit: int = 200) -> list[dict[str, Any]]:
    """Newest first."""
    with service.locked():
        newest = list(service.fleet.jobs.values())[: -limit - 1 : -1]
        return [job_view(service, state) for state in newest]


def fleet_view(service: Service) -> dict[str, Any]:
    with service.locked():
        fleet = service.fleet
        holders = {(n, i): x.job for x in fleet.open_leases.values() for n, gpus in x.parts for i in gpus}
        nodes = [_node_view(node, holders) for node in fleet.nodes.values()]
        figures = measure(fleet, now_s=service.now_s())
        return {
            "gpus": sum(node.gpus for node in fleet.nodes.values()),
            "free": sum(len(fleet.free(name)) for name in fleet.nodes),
            "allocation_rate": figures.allocation_rate,
            "nodes": nodes,
            "problems": service.problems(),
            "trouble": service.trouble(),
        }


def spend_view(service: Service) -> dict[str, Any]:
    with service.locked():
        ledger, now_s = service.ledger, service.now_s()
        running = [service.fleet.jobs[x.job] for x in service.fleet.open_leases.values()]
        accruing = sum(
            _capped(cost_microusd(s, now_s=now_s), s.job.budget_microusd)
            - ledger.spent_microusd.get(s.job.job, 0)
            for s in running
        )
        posted: dict[str, int] = {}
        for job, microusd in ledger.spent_microusd.items():
            tenant = service.fleet.jobs[job].job.tenant
            posted[tenant] = posted.get(tenant, 0) + microusd
        return {
            "posted_microusd": sum(posted.values()),
            "accruing_microusd": accruing,
            "held_microusd": sum(n for account, n in ledger.balances.items() if account.startswith("hold:")),
            "by_tenant": posted,
            "balances": dict(sorted(ledger.balances.items())),
            "sum_microusd": sum(ledger.balances.values()),  # zero, always
            "transfers": [
                {
                    "at_s": t.at_s,
                    "kind": t.kind,
                    "source": t.source,
                    "target": t.target,
                    "microusd": t.microusd,
                    "job": t.job,
                    "lease": t.lease,
                }
                # A lease that never began is posted with nothing: true, and not worth a line.
                for t in islice((t for t in reversed(ledger.transfers) if t.microusd), TRANSFERS_SHOWN)
            ],
        }


def _node_view(node: Node, holders: dict[tuple[str, int], str]) -> dict[str, Any]:
    return {
        "node": node.node,
        "site": node.site,
        "gpu": node.gpu,
        "declared": node.declared,
        "microusd_per_gpu_hour": node.microusd_per_gpu_hour,
        "gpus": [
            {
                "index": i,
                "job": holders.get((node.node, i)),
                # Nothing measures these yet.
                "memory_used_bytes": None,
                "busy_frac": None,
                "mfu": None,
            }
            for i in range(node.gpus)
        ],
    }


def _capped(microusd: int, budget_microusd: int | None) -> int:
    """Nobody is billed above a hard budget."""
    return microusd if budget_microusd is None else min(microusd, budget_microusd)
