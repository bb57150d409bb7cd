"""Which attention kernel a GPU would run: the choice that a PyTorch build without CUDA cannot make.

On such a build `scaled_dot_product_attention` always falls back to the plain formula, which materialises the
whole score matrix. The rules here are PyTorch's own for the target card; the chosen kernel is then called by
name, so its outputs and what it keeps for the backward pass are the real ones.

Source: PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and transformers/attention.cpp.
Leaves out: cuDNN's kernel, first choice on Hopper with a new cuDNN (the same tensors as flash attention);
nested tensors; the split of long keys over blocks at inference with a small batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from brimful.tracing.cuda_device import CudaDevice

FLASH, EFFICIENT, MATH = "flash", "efficient", "math"
_HALF = (torch.float16, torch.bfloat16)
_LARGEST_FLASH_HEAD = 256


def choose_kernel(
    card: CudaDevice,
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    grouped: bool = True,
) -> str:
    """flash, efficient or math, in PyTorch's order. Tensors have batch, heads, tokens, width.

    `grouped` says that fewer keys than queries were declared (`enable_gqa`); otherwise only math broadcasts
    them.
    """
    tensors = (query, key, value)
    if not grouped and len({tensor.shape[1] for tensor in tensors if tensor.dim() == 4}) > 1:
        return MATH
    if any(tensor.dim() != 4 or tensor.stride(-1) != 1 or 0 in tensor.shape for tensor in tensors):
        return MATH
    if len({tensor.dtype for tensor in tensors}) > 1:
        return MATH
    if torch._C._get_flash_sdp_enabled() and _flash_can(
        card, query, key, value, mask=mask, dropout=dropout, causal=causal
    ):
        return FLASH
    if torch._C._get_mem_efficient_sdp_enabled() and _efficient_can(card, query, key, value, mask=mask):
        return EFFICIENT
    return MATH


def _flash_can(
    card: CudaDevice,
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any,
    dropout: float,
    causal: bool,
) -> bool:
    width = query.shape[-1]
    if card.gpu.vendor == "NVIDIA" and card.capability < (8, 0):
        return False
    if mask is not None or query.dtype not in _HALF or width > _LARGEST_FLASH_HEAD:
        return False
    if not width == key.shape[-1] == value.shape[-1]:
        return False
    if causal and query.shape[-2] != key.shape[-2]:
        return False
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        return False
    # Chips with little shared memory lack the backward kernels of wide heads.
    wide = 192 < width <= 224 or (width > 224 and dropout > 0)
    return not (_needs_grad(query, key, value) and wide and card.capability in ((8, 6), (8, 9), (12, 0)))


def _needs_grad(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _efficient_can(card: CudaDevice, query: Any, key: Any, value: Any, *, mask: Any) -> bool:
    dtypes = [torch.float16, torch.float32] + ([torch.bfloat16] if card.capability >= (8, 0) else [])
    if query.dtype not in dtypes or not query.shape[1] == key.shape[1] == value.shape[1]:
        return False
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        return False
    alignment = _gemm_alignment(card, query.element_size())
    if query.shape[-1] % alignment or value.shape[-1] % alignment:
        return False
    return mask is None or not mask.requires_grad


def _gemm_alignment(card: CudaDevice, element_bytes: int) -> int:
    """The multiple that a row's length must be: 16 bytes for tensor cores, which support fp32 from Ampere on.

    Source: PyTorch, sdp_utils.cpp, minimum_gemm_alignment and use_tensor_cores.
    """
    tensor_cores = card.capability >= (8, 0) or (card.capability >= (7, 0) and element_bytes == 2)
    return 16 // element_bytes if tensor_cores else 1


def replacement(card: CudaDevice, original: Callable[..., Any], rules: Counter[str]) -> Callable[..., Any]:
    """`scaled_dot_product_attention` as the card would run it; `rules` counts the choices."""

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        def plain() -> Any:
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

        if query.device.type != "cuda":
            return plain()
        q, k, v, mask = _autocast(query, key, value, attn_mask)
        kernel = choose_kernel(
            card, q, k, v, mask=mask, dropout=dropout_p, causal=is_causal, grouped=enable_gqa
        )
        rules[f"attention kernel: {kernel}"] += 1
        if kernel == FLASH:
            return _flash(q, k, v, dropout=dropout_p, causal=is_causal, scale=scale)
        if kernel == EFFICIENT:
            return _efficient(q, k, v, mask, dropout=dropout_p, causal=is_causal, scale=scale)
        return plain()

    return scaled_dot_product_attention


def _autocast(*tensors: Any) -> list[Any]:
    """Attention is on autocast's list of half-precision ops; calling a kernel by name would bypass it."""
    if not torch.is_autocast_enabled("cuda"):
        return list(tensors)
    dtype = torch.get_autocast_dtype("cuda")
    cast = (torch.float16, torch.bfloat16, torch.float32)
    return [t.to(dtype) if t is not None and t.dtype in cast else t for t in tensors]


def _flash(q: Any, k: Any, v: Any, *, dropout: float, causal: bool, scale: float | None) -> Any:
    width = q.shape[-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    spare = -width % 8  # the kernel requires widths in multiples of eight
    if spare:
        q, k, v = (torch.nn.functional.pad(tensor, (0, spare)) for tensor in (q, k, v))
    with torch.autocast("cuda", enabled=False):
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, dropout, causal, False, scale=scale
        )[0]
    return out[..., :width] if spare else out


def _efficient(
    q: Any, k: Any, v: Any, mask: Any, *, dropout: float, causal: bool, scale: float | None
) -> Any:
    bias = mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(bias.logical_not(), -math.inf)
        spare = -bias.shape[-1] % 8  # rows of the bias begin on 16 bytes
        if spare:
            bias = torch.nn.functional.pad(bias, (0, spare))[..., : mask.shape[-1]]
        bias = bias.expand(q.shape[0], q.shape[1], q.shape[-2], k.shape[-2])
    with torch.autocast("cuda", enabled=False):
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, _needs_grad(q, k, v), dropout, causal, scale=scale
        )[0]
