"""What PyTorch asks a card for that the catalog does not have: compute capability, threads, workspaces.

Everything here follows from the architecture and decides which kernels run and what they allocate themselves.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from brimful.specs.gpu import Gpu
from brimful.units import KIB, MIB

# Architecture -> compute capability, of the data-centre chip and of the others if they differ.
# Source: NVIDIA, CUDA GPUs (developer.nvidia.com/cuda-gpus).
_CAPABILITY = {
    "Kepler": ((3, 7), (3, 7)),
    "Pascal": ((6, 0), (6, 1)),
    "Volta": ((7, 0), (7, 0)),
    "Turing": ((7, 5), (7, 5)),
    "Ampere": ((8, 0), (8, 6)),
    "Ada": ((8, 9), (8, 9)),
    "Hopper": ((9, 0), (9, 0)),
    "Blackwell": ((10, 0), (12, 0)),
}
_DATA_CENTRE = re.compile(r"\b(?:A100|A30|A800|P100|B100|B200|B300|GB200|GB300)\b")
# Maximum threads per multiprocessor. Source: CUDA C++ Programming Guide, table of compute capabilities.
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
_OTHER_THREADS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """One GPU as PyTorch's kernels see it."""

    gpu: Gpu
    capability: tuple[int, int]
    threads_per_processor: int
    blas_workspace_bytes: int


def cuda_device(gpu: Gpu) -> CudaDevice:
    big, other = _CAPABILITY.get(gpu.architecture, ((9, 0), (9, 0)))
    capability = big if _DATA_CENTRE.search(gpu.title) else other
    return CudaDevice(
        gpu=gpu,
        capability=capability,
        threads_per_processor=_THREADS.get(capability, _OTHER_THREADS),
        blas_workspace_bytes=blas_workspace_bytes(capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")),
    )


def blas_workspace_bytes(capability: tuple[int, int], config: str = "") -> int:
    """What PyTorch takes from its own allocator for each cuBLAS handle and stream.

    Formula: `:KiB:count` pairs of CUBLAS_WORKSPACE_CONFIG; by default :4096:2:16:8, on Hopper and data-centre
    Blackwell eight times 4 MiB.
    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; recordings show
    8,519,680 B and 33,554,432 B.
    """
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", config)
    if pairs:
        return sum(int(size) * KIB * int(count) for size, count in pairs)
    if capability[0] in (9, 10):
        return 32 * MIB
    return (2 * 4096 + 8 * 16) * KIB
