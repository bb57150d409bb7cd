"""Memory that CUDA kernels take for themselves: no op returns it, so no fake run shows it.

`buffers_of` gives what an op allocates after its outputs and frees before it returns, in order. Each rule
states its source; rules seen in recordings of real GPUs say so.
Leaves out: cuDNN's and cuSOLVER's workspaces, chosen at run time by trying kernels; NCCL's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from brimful.tracing.cuda_device import CudaDevice


class Buffer(NamedTuple):
    rule: str
    bytes: int
    brief: bool = False  # freed as soon as the next one is allocated, not when the kernel returns


Args = Sequence[Any]
# Ops that end in cuBLAS: the first in each thread allocates the workspace.
GEMMS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "_addmm_activation", "_scaled_mm"}
)


def buffers_of(card: CudaDevice, name: str, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """What the op `name` allocates internally, besides its outputs."""
    rule = _RULES.get(name)
    return rule(card, args, results) if rule is not None else []


# ---- matrix multiplies


def _matmul_copies(_: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """An operand whose layout cuBLAS cannot read is copied first (seen: the expanded gradient of a sum).

    Source: PyTorch, aten/src/ATen/native/cuda/Blas.cpp, prepare_batch_matrix_for_cublas and
    prepare_matrix_for_cublas: one of the last two strides is 1, the other at least the length of that row.
    """
    operands = [t for t in args if isinstance(t, torch.Tensor)][-2:]
    return [
        Buffer("matmul operand copied", t.numel() * t.element_size())
        for t in operands
        if t.dim() >= 2 and not _readable(t)
    ]


def _readable(matrix: Any) -> bool:
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    if (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows)):
        return True
    return bool(matrix.is_contiguous()) and down != 0 and across != 0


# ---- reductions

_LEAST_VALUES, _MOST_VALUES = 16, 256  # per thread
_MOST_THREADS = 512
_WARP = 32
_VECTOR = 4


def _reduction(card: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """Few outputs of many inputs: blocks of threads sum parts into a buffer and synchronise by semaphores.

    Source: PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and gpu_reduce_kernel.
    Seen: 256 B and 4 B for a full sum, 8 MiB and 32 B for the gradient of a norm's weight.
    """
    tensor = next((t for t in args if isinstance(t, torch.Tensor)), None)
    if tensor is None or not results or tensor.numel() == 0 or results[0].numel() == 0:
        return []
    outputs = results[0].numel()
    split = split_reduction(
        card,
        _reduced_layout(tensor, args),
        outputs=outputs,
        inputs=tensor.numel() // outputs,
        element_bytes=_accumulator_bytes(tensor, results),
    )
    if split is None:
        return []
    staging, semaphores = split
    return [Buffer("split reduction", staging), Buffer("split reduction", semaphores)]


class Layout(NamedTuple):
    """An input as the reduction walks it: fastest strides (in elements) and whether one dimension is all."""

    reduced_stride: int  # of the fastest reduced dimension
    kept_stride: int | None  # of the fastest kept dimension; None if all are reduced
    kept_size: int
    dims: int  # after joining neighbouring dimensions


def split_reduction(
    card: CudaDevice, layout: Layout, *, outputs: int, inputs: int, element_bytes: int
) -> tuple[int, int] | None:
    """Bytes of the staging buffer and of the semaphores; None if each output is summed by one block."""
    along_input = layout.kept_stride is None or layout.reduced_stride < layout.kept_stride
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    vector = 1
    if along_input and layout.reduced_stride == 1 and width > 128 and layout.dims == 1:
        width //= _VECTOR
    elif not along_input and layout.kept_stride == 1:
        vector = next(v for v in (4, 2, 1) if layout.kept_size % v == 0)
        width //= vector
    most = _MOST_THREADS // vector
    wide, high = min(_floor_power(width), most), min(_floor_power(height), most)
    block_width = min(wide, _WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_input = block_width if along_input else 1
    step_output = 1 if along_input else block_width
    values = _up(inputs, step_input)
    if values < min(block_height * 16, _MOST_VALUES):
        return None
    step_input *= block_height
    values = _up(inputs, step_input)
    grid = _up(outputs // vector, step_output)
    target = card.gpu.processors * (card.threads_per_processor // (block_width * block_height))
    if values < _MOST_VALUES or grid > target:
        return None
    blocks = max(min(_up(target, grid), _up(values, _LEAST_VALUES)), _up(values, _MOST_VALUES))
    if blocks <= 1:
        return None
    staging = element_bytes * outputs * blocks * (1 if along_input else block_width * vector)
    return staging, 4 * grid


def _reduced_layout(tensor: Any, args: Args) -> Layout:
    """Dimensions as TensorIterator orders them: reduced first, each group by stride; neighbours joined."""
    named = next((a for a in args[1:] if isinstance(a, (list, tuple, int)) and not isinstance(a, bool)), ())
    wanted_dims = [named] if isinstance(named, int) else list(named)
    count = tensor.dim()
    dims = {d % count for d in (wanted_dims or range(count))} if count else set()
    groups = []
    for wanted in (True, False):
        chosen = [(tensor.stride(d), tensor.shape[d]) for d in range(count) if (d in dims) is wanted]
        groups.append(_joined(sorted(pair for pair in chosen if pair[1] != 1)))
    reduced, kept = groups
    stride = reduced[0][0] if reduced else 1
    return Layout(stride, kept[0][0] if kept else None, kept[0][1] if kept else 1, len(reduced) + len(kept))


def _joined(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for stride, size in pairs:
        if out and out[-1][0] * out[-1][1] == stride:
            out[-1] = (out[-1][0], out[-1][1] * size)
        else:
            out.append((stride, size))
    return out


def _accumulator_bytes(tensor: Any, results: Sequence[Any]) -> int:
    """The size of one partial result: sums in fp32 or wider, extremes with their index."""
    value = max(4, tensor.element_size()) if tensor.is_floating_point() else 8
    return 16 if len(results) == 2 else value


def _floor_power(n: int) -> int:
    return 1 << (max(1, n).bit_length() - 1)


def _up(n: int, by: int) -> int:
    return -(-n // by)


# ---- attention


def _flash_backward(_: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """Sums for the query's gradient in fp32, row sums, and grouped keys expanded for every head.

    Source: FlashAttention-2 as shipped with PyTorch, flash_api.cpp, mha_bwd.
    """
    query, key = args[1], args[2]
    batch, heads, tokens, width = query.shape
    rows = _up(tokens, 128) * 128
    rounded = _up(width, 32) * 32 if width <= 192 else 256
    out = [
        Buffer("flash backward", 4 * batch * heads * rows),
        Buffer("flash backward", 4 * batch * heads * rows * rounded),
    ]
    if key.shape[1] != heads:
        expanded = batch * key.shape[2] * heads * width * key.element_size()
        out += [Buffer("flash backward", expanded), Buffer("flash backward", expanded)]
    return out


def _efficient_backward(_: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """Row sums in fp32. Source: PyTorch, transformers/cuda/attention_backward.cu, `delta`."""
    batch, heads, tokens, _width = args[1].shape
    return [Buffer("efficient backward", 4 * batch * heads * _up(tokens, 32) * 32)]


# ---- indexing


_SORT_TILE = 3072  # items a block sorts at once: recordings of 512 and 4,096 indices leave 2,048 to 4,095
_NARROW_SORT = 2048  # up to about here one block sorts everything, without extra memory


def _sort_bytes(count: int, largest: int) -> int:
    """Scratch of a radix sort of 8-byte keys with 8-byte values: both again, and counters per 8-bit pass.

    Source: CUB, DeviceRadixSort (onesweep). Seen: 1 B for 512 indices, 72,191 B for 4,096 below 10,000.
    """
    if count <= _NARROW_SORT:
        return 1
    passes = _up(max(1, largest).bit_length(), 8)
    return 16 * count + 2048 * passes + 1024 * _up(count, _SORT_TILE) + 511


def _index_put(_: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """Adding at indices sorts them first, so that equal ones are adjacent: five times 8 B each, and scratch.

    Source: PyTorch, aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel; seen in recordings.
    """
    accumulate = len(args) > 3 and args[3]
    indices = [t for t in args[1] if isinstance(t, torch.Tensor) and t.dtype == torch.int64]
    if not accumulate or not indices:
        return []
    count = math.prod(torch.broadcast_shapes(*(t.shape for t in indices)))
    rule, largest = "index_put sorts", args[0].shape[0] * (1 if len(indices) == 1 else args[0].shape[1])
    more = [Buffer(rule, 8 * count, brief=True)] if len(indices) > 1 else []
    kept = [Buffer(rule, 8 * count) for _ in range(4)]
    return [*more, Buffer(rule, 8 * count, brief=True), *kept, Buffer(rule, _sort_bytes(count, largest))]


_ROWS_A_THREAD = 10


def _embedding_backward(_: CudaDevice, args: Args, results: Sequence[Any]) -> list[Buffer]:
    """Many indices are sorted; rows of the gradient are then added in parts, which are kept in fp32.

    Source: PyTorch, aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu: up to 3,072
    indices are added without sorting. From source, not seen.
    """
    gradient, indices, rows = args[0], args[1], args[2]
    count = indices.numel()
    if count <= 3072:
        return []
    segments = min(count, rows)
    parts = count // _ROWS_A_THREAD + segments
    sizes = [
        8 * count,
        8 * count,
        8 * count,
        8 * segments,
        8 * segments,
        8 * parts,
        4 * parts * gradient.shape[-1],
    ]
    sort = Buffer("embedding backward", _sort_bytes(count, rows), brief=True)
    return [sort, *(Buffer("embedding backward", size) for size in sizes)]


_REDUCTIONS = (
    "sum", "mean", "max", "min", "amax", "amin", "any", "all", "prod", "norm", "linalg_vector_norm", "argmax",
    "argmin", "nansum", "logsumexp",
)  # fmt: skip
_RULES: dict[str, Callable[[CudaDevice, Args, Sequence[Any]], list[Buffer]]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _matmul_copies),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(
        ("index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index_put"), _index_put
    ),
}
