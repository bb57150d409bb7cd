"""NVIDIA MPS limits a tenant of a shared GPU to its share of compute and memory. Not yet tested on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.memory import peak_on
from brimful.fleet.state import Node
from brimful.scheduler.ports import Start


def mps_env(start: Start, nodes: Sequence[Node]) -> dict[str, str]:
    """Without the MPS daemon these have no effect, and the two share the GPU by the driver's time slices."""
    job = start.job
    if not start.may_share:
        return {}
    found = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(-(-job.compute_milli * 100 // WHOLE_GPU))}
    gpu = next((node.gpu for node in nodes if node.node == start.parts[0][0]), "")
    peak = peak_on(job, gpu)
    if peak is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-peak >> 20)}M"
    return found
