"""Memory that no tensor accounts for: workspaces, the allocator's cache, the CUDA context, other programs."""

from __future__ import annotations

from brimful.language import say
from brimful.specs.desktop import Others
from brimful.specs.estimate import Interval, Item
from brimful.specs.gpu import Gpu
from brimful.units import GIB, MIB

# What the caching allocator holds beyond the memory allocated and freed within a step: low, likely, high.
# Source: steady language-model loops report reserved/allocated of 1.0 to 1.1; a nanoGPT process on an RTX
# 4070 held about a fifth more than the tensors derived here. CUDA graphs or many shapes hold far more.
CACHE_FRAC = (0.01, 0.07, 0.20)
# Compiled code asks for fewer blocks: torchtitan's 8B run reserved 5.4 GiB less compiled than eager, with the
# same tensors kept and the same loss.
COMPILED_CACHE_FRAC = (0.01, 0.04, 0.20)
# The same for eager checkpointed runs, counting weights gathered from shards as moving too. Source: published
# FSDP and LoRA runs that reserved 0.34 to 0.44 of it beyond what is allocated, one small one 1.1
# (AnswerDotAI/fsdp_qlora benchmarks).
CHECKPOINTED_CACHE_FRAC = (0.05, 0.38, 0.60)
# The same for frozen models whose micro-steps differ in length: every size comes in hundreds of variants, a
# block freed by a short one is too small for a longer one, and PyTorch asks the driver for another. Source:
# traced LoRA steps of two Llama layouts with checkpointing, their sizes scaled to 600 to 1,000 drawn lengths
# and replayed through the allocator: lowest, middle and highest of ten (decision 57).
VARYING_CACHE_FRAC = (0.70, 2.40, 3.00)

NCCL_BYTES = 1.5 * GIB
EAGER_LOADING = 2.3  # the middle of the three published ratios, below
LEAST_CONTEXT_BYTES = 0.22 * GIB  # the lowest published value

_HOPPER_YEAR = 2022


def rounding_frac(block_bytes: int) -> float:
    """Share of memory lost to whole segments when blocks are small.

    The allocator rounds segments to 2 MiB and carves blocks below 10 MiB out of 20 MiB ones, so a block loses
    about one MiB on average: negligible for a large model, several per cent for a small one.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, kRoundLarge, kMinLargeAlloc, kLargeBuffer.
    """
    return min(0.08, MIB / block_bytes)


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
