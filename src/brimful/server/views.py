"""The state as the API tells it and the console shows it: plain data, one shape each (api/answers.py).

What nobody has measured is None here and "unknown" on the page, never a guess. What belongs to a tenant the
asker does not see is left out here, once, and not by those who show it. Nothing here walks the history: what
it costs depends on what is asked for and on what is active now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

from brimful.adapters.stores.past import PastJob
from brimful.fleet.state import OVER, JobState, Lease, Node
from brimful.scheduler.policies.stop import cost_microusd
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.units import show_seconds

TRANSFERS_SHOWN = 50
TRANSFERS_LOOKED_AT = 2000


class Page(NamedTuple):
    views: list[dict[str, Any]]
    next_serial: int | None  # where the next page begins; None: this was the last


def job_view(reader: Reader, state: JobState, *, explain: bool = True) -> dict[str, Any]:
    """`explain` finds out why it waits, which takes a decision; who has just changed it can ask again."""
    with reader.locked():
        return _job_view(reader, state, explain=explain)


def _job_view(reader: Reader, state: JobState, *, explain: bool) -> dict[str, Any]:
    job, now_s = state.job, reader.now_s()
    lease = state.open_lease
    return {
        "job": job.job,
        "name": job.name,
        "tenant": job.tenant,
        "queue": job.queue or job.tenant,
        "submitter": job.submitter,
        "priority": job.priority,
        "gpus": job.gpus,
        "gpu_types": list(job.gpu_types),
        "sites": list(job.sites),
        "within": job.within,
        "command": list(job.command),
        "folder": job.folder,
        "phase": reader.phase_of(state),
        "why": _why(reader, state, explain=explain),
        "submitted_s": state.submitted_s,
        "now_s": now_s,
        "started_s": state.first_start_s,
        "ended_s": state.ended_s,
        "exit_code": state.exit_code,
        "node": lease.node if lease else None,
        "site": lease.site if lease else None,
        "preemptions": state.preemptions,
        "failures": state.failures,
        "retries": job.retries,
        "max_run_s": job.max_run_s,
        "deadline_s": job.deadline_s,
        "limit_microusd_per_gpu_hour": job.limit_microusd_per_gpu_hour,
        "budget_microusd": job.budget_microusd,
        # What is on the ledger, and what the running lease has come to on top of that.
        "posted_microusd": reader.spent_microusd(job.job),
        "cost_microusd": _capped(cost_microusd(state, now_s=now_s), job.budget_microusd),
        "predicted": _predicted(state),
        **reader.samples.view(state, now_s=now_s),
        "leases": [lease_view(each, now_s=now_s) for each in state.leases],
    }


def _predicted(state: JobState) -> dict[str, dict[str, float | None]]:
    job = state.job
    bytes_of, step_of = dict(job.peak_bytes), dict(job.step_s)
    return {
        gpu: {"peak_bytes": bytes_of.get(gpu), "step_s": step_of.get(gpu), "rate": rate}
        for gpu, rate in job.rates
    }


def _why(reader: Reader, state: JobState, *, explain: bool) -> str:
    lease = state.open_lease
    if lease is not None and lease.site in reader.fleet.silent:
        lost = reader.fleet.silent[lease.site]
        silent = show_seconds(max(0, reader.now_s() - lost.at_s))
        return f"{lease.site} has not answered for {silent} ({lost.reason}); nothing of it starts elsewhere"
    if state.phase == "waiting":
        return reader.why_waiting(state.job.job) if explain else ""
    if state.phase == "held":
        return state.hold_reason
    if lease is not None and lease.notice_s is not None and state.phase == "running":
        left = show_seconds(max(0, lease.notice_s - reader.now_s()))
        return f"has to leave in {left}: {lease.notice}"
    return state.leases[-1].reason if state.phase == "stopping" else state.reason


def lease_view(lease: Lease, *, now_s: int) -> dict[str, Any]:
    return {
        "lease": lease.lease,
        "site": lease.site,
        "node": lease.node,
        "gpu": lease.gpu,
        "gpus": list(lease.gpus),
        "rest": [[node, list(gpus)] for node, gpus in lease.rest],
        "phase": lease.phase,
        "granted_s": lease.granted_s,
        "started_s": lease.started_s,
        "ended_s": lease.ended_s,
        "billed_s": lease.billed_s(now_s),
        "microusd_per_gpu_hour": _price(lease),
        "cost_microusd": lease.cost_microusd(now_s),
        "notice_s": lease.notice_s,
        "exit_code": lease.exit_code,
        "reason": lease.reason,
    }


def _price(lease: Lease) -> int:
    """What it pays now; of one that is over and whose price moved, what it paid on the average."""
    gpu_s = lease.size * lease.gpu_milli * lease.billed_s(lease.ended_s or 0)
    if lease.final_owed is None or not gpu_s:
        return lease.price_now()
    return round(lease.final_owed / gpu_s)


def jobs_page(
    reader: Reader,
    *,
    before: int | None = None,
    limit: int = 200,
    phases: Collection[str] | None = None,
    tenant: str | None = None,
) -> Page:
    """Newest first, from the job before that serial on."""
    with reader.locked():
        wanted = (
            state
            for state in reversed(reader.fleet.jobs.values())
            if (before is None or state.serial < before)
            and (tenant is None or state.job.tenant == tenant)
            and (not phases or not {state.phase, reader.phase_of(state)}.isdisjoint(phases))
        )
        found = {state.serial: state for state in islice(wanted, limit + 1)}
        has_past = reader.fleet.past.jobs > 0
    posted: dict[int, int] = {}
    if has_past and (not phases or OVER & {*phases}):
        for past in islice(_past(reader, before, phases, tenant, limit), limit + 1):
            found.setdefault(past.state.serial, past.state)
            posted[past.state.serial] = past.spent_microusd
    serials = sorted(found, reverse=True)
    views = [job_view(reader, found[serial]) for serial in serials[:limit]]
    for serial, view in zip(serials, views, strict=False):
        view["posted_microusd"] = posted.get(serial, view["posted_microusd"])
    return Page(views, serials[limit - 1] if len(serials) > limit else None)


def _past(
    reader: Reader, before: int | None, phases: Collection[str] | None, tenant: str | None, limit: int
) -> Iterator[PastJob]:
    """Jobs that have left memory, newest first, as many as are asked for."""
    while page := reader.past_jobs(before_serial=before, limit=limit + 1, tenant=tenant):
        yield from (past for past in page if not phases or past.state.phase in phases)
        before = page[-1].state.serial


def fleet_view(reader: Reader, who: Principal) -> dict[str, Any]:
    with reader.locked():
        fleet = reader.fleet
        holders = {
            (node, gpu): lease if who.sees(fleet.jobs[lease.job].job.tenant) else None
            for lease in fleet.open_leases.values()
            for node, gpus in lease.parts
            for gpu in gpus
        }
        gpus = sum(node.gpus for node in fleet.nodes.values())
        trouble, problems = reader.health.trouble(), reader.problems()
        if not who.may("operator"):  # they may name folders and databases
            trouble = trouble and "the scheduler cannot go on; its operator is told why"
            problems = dict.fromkeys(problems, "it has a problem; its operator is told which")
        return {
            "gpus": gpus,
            "free": gpus - len(holders) - sum(len(node.holes) for node in fleet.nodes.values()),
            "allocation_rate": fleet.allocation_rate(reader.now_s()),
            "nodes": [_node_view(reader, node, holders) for node in fleet.nodes.values()],
            "problems": problems,
            "trouble": trouble,
        }


def _node_view(reader: Reader, node: Node, holders: dict[tuple[str, int], Lease | None]) -> dict[str, Any]:
    now_s, held = reader.now_s(), [holders.get((node.node, i)) for i in range(node.gpus)]
    return {
        "node": node.node,
        "site": node.site,
        "gpu": node.gpu,
        "rack": node.rack,
        "declared": node.declared,
        "drained": reader.fleet.drained.get(node.node),
        "microusd_per_gpu_hour": node.microusd_per_gpu_hour,
        "gpus": [
            {
                "index": i,
                "held": (node.node, i) in holders,
                "job": None if lease is None else lease.job,
                "bad": i in node.holes,
                # The driver is not asked yet; MFU is what the job says of itself.
                "memory_used_bytes": None,
                "busy_frac": None,
                "mfu": None if lease is None else reader.samples.mfu(lease, now_s=now_s),
            }
            for i, lease in enumerate(held)
        ],
    }


def drain_view(reader: Reader, node: str) -> dict[str, Any]:
    with reader.locked():
        running = [lease.job for lease in reader.fleet.leases_on.get(node, {}).values()]
        return {"node": node, "drained": reader.fleet.drained.get(node), "running": running}


def queues_view(reader: Reader, who: Principal) -> list[dict[str, Any]]:
    """Every queue that has had work, with what of it the asker may see."""
    with reader.locked():
        fleet, now_s = reader.fleet, reader.now_s()
        queues: dict[str, dict[str, Any]] = {}

        def of(state: JobState) -> dict[str, Any] | None:
            if not who.sees(state.job.tenant):
                return None
            name = state.job.queue or state.job.tenant
            return queues.setdefault(name, _empty_queue(reader, name, now_s=now_s))

        for name in fleet.usage if who.only_tenant is None else ():
            queues.setdefault(name, _empty_queue(reader, name, now_s=now_s))
        for lease in fleet.open_leases.values():
            if (row := of(fleet.jobs[lease.job])) is not None:
                row["running"] += 1
                row["held_gpus"] += lease.size
        for state in fleet.waiting.values():
            if (row := of(state)) is not None:
                row["waiting"] += 1
                row["waiting_gpus"] += state.job.gpus
                row["oldest_wait_s"] = max(row["oldest_wait_s"] or 0, now_s - state.waiting_since_s)
        for state in fleet.on_hold.values():
            if (row := of(state)) is not None:
                row["on_hold"] += 1
        return sorted(queues.values(), key=lambda row: (-row["held_gpus"], row["queue"]))


def _empty_queue(reader: Reader, name: str, *, now_s: int) -> dict[str, Any]:
    usage = reader.fleet.usage.get(name)
    quota = next((each.gpus for each in reader.rules.quotas if each.queue == name), None)
    return {
        "queue": name,
        "running": 0,
        "held_gpus": 0,
        "waiting": 0,
        "waiting_gpus": 0,
        "on_hold": 0,
        "oldest_wait_s": None,
        "recent_gpu_s": usage.at(now_s) if usage else 0.0,
        "quota_gpus": quota,
    }


def spend_view(reader: Reader, who: Principal) -> dict[str, Any]:
    with reader.locked():
        ledger, fleet, now_s = reader.ledger, reader.fleet, reader.now_s()
        running = [
            state
            for lease in fleet.open_leases.values()
            if who.sees((state := fleet.jobs[lease.job]).job.tenant)
        ]
        accruing = sum(
            _capped(cost_microusd(s, now_s=now_s), s.job.budget_microusd)
            - ledger.spent_microusd.get(s.job.job, 0)
            for s in running
        )
        posted = {name: n for name, n in ledger.spent_by_tenant.items() if who.sees(name)}
        balances = {name: n for name, n in ledger.balances.items() if _sees_account(reader, who, name)}
        return {
            "posted_microusd": sum(posted.values()),
            "accruing_microusd": accruing,
            "held_microusd": sum(n for account, n in balances.items() if account.startswith("hold:")),
            "by_tenant": posted,
            "balances": dict(sorted(balances.items())),
            # Of all accounts zero, always; of some it says nothing.
            "sum_microusd": sum(balances.values()) if who.only_tenant is None else None,
            "transfers": list(islice(_transfers(reader, who), TRANSFERS_SHOWN)),
        }


def _sees_account(reader: Reader, who: Principal, account: str) -> bool:
    if who.only_tenant is None:
        return True
    kind, _, name = account.partition(":")
    if kind == "hold":
        state = reader.fleet.jobs.get(name)
        return state is not None and who.sees(state.job.tenant)
    return kind == "tenant" and who.sees(name)


def _transfers(reader: Reader, who: Principal) -> Iterator[dict[str, Any]]:
    for t in islice(reversed(reader.ledger.transfers), TRANSFERS_LOOKED_AT):
        state = reader.fleet.jobs.get(t.job)
        # A lease that never began is posted with nothing: true, and not worth a line.
        if not t.microusd or (
            who.only_tenant is not None and (state is None or not who.sees(state.job.tenant))
        ):
            continue
        yield {
            "at_s": t.at_s,
            "kind": t.kind,
            "source": t.source,
            "target": t.target,
            "microusd": t.microusd,
            "job": t.job,
            "lease": t.lease,
        }


def _capped(microusd: int, budget_microusd: int | None) -> int:
    """Nobody is billed above a hard budget."""
    return microusd if budget_microusd is None else min(microusd, budget_microusd)
