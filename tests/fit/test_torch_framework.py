"""Why frameworks differ, shown on PyTorch itself: each fact of frameworks.toml that a formula builds on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.fit.activations import layer_bytes
from brimful.fit.states import cast_bytes, waiting_bytes
from brimful.specs.framework import PLAIN, find_framework
from tests.fit.builders import a_model, a_training
from tests.fit.test_torch_live import live_bytes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy"),
]

BATCH, TOKENS, HEADS, SIZE = 2, 64, 8, 16
WIDTH = HEADS * SIZE
NUMBER = 4  # bytes, as all of this runs in fp32


def kept_bytes(run: Callable[[], Any], *before: Any) -> int:
    """What autograd holds after `run`, each buffer once, without those of `before`."""
    import torch

    old = {tensor.untyped_storage().data_ptr() for tensor in before}
    found: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in old:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    assert result.requires_grad
    return sum(found.values())


def turned(y: Any, cos: Any) -> Any:
    import torch

    half = SIZE // 2
    return y * cos + torch.cat((-y[..., half:], y[..., :half]), dim=-1) * cos


def attention(kv_heads: int, *, fused: bool, repeats: bool) -> int:
    """Bytes kept by rotary attention behind one matrix for q, k and v, or behind three."""
    import torch
    from torch.nn import functional

    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    cos = torch.randn(TOKENS, SIZE)
    sizes = [WIDTH, kv_heads * SIZE, kv_heads * SIZE]
    weights = [torch.randn(size, WIDTH) for size in ([sum(sizes)] if fused else sizes)]  # frozen

    def run() -> Any:
        made = [functional.linear(x, weight) for weight in weights]
        parts = made[0].split(sizes, dim=-1) if fused else made
        q, k, v = (part.view(BATCH, TOKENS, -1, SIZE).transpose(1, 2) for part in parts)
        q, k = turned(q, cos), turned(k, cos)
        if repeats:
            k, v = (y.repeat_interleave(HEADS // kv_heads, dim=1) for y in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeats)

    return kept_bytes(run, x, cos, *weights)


def ours(kv_heads: int, **facts: Any) -> int:
    model = a_model(
        width=WIDTH, heads=HEADS, kv_heads=kv_heads, rotary=True, gated=True, norm="rms", positions=0
    )
    training = a_training(
        batch_size=BATCH, sequence_tokens=TOKENS, dtype="float32", casts="none", compiled=False,
        tuning="adapter", framework=replace(PLAIN, **facts),
    )  # fmt: skip
    return layer_bytes(model, training)["activations_attention"]


@pytest.mark.parametrize("fused", [True, False])
def test_values_of_a_fused_matrix_hold_on_to_the_buffer_of_all_three(fused: bool) -> None:
    assert attention(HEADS, fused=fused, repeats=False) == ours(HEADS, fused_qkv=fused)


def test_keys_written_out_for_every_head_are_kept_that_wide() -> None:
    kept = attention(2, fused=False, repeats=True)

    assert kept == ours(2, fused_qkv=False, repeats_keys=True)
    assert kept > ours(2, fused_qkv=False)


def test_lora_copied_into_a_padded_buffer_is_kept() -> None:
    import torch

    x = torch.randn(BATCH, TOKENS, 2 * WIDTH, requires_grad=True)
    places = torch.arange(2 * WIDTH)

    def run() -> Any:
        lora = x * 2  # what the adapter made
        return lora.new_zeros(BATCH, TOKENS, 3 * WIDTH).index_copy_(-1, places, lora)

    assert kept_bytes(run, x, places) == NUMBER * BATCH * TOKENS * 2 * WIDTH


def test_an_input_hung_on_the_graph_outlives_the_backward_pass_with_the_output() -> None:
    """bitsandbytes' 4-bit layers up to 0.43: `ctx.tensors = (A, B)` instead of `save_for_backward`."""
    import weakref

    import torch

    class Frozen(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.tensors = (a,)
            return a * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    x = torch.randn(8, requires_grad=True)
    inner = x * 3
    gone = weakref.ref(inner.untyped_storage())
    logits = Frozen.apply(inner)
    del inner
    logits.sum().backward()

    assert gone() is not None  # the loop still has its logits
    del logits
    assert gone() is None


@pytest.mark.parametrize("trained", [True, False])
def test_autocast_holds_casts_of_trained_weights_until_its_context_ends_though_checkpointed(
    trained: bool,
) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    layers, width = 4, 64
    matrices = [torch.randn(width, width, requires_grad=trained) for _ in range(layers)]
    live = live_bytes()
    with live:
        with torch.autocast("cpu", torch.bfloat16):
            x: Any = torch.randn(8, width)
            for matrix in matrices:
                x = checkpoint(torch.nn.functional.linear, x, matrix, use_reentrant=False)
            inside = live.now_bytes
        after = live.now_bytes
    model = a_model(layers=1, width=64, heads=1, mlp_width=4 * 64, vocab=100)
    training = a_training(checkpointing="full", compiled=False, tuning="full" if trained else "lora")
    output = 100 * width  # outside the checkpoints, and kept for its backward pass

    assert inside - after == (2 * layers * width * width if trained else 0)
    held = 12 * width * width if trained else 0
    assert cast_bytes(model, training, at="forward") == 2 * (held + output)
    assert cast_bytes(replace(model, layers=12), training, at="loss") == 2 * output


def test_the_gradient_of_a_flat_parameter_covers_its_frozen_parts() -> None:
    """Why LoRA under FSDP's no_sync waits with as many gradients as the whole model has weights."""
    import torch

    flat = torch.randn(100, requires_grad=True)
    adapter, frozen = flat.split((10, 90))
    (adapter.sum() * frozen.detach().sum()).backward()
    model = a_model()
    lora = a_training(
        tuning="lora", casts="none", gpus=4, shards=4, sharding="zero3", framework=find_framework("litgpt")
    )

    assert flat.grad is not None
    assert flat.grad.numel() == flat.numel()
    assert waiting_bytes(model, lora) > 100 * waiting_bytes(model, replace(lora, framework=PLAIN))
    assert waiting_bytes(model, replace(lora, accumulation=1)) == 0
