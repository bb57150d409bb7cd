"""Inference: weights, KV cache and activations; how fast prompts are read and tokens are written.

Decoding reads every weight once per step, whatever the batch, and every sequence's cache once; reading a
prompt is compute. So

    decode step = max(weight bytes / bandwidth, FLOPs / rate) + cache bytes / bandwidth + launches
    prefill     = max(weight bytes / bandwidth, FLOPs / rate) + launches

The shares of bandwidth and rate below were chosen on the A100 rows of gpt-fast, torchao and TensorRT-LLM
alone; docs/explanation/inference.md has the errors on these and on every other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from brimful.fit.advice.advise import MAX_BATCH, largest_that
from brimful.fit.count import (
    expert_layers,
    expert_parameters,
    forward_flops_per_token,
    layers_matmul_parameters,
    matmul_parameters,
    output_parameters,
    parameters,
)
from brimful.fit.overhead import context_bytes, others_item, workspace_bytes
from brimful.fit.roofline import achievable_flops_per_s
from brimful.language import Number, Plain, say
from brimful.specs.desktop import Others, others_on
from brimful.specs.estimate import Interval, Item, Verdict, as_json, verdict_of
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.units import HOUR_S

# Share of the published bandwidth reached when reading weights of this many bits; unpacking few bits costs
# some.
WEIGHT_FRAC = {16: 0.80, 8: 0.66, 4: 0.52}
CACHE_FRAC = 0.80
MATMUL_FRAC = 0.85  # of the rate that a large matmul reaches
LAYER_S = (
    40e-6  # other costs per layer: norms, rotation, launching attention, sampling; CUDA graphs or compiled
)
SCALE_BITS = {16: 0.0, 8: 0.0, 4: 0.5}  # a 16-bit scale for each 32 weights
PREFILL_TOKENS = 8192  # most prompt tokens processed together; servers split longer ones
CACHE_SPARE_FRAC = 0.04  # of the KV cache: partly filled blocks
# How much slower or faster than likely: 38 of the 43 published rows are within this.
FASTER, SLOWER = 0.65, 1.5
MOST_SERVED = 256  # sequences at a time: few have more users waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a model is served: how many sequences at a time, each a prompt and an answer."""

    batch_size: int = 1
    prompt_tokens: int = 1024
    output_tokens: int = 256
    weight_bits: int = 16
    cache_bits: int = 16
    fp8: bool = False  # matmuls in fp8 too, not only the weights

    def __post_init__(self) -> None:
        assert min(self.batch_size, self.prompt_tokens, self.output_tokens) > 0
        assert self.weight_bits in WEIGHT_FRAC
        assert self.cache_bits in (16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEstimate:
    gpu: str
    usable_bytes: int
    device_bytes: Interval
    items: tuple[Item, ...]
    prefill_s: Interval  # of all prompts of the batch
    decode_step_s: Interval  # one token for every sequence, in the middle of the answer
    tokens_per_s: Interval  # written, over all sequences, including the time for prompts
    largest_batch: int | None  # at risk or not
    sure_batch: int | None
    others: Others  # included in the device bytes

    @property
    def fits(self) -> bool:
        return self.device_bytes.likely <= self.usable_bytes

    @property
    def short_bytes(self) -> int:
        """What is missing; negative if there is room left."""
        return round(self.device_bytes.likely) - self.usable_bytes

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.device_bytes, self.usable_bytes)

    def as_dict(self) -> dict[str, Any]:
        rates = ("prefill_s", "decode_step_s", "tokens_per_s")
        return {
            **as_json(self, "fits", "verdict", "gpu", "usable_bytes"),
            "other_programs": self.others.as_dict(),
            **as_json(self, "device_bytes", "items", *rates, "largest_batch", "sure_batch"),
        }


def filled(
    model: Model, serving: Serving, gpu: Gpu, other_bytes: int | None = None
) -> tuple[Serving, InferenceEstimate]:
    """With as many sequences at a time as the card holds; as requested if it does not hold one."""
    answer = infer(model, serving, gpu, other_bytes)
    if not answer.largest_batch:
        return serving, answer
    serving = replace(serving, batch_size=min(MOST_SERVED, answer.largest_batch))
    return serving, infer(model, serving, gpu, other_bytes)


def weight_bytes(model: Model, bits: int) -> int:
    """Linear layers in `bits`, with their scales; tables, norms and the output in 16."""
    linear = layers_matmul_parameters(model)
    rest = parameters(model) - linear
    return round(linear * (bits + SCALE_BITS[bits]) / 8 + 2 * rest)


def cache_bytes_per_token(model: Model, bits: int) -> int:
    """A key and a value of every layer. Source: Kwon et al., PagedAttention, arXiv:2309.06180, section 3."""
    return round(2 * model.layers * model.kv_width * bits / 8)


def infer(model: Model, serving: Serving, gpu: Gpu, other_bytes: int | None = None) -> InferenceEstimate:
    others = others_on(gpu, other_bytes)
    items = _items(model, serving, gpu, others)
    prefill, step = prefill_seconds(model, serving, gpu), decode_seconds(model, serving, gpu)
    whole = prefill + serving.output_tokens * step
    written = serving.batch_size * serving.output_tokens
    return InferenceEstimate(
        gpu=gpu.name,
        usable_bytes=gpu.memory_bytes,
        device_bytes=_device_bytes(items, gpu),
        items=tuple(item for item in items if item.bytes),
        prefill_s=_around(prefill),
        decode_step_s=_around(step),
        tokens_per_s=Interval(written / whole / SLOWER, written / whole, written / whole / FASTER),
        largest_batch=_largest_batch(model, serving, gpu, others, ("fits", "at_risk")),
        sure_batch=_largest_batch(model, serving, gpu, others, ("fits",)),
        others=others,
    )


def usd_per_million(tokens_per_s: float, microusd_per_gpu_hour: int, gpus: int = 1) -> float:
    """What a million tokens cost at this rate."""
    return microusd_per_gpu_hour * gpus / (tokens_per_s * HOUR_S)


def prefill_seconds(model: Model, serving: Serving, gpu: Gpu) -> float:
    """All prompts read. Attention is causal: half of the square."""
    tokens = serving.batch_size * serving.prompt_tokens
    flops = tokens * forward_flops_per_token(model, sequence_tokens=serving.prompt_tokens // 2)
    flops -= 2 * (tokens - serving.batch_size) * output_parameters(model)  # logits only for the last token
    passes = max(1, -(-tokens // PREFILL_TOKENS))
    return (
        max(passes * _weights_s(model, serving, gpu, tokens / passes), flops / matmul_rate(serving, gpu))
        + passes * LAYER_S * model.layers
    )


def decode_seconds(model: Model, serving: Serving, gpu: Gpu) -> float:
    """One token for every sequence, with half of the answer written."""
    context = serving.prompt_tokens + serving.output_tokens / 2
    flops = 2 * serving.batch_size * matmul_parameters(model)
    cache = serving.batch_size * context * cache_bytes_per_token(model, serving.cache_bits)
    multiply = max(_weights_s(model, serving, gpu, serving.batch_size), flops / matmul_rate(serving, gpu))
    return multiply + cache / (CACHE_FRAC * gpu.bandwidth_bytes_per_s) + LAYER_S * model.layers


def read_parameters(model: Model, tokens: float) -> float:
    """Weights of the layers that this many tokens together need: all, or the experts some token is sent to.

    Formula: of e experts, with k random ones per token, t tokens leave a share (1 - k/e)^t untouched.
    """
    whole, experts = layers_matmul_parameters(model), model.experts
    if experts is None:
        return whole
    untouched = float((1 - experts.chosen / experts.count) ** tokens)
    return whole - untouched * expert_layers(model) * expert_parameters(model)


def _weights_s(model: Model, serving: Serving, gpu: Gpu, tokens: float) -> float:
    bits = serving.weight_bits
    read = read_parameters(model, tokens) * (bits + SCALE_BITS[bits]) / 8
    read += 2 * output_parameters(model)
    return read / (WEIGHT_FRAC[bits] * gpu.bandwidth_bytes_per_s)


def matmul_rate(serving: Serving, gpu: Gpu) -> float:
    wanted = ("fp8", "bf16", "fp16", "fp32") if serving.fp8 else ("bf16", "fp16", "fp32")
    number = next(n for n in wanted if n in gpu.dense_flops_per_s)
    return MATMUL_FRAC * achievable_flops_per_s(gpu, number)


def _items(model: Model, serving: Serving, gpu: Gpu, others: Others) -> list[Item]:
    bits = serving.weight_bits
    tokens = serving.prompt_tokens + serving.output_tokens
    each = cache_bytes_per_token(model, serving.cache_bits)
    cache = round(serving.batch_size * tokens * each * (1 + CACHE_SPARE_FRAC))
    together = min(PREFILL_TOKENS, serving.batch_size * serving.prompt_tokens)
    inside = (2 if model.gated else 1) * model.mlp_width
    if (experts := model.experts) is not None:
        each_expert = (2 if model.gated else 1) * experts.width + 2 * model.width
        inside = max(inside, experts.chosen * each_expert + experts.shared_width)
    layer = 2 * together * (3 * model.width + model.query_width + 2 * model.kv_width + inside)
    logits = 4 * serving.batch_size * model.vocab
    held = say("fit.why_parameters_serving", billions=Number(parameters(model) / 1e9, 2), n=bits)
    kept = say("fit.why_kv_cache", sequences=Plain(serving.batch_size), tokens=Plain(tokens), size=each)
    return [
        Item("weights", weight_bytes(model, bits), held),
        Item("kv_cache", cache, kept),
        Item("activations", layer + logits, say("fit.why_serving_activations", n=together)),
        Item("workspaces", workspace_bytes(gpu), say("fit.why_workspaces")),
        Item("cuda_context", round(context_bytes(gpu).likely), say("fit.why_cuda_context")),
        others_item(others),
    ]


def _device_bytes(items: Sequence[Item], gpu: Gpu) -> Interval:
    likely, context = sum(item.bytes for item in items), context_bytes(gpu)
    loose = 0.15 * sum(item.bytes for item in items if item.code in ("kv_cache", "activations"))
    low, high = context.likely - context.low, context.high - context.likely
    return Interval(likely - loose - low, likely, likely + loose + high)


def _largest_batch(
    model: Model, serving: Serving, gpu: Gpu, others: Others, good: Sequence[Verdict]
) -> int | None:
    """With such a verdict: by bisection, since memory only grows with the batch."""

    def fits(batch: int) -> bool:
        items = _items(model, replace(serving, batch_size=batch), gpu, others)
        return verdict_of(_device_bytes(items, gpu), gpu.memory_bytes) in good

    return largest_that(range(1, MAX_BATCH), fits) if fits(1) else None


def _around(seconds: float) -> Interval:
    return Interval(seconds * FASTER, seconds, seconds * SLOWER)
