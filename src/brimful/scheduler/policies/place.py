"""Where a gang goes: which GPUs of which node."""

from __future__ import annotations

from collections.abc import Mapping

from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Node

Free = Mapping[str, tuple[int, ...]]


def allowed(job: Job, node: Node) -> bool:
    return not job.gpu_types or node.gpu in job.gpu_types


def best_fit(job: Job, fleet: Fleet, free: Free) -> tuple[Node, tuple[int, ...]] | None:
    """The node where the gang leaves the fewest GPUs over, so that large holes stay for large gangs.

    A gang is placed whole on one node or not at all; the name breaks ties.
    """
    fitting = [
        (len(free[name]) - job.gpus, name)
        for name, node in fleet.nodes.items()
        if allowed(job, node) and len(free[name]) >= job.gpus
    ]
    if not fitting:
        return None
    name = min(fitting)[1]
    return fleet.nodes[name], free[name][: job.gpus]


def why_not(job: Job, fleet: Fleet, free: Free) -> tuple[str, bool]:
    """(the reason with its numbers, whether waiting can help)."""
    nodes = [node for node in fleet.nodes.values() if allowed(job, node)]
    kind = " or ".join(job.gpu_types) or "any type"
    if not nodes:
        have = ", ".join(sorted({node.gpu for node in fleet.nodes.values()})) or "no nodes at all"
        return f"wants GPUs of {kind}; the fleet has {have}", False
    largest = max(node.gpus for node in nodes)
    if largest < job.gpus:
        return f"wants {job.gpus} GPUs ({kind}) on one node; the largest node has {largest}", False
    most = max(len(free[node.node]) for node in nodes)
    total = sum(len(free[node.node]) for node in nodes)
    return f"wants {_gpus(job.gpus)} on one node; {most} free on the best node ({total} in all)", True


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"
