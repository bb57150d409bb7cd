"""Nodes with their GPUs, and queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from brimful.adapters.capabilities import KnowsOthers
from brimful.client.answers import (
    DrainAnswer,
    FleetAnswer,
    FleetHead,
    NodeAnswer,
    SiteAnswer,
    alike,
)
from brimful.client.queue_answers import QueueAnswer, QueueCheckAnswer, QueueSettings
from brimful.fleet.node import bare_name
from brimful.fleet.queues import Quota
from brimful.fleet.state import Lease, Node
from brimful.language import say, told, words
from brimful.scheduler.queue_tree import parts_used, shares_owed, without_effect
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.views.tally import all_tallies, tallies


def fleet_view(reader: Reader, who: Principal, nodes: Iterable[Node] | None = None) -> FleetAnswer:
    """With all nodes, or with these."""
    with reader.locked():
        fleet = reader.fleet
        shown = fleet.nodes.values() if nodes is None else nodes
        return {
            **fleet_head(reader, who),
            "nodes": [_node_view(reader, who, node) for node in shown],
        }


def fleet_head(reader: Reader, who: Principal) -> FleetHead:
    """Everything about the fleet except its nodes, of which there may be thousands."""
    with reader.locked():
        fleet = reader.fleet
        gpus = sum(node.gpus for node in fleet.nodes.values())
        trouble = reader.health.trouble()
        if not who.may("operator"):  # it may name folders and databases
            trouble = trouble and say("server.trouble_for_operator")
        return {
            "gpus": gpus,
            "free": sum(pool.free for pool in fleet.capacity.pools.values()),  # none on a drained node
            "allocation_rate": fleet.allocation_rate(reader.now_s()),
            "policy": reader.policy,
            "market": [] if reader.market is None else [*reader.market.pools],
            "problems": problems_view(reader, who),
            "trouble": told(trouble) if trouble else "",
            "sites": sites_view(reader, who),
        }


def problems_view(reader: Reader, who: Principal) -> dict[str, str]:
    problems = {site: told(said) for site, said in reader.problems().items()}
    # They may name folders and databases.
    return problems if who.may("operator") else dict.fromkeys(problems, words("server.problem_for_operator"))


def sites_view(reader: Reader, who: Principal) -> list[SiteAnswer]:
    fleet, health, problems = reader.fleet, reader.health, problems_view(reader, who)
    rows: dict[str, SiteAnswer] = {}
    all_lost = reader.lost()
    for name in sorted({*reader.engines, *all_lost, *(node.site for node in fleet.nodes.values())}):
        lost = all_lost.get(name)
        engine = reader.engines.get(name)
        rows[name] = {
            "site": name,
            "engine": "" if engine is None else type(engine).__name__.removesuffix("Engine").lower(),
            "nodes": 0,
            "drained": 0,
            "gpus": 0,
            "held": 0,
            "silent_s": None if lost is None else max(0, reader.now_s() - lost.at_s),
            "problem": problems.get(name, ""),
            "latency_s": dict(health.engine_s.get(name, {})),
        }
    for pool in pool_rows(reader):
        row = rows[pool["site"]]
        row["nodes"] += pool["nodes"]
        row["drained"] += pool["drained"]
        row["gpus"] += pool["gpus"]
        row["held"] += pool["held"]
    return list(rows.values())


class PoolRow(TypedDict):
    """GPUs of one type at one site: sums over `nodes` of the fleet."""

    site: str
    gpu: str
    nodes: int
    drained: int
    gpus: int
    held: int


def pool_rows(reader: Reader) -> list[PoolRow]:
    return reader.once(_pool_rows)


def _pool_rows(reader: Reader) -> list[PoolRow]:
    fleet, rows = reader.fleet, dict[tuple[str, str], PoolRow]()
    for node in fleet.nodes.values():
        key = (node.site, node.gpu)
        if key not in rows:  # there are thousands of nodes: one of these is made for each pool only
            rows[key] = {"site": node.site, "gpu": node.gpu, "nodes": 0, "drained": 0, "gpus": 0, "held": 0}
        row = rows[key]
        row["nodes"] += 1
        row["drained"] += node.node in fleet.drained
        row["gpus"] += node.gpus
        row["held"] += _held(reader, node)
    return [rows[key] for key in sorted(rows)]


def _held(reader: Reader, node: Node) -> int:
    """By leases or by others: the same GPUs that `_node_view` marks as held."""
    fleet = reader.fleet
    if not node.holes and node.node not in fleet.drained:
        return node.gpus - len(fleet.free(node.node))
    ours = {
        gpu
        for lease in fleet.leases_on.get(node.node, {}).values()
        for name, gpus in lease.parts
        if name == node.node
        for gpu in gpus
    }
    if node.node in fleet.drained:
        return len(ours)
    return node.gpus - len(fleet.free(node.node)) - len({*node.holes} - ours)


def _node_view(reader: Reader, who: Principal, node: Node) -> NodeAnswer:
    fleet, now_s = reader.fleet, reader.now_s()
    use = [reader.samples.gpu(node.site, node.node, i) for i in range(node.gpus)]
    free, offered = fleet.free(node.node), node.node not in fleet.drained
    holders: dict[int, Lease | None] = {
        gpu: lease if who.sees(fleet.jobs[lease.job].job.tenant) else None
        for lease in fleet.leases_on.get(node.node, {}).values()
        for name, gpus in lease.parts
        if name == node.node
        for gpu in gpus
    }
    return {
        **alike(NodeAnswer, node),
        "drained": _drained(reader, node.node),
        "others": _others(reader, node) if who.sees_all else [],
        "gpus": [
            {
                "index": i,
                # By a lease, or by someone else.
                "held": i in holders or (offered and i not in free and i not in node.holes),
                "job": None if lease is None else lease.job,
                "bad": i in node.holes,
                # From the driver, if it says; MFU is what the job reports.
                "memory_used_bytes": use[i].memory_used_bytes,
                "busy_frac": use[i].busy_frac,
                "mfu": None if lease is None else reader.samples.mfu(lease, now_s=now_s),
            }
            for i, lease in ((i, holders.get(i)) for i in range(node.gpus))
        ],
    }


def _others(reader: Reader, node: Node) -> list[str]:
    engine: object = reader.engines.get(node.site)
    if not isinstance(engine, KnowsOthers):
        return []
    return [*engine.others().get(bare_name(node.site, node.node), ())]


def _drained(reader: Reader, node: str) -> str | None:
    """Why nothing starts there; None if it accepts work."""
    drained = reader.fleet.drained
    return told(drained[node] or "") if node in drained else None


def drain_view(reader: Reader, node: str) -> DrainAnswer:
    with reader.locked():
        running = [lease.job for lease in reader.fleet.leases_on.get(node, {}).values()]
        return {"node": node, "drained": _drained(reader, node), "running": running}


def queues_view(reader: Reader, who: Principal) -> list[QueueAnswer]:
    """Every queue that has had work, with the part of it that the caller may see."""
    with reader.locked():
        fleet, now_s = reader.fleet, reader.now_s()
        found = tallies(reader, who)
        known = [*fleet.usage, *(each.queue for each in fleet.queues)] if who.sees_all else []
        known += [each.queue for each in fleet.queues if any(map(who.sees, each.tenants or (each.queue,)))]
        names = {*known, *(queue for _, queue in found)}
        queues = {name: _empty_queue(reader, who, name) for name in names}
        for (_, queue), each in found.items():
            row = queues[queue]
            row["running"] += each.running
            row["held_gpus"] += each.held_gpus
            row["waiting"] += each.waiting
            row["waiting_gpus"] += each.waiting_gpus
            row["on_hold"] += each.on_hold
            if each.waits_since_s is not None:
                row["oldest_wait_s"] = max(row["oldest_wait_s"] or 0, now_s - each.waits_since_s)
        if reader.rules.order == "fair":
            _add_shares(reader, queues)
        if who.sees_all:
            for quota in fleet.queues:
                queues[quota.queue]["notes"] = _queue_notes(reader, quota, fleet.queues)
        return sorted(queues.values(), key=lambda row: (-row["held_gpus"], row["queue"]))


def queue_checks(reader: Reader, quotas: Sequence[Quota]) -> list[QueueCheckAnswer]:
    """What there is to say about queues that are not set yet."""
    with reader.locked():
        return [
            {
                "queue": each.queue,
                "without_effect": without_effect(each, reader.rules),
                "notes": _queue_notes(reader, each, quotas),
            }
            for each in quotas
        ]


def _queue_notes(reader: Reader, quota: Quota, quotas: Sequence[Quota]) -> list[str]:
    """Allowed, since the fleet may grow, but until then no job gets what it promises."""
    fleet = reader.fleet
    nodes = fleet.nodes.values()
    notes = []
    promised, has = sum(each.gpus for each in quotas), sum(node.offered_gpus for node in nodes)
    if quota.gpus and promised > has:
        notes.append(say("server.quotas_above_fleet", promised=promised, has=has))
    held = {node.gpu for node in nodes} | {pool.gpu for pool in fleet.cloud.offers}
    for gpu in sorted(dict(quota.type_gpus).keys() - held):
        has_types = ", ".join(sorted(held)) or say("scheduler.no_nodes")
        notes.append(say("server.queue_type_not_there", queue=quota.queue, gpu=gpu, has=has_types))
    return [told(note) for note in notes]


def _add_shares(reader: Reader, queues: dict[str, QueueAnswer]) -> None:
    fleet, now_s, found = reader.fleet, reader.now_s(), reader.once(all_tallies)
    quotas = fleet.queues or reader.rules.quotas
    owed = shares_owed(quotas, {queue for (_, queue), each in found.items() if each.running or each.waiting})
    used = parts_used(quotas, {name: usage.at(now_s) for name, usage in fleet.usage.items()})
    for name, row in queues.items():
        row["share_owed"], row["share_used"] = owed.get(name), used.get(name, 0.0)


def _empty_queue(reader: Reader, who: Principal, name: str) -> QueueAnswer:
    usage, now_s = reader.fleet.usage.get(name), reader.now_s()
    quota = next((each for each in reader.fleet.queues or reader.rules.quotas if each.queue == name), None)
    return {
        "queue": name,
        "running": 0,
        "held_gpus": 0,
        "waiting": 0,
        "waiting_gpus": 0,
        "on_hold": 0,
        "oldest_wait_s": None,
        "recent_gpu_s": usage.at(now_s) if usage else 0.0,
        "share_owed": None,
        "share_used": None,
        "quota_gpus": None if quota is None else quota.gpus,
        "set": None if quota is None else _queue_settings(quota, who),
        "without_effect": [] if quota is None else without_effect(quota, reader.rules),
        "notes": [],
    }


def _queue_settings(quota: Quota, who: Principal) -> QueueSettings:
    return {
        **alike(QueueSettings, quota),
        "type_gpus": dict(quota.type_gpus),
        "parent": quota.parent if who.sees(quota.parent) else "",
        "tenants": [each for each in quota.tenants if who.sees(each)],
    }
