"""Memory that no tensor accounts for: workspaces, the CUDA context, other programs."""

from __future__ import annotations

from brimful.language import say
from brimful.specs.desktop import Others
from brimful.specs.estimate import Interval, Item
from brimful.specs.gpu import Gpu
from brimful.units import GIB, MIB

NCCL_BYTES = 1.5 * GIB
EAGER_LOADING = 2.3  # the middle of the three published ratios, below
LEAST_CONTEXT_BYTES = 0.22 * GIB  # the lowest published value

_HOPPER_YEAR = 2022


def workspace_bytes(gpu: Gpu) -> int:
    """cuBLAS workspaces, which PyTorch takes from its own allocator.

    Formula: 8.125 MiB per handle, 32 MiB from Hopper on; two handles, since autograd's thread has its own.
    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, default of CUBLAS_WORKSPACE_CONFIG.
    """
    large = gpu.year >= _HOPPER_YEAR and gpu.architecture not in ("Ada", "Ampere")
    return round(2 * (32 if large else 8.125) * MIB)


def context_bytes(gpu: Gpu, *, gpus: int = 1, lazy: bool = True) -> Interval:
    """The CUDA context with PyTorch's kernels, outside PyTorch's counters.

    Formula: 0.08 GiB + 3.6 MiB per multiprocessor; with eager kernel loading, as in PyTorch before it
    requested lazy loading, 2 to 4 times that.
    Source: a line through 0.22-0.26 GiB (RTX 4070, 46 processors) and 0.47 GiB (A100, 108, torch 2.1, lazy
    loading), where eager loading took 0.92 GiB; 2.3 times as much in PyTorch's own comparison (pull request
    86509); 1343 MiB on a V100 in 2022, 3.6 times the line, before lazy loading.
    Several GPUs: NCCL takes up to about 1.5 GiB more at its first barrier; how much depends on topology, so
    only the upper end includes it. AMD cards are extrapolated, not measured.
    """
    likely = max(LEAST_CONTEXT_BYTES, 0.08 * GIB + 3.6 * MIB * gpu.processors)
    nccl = NCCL_BYTES if gpus > 1 else 0
    if not lazy:
        return Interval(2 * likely, EAGER_LOADING * likely, 4 * likely + nccl)
    return Interval(0.85 * likely, likely, 2 * likely + nccl)


def others_item(others: Others) -> Item:
    """Memory held by other programs, as a part of the card's total."""
    assumed = others.basis == "assumed"
    why = say("fit.why_others_assumed") if assumed else say("fit.why_others_given")
    return Item("other_programs", others.bytes, why)
