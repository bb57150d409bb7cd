"""Alibaba's GPU cluster trace of 2023 (openb), in the files as published: a node list and pod lists.

Nodes: sn, cpu_milli, memory_mib, gpu, model. Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli and, in
most lists, gpu_spec (allowed models with | between), qos, creation_time, deletion_time, scheduled_time in
seconds. Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023.

A pod runs from scheduled_time to deletion_time. Lists without times (multigpu*) have none: every pod then
arrives at 0 and has no work, which is all that a fill needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from brimful.errors import BadInput
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Node
from brimful.language import Quoted, say
from brimful.sim.traces.reading import MAX_S, RESTART_S, Row, Skips, entry, in_order, integer, number, table
from brimful.sim.world import SITE, Arrival

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_MILLI = 10**9
MAX_NODE_GPUS = 1024


def recognises_nodes(head: str) -> bool:
    return {"sn", "cpu_milli", "gpu"} <= _columns(head)


def recognises_pods(head: str) -> bool:
    return {"name", "cpu_milli", "num_gpu"} <= _columns(head)


def read_nodes(lines: Iterable[str], *, name: str, skips: Skips) -> list[Node]:
    """The nodes that have GPUs, and those that have none."""
    nodes: dict[str, Node] = {}
    for where, row in table(lines, name=name, needed=NODE_COLUMNS, skips=skips):
        try:
            node = _node(row, where)
            if node.node in nodes:
                raise BadInput(say("sim.duplicate_node", where=where, node=Quoted(node.node)))
        except BadInput as error:
            skips.note(error)
            continue
        nodes[node.node] = node
    if not nodes:
        raise BadInput(say("sim.no_nodes", name=name))
    return list(nodes.values())


def read_pods(lines: Iterable[str], *, name: str, skips: Skips) -> list[Arrival]:
    return in_order(_pods(lines, name, skips), name=name, skips=skips, sort=True)


def _columns(head: str) -> set[str]:
    return {column.strip() for column in head.partition("\n")[0].split(",")}


def _node(row: Row, where: str) -> Node:
    name = entry(row, "sn")
    if not name:
        raise BadInput(say("sim.no_id", where=where, column="sn"))
    gpus = integer(row, "gpu", where, low=0, high=MAX_NODE_GPUS)
    return Node(
        site=SITE,
        node=name,
        gpu=entry(row, "model") or ("gpu" if gpus else "none"),
        gpus=gpus,
        microusd_per_gpu_hour=0,
        declared=True,
        cpu_milli=integer(row, "cpu_milli", where, low=0, high=MAX_MILLI),
        memory_mib=integer(row, "memory_mib", where, low=0, high=MAX_MILLI),
    )


def _pods(lines: Iterable[str], name: str, skips: Skips) -> Iterator[tuple[str, Arrival]]:
    for where, row in table(lines, name=name, needed=POD_COLUMNS, skips=skips):
        try:
            yield where, _pod(row, where)
        except BadInput as error:
            skips.note(error)


def _pod(row: Row, where: str) -> Arrival:
    name = entry(row, "name")
    if not name:
        raise BadInput(say("sim.no_id", where=where, column="name"))
    gpus = integer(row, "num_gpu", where, low=0, high=MAX_NODE_GPUS)
    milli = integer(row, "gpu_milli", where, low=1 if gpus else 0, high=WHOLE_GPU)
    if gpus > 1 and milli < WHOLE_GPU:
        raise BadInput(say("sim.shared_gpus", where=where, gpus=gpus, milli=milli))
    job = Job(
        job=name,
        gpus=gpus,
        gpu_milli=milli if gpus else WHOLE_GPU,
        gpu_types=tuple(dict.fromkeys(gpu for gpu in entry(row, "gpu_spec").split("|") if gpu)),
        cpu_milli=integer(row, "cpu_milli", where, low=0, high=MAX_MILLI),
        memory_mib=integer(row, "memory_mib", where, low=0, high=MAX_MILLI),
        priority={"LS": "urgent", "BE": "background"}.get(entry(row, "qos"), "normal"),
        checkpoint_interval_s=0,
        checkpoint_cost_s=RESTART_S,
    )
    if not entry(row, "creation_time"):
        return Arrival(at_s=0, job=job, work_s=0)
    created = number(row, "creation_time", where, low=0, high=MAX_S)
    # A pod that was never scheduled never ran; its row tells no work.
    begun = number(row, "scheduled_time", where, low=0, high=MAX_S) if entry(row, "scheduled_time") else None
    ended = number(row, "deletion_time", where, low=0, high=MAX_S) if entry(row, "deletion_time") else begun
    run_s = 0.0 if begun is None or ended is None else ended - begun
    if run_s < 0:
        raise BadInput(say("sim.deleted_before_scheduled", where=where, seconds=f"{-run_s:g}"))
    return Arrival(at_s=int(created), job=job, work_s=run_s)
