"""Alibaba's GPU cluster trace of 2023 (openb), in the files as published: a node list and pod lists.

Nodes: sn, cpu_milli, memory_mib, gpu, model. Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli and, in
most lists, gpu_spec (allowed models separated by |), qos, creation_time, deletion_time, scheduled_time in
seconds. Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023.

A pod runs from scheduled_time to deletion_time. Lists without times (multigpu*) have none: every pod then
arrives at 0 and has no work, which is all that a fill needs.
"""

from __future__ import annotations

from brimful.errors import BadInput
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.node import Node
from brimful.language import Quoted, say
from brimful.sim.traces.reading import MAX_S, Row, Source, Trace, saving_job
from brimful.sim.world import SITE, Arrival

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_MILLI = 10**9
MAX_NODE_GPUS = 1024


def read_nodes(source: Source) -> Trace:
    """The nodes with GPUs, and those without."""
    skips, nodes = source.skips, dict[str, Node]()
    for row, node in source.usable(source.table(NODE_COLUMNS), _node):
        if nodes.setdefault(node.node, node) is not node:
            skips.note(row.refused("sim.duplicate_node", node=Quoted(node.node)))
    if not nodes:
        raise BadInput(say("sim.no_nodes", name=source.name))
    skips.gpu_types = skips.gpu_types or frozenset(node.gpu for node in nodes.values() if node.gpus)
    return Trace(format="openb", nodes=list(nodes.values()))


def read_pods(source: Source) -> Trace:
    found = source.usable(source.table(POD_COLUMNS), _pod)
    arrivals = source.in_order(found, sort=True)
    return Trace(format="openb", arrivals=arrivals, gangs_may_spread=True)


def _node(row: Row) -> Node:
    name, gpus = row.name("sn"), row.integer("gpu", low=0, high=MAX_NODE_GPUS)
    return Node(
        site=SITE,
        node=name,
        gpu=row["model"] or ("gpu" if gpus else "none"),
        gpus=gpus,
        microusd_per_gpu_hour=0,
        declared=True,
        cpu_milli=row.integer("cpu_milli", low=0, high=MAX_MILLI),
        memory_mib=row.integer("memory_mib", low=0, high=MAX_MILLI),
    )


def _pod(row: Row) -> Arrival:
    name, gpus = row.name("name"), row.integer("num_gpu", low=0, high=MAX_NODE_GPUS)
    milli = row.integer("gpu_milli", low=1 if gpus else 0, high=WHOLE_GPU)
    if gpus > 1 and milli < WHOLE_GPU:
        raise row.refused("sim.shared_gpus", gpus=gpus, milli=milli)
    job = saving_job(
        job=name,
        gpus=gpus,
        gpu_milli=milli if gpus else WHOLE_GPU,
        gpu_types=tuple(dict.fromkeys(gpu for gpu in row["gpu_spec"].split("|") if gpu)),
        cpu_milli=row.integer("cpu_milli", low=0, high=MAX_MILLI),
        memory_mib=row.integer("memory_mib", low=0, high=MAX_MILLI),
        priority={"LS": "urgent", "BE": "background"}.get(row["qos"], "normal"),
    )
    if not row["creation_time"]:
        return Arrival(at_s=0, job=job, work_s=0)
    created = row.number("creation_time", low=0, high=MAX_S)
    # A pod that was never scheduled never ran; its row has no work.
    begun = row.number("scheduled_time", low=0, high=MAX_S) if row["scheduled_time"] else None
    ended = row.number("deletion_time", low=0, high=MAX_S) if row["deletion_time"] else begun
    run_s = 0.0 if begun is None or ended is None else ended - begun
    if run_s < 0:
        raise row.refused("sim.deleted_before_scheduled", seconds=f"{-run_s:g}")
    return Arrival(at_s=int(created), job=job, work_s=run_s)
