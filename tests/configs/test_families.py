"""Parameter counts of every family: against the published totals, and against PyTorch's own modules."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.fit.count import active_parameters, parameters
from brimful.specs.model import Model
from brimful.specs.presets import FAMILIES, Preset, all_presets, family_model

PUBLISHED = [preset for preset in all_presets() if preset.parameters is not None]


@pytest.mark.parametrize("preset", PUBLISHED, ids=lambda preset: preset.model.name)
def test_a_published_model_has_the_parameters_it_was_published_with(preset: Preset) -> None:
    assert parameters(preset.model) == preset.parameters


def test_nearly_every_model_has_a_published_total_to_be_held_to() -> None:
    assert len(PUBLISHED) > 0.85 * len(all_presets())


def test_the_well_known_totals_are_the_well_known_ones() -> None:
    known = {
        "gpt2": 124_439_808,
        "llama-2-7b": 6_738_415_616,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.2-3b": 3_212_749_824,
        "mistral-7b": 7_241_732_096,
        "gemma-2b": 2_506_172_416,
        "qwen2.5-7b": 7_615_616_512,
    }

    assert {p.model.name: p.parameters for p in PUBLISHED if p.model.name in known} == known


def test_the_experts_a_token_meets_are_as_many_as_published() -> None:
    active = {p.model.name: active_parameters(p.model) for p in PUBLISHED if p.model.experts is not None}

    # "12.9B parameters per token" (arXiv:2401.04088); "39B active" (mistral.ai); names of Qwen's checkpoints
    assert active["mixtral-8x7b"] == pytest.approx(12.9e9, rel=0.005)
    assert active["mixtral-8x22b"] == pytest.approx(39e9, rel=0.005)
    assert active["qwen1.5-moe-a2.7b"] == pytest.approx(2.7e9, rel=0.01)
    assert active["qwen3-30b-a3b"] == pytest.approx(3.3e9, rel=0.02)
    assert active["qwen3-235b-a22b"] == pytest.approx(22e9, rel=0.01)
    assert active["deepseek-moe-16b"] == pytest.approx(2.8e9, rel=0.02)


def torch_parameters(family: str, model: Model) -> int:
    """The modules of huggingface/transformers' modeling file for this family, on the meta device, counted."""
    from torch import nn

    q, kv, d = model.query_width, model.kv_width, model.width
    # Where Hugging Face writes bias=True or False by hand, so do we: Model is what is being tested.
    linear_bias = family in ("gpt2", "gpt_neo", "gpt_neox", "opt", "phi", "bert")
    qkv_bias = (linear_bias and family != "gpt_neo") or family == "qwen2"
    norms = {"phi": 1, "falcon": 1, "gemma2": 4, "gemma3_text": 4}.get(family, 2)

    def norm(width: int = d) -> Any:
        if family == "nanochat":
            return nn.RMSNorm(width, elementwise_affine=False)
        if family in ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"):
            return nn.RMSNorm(width)
        return nn.LayerNorm(width, bias=family != "mpt")

    def layer() -> list[Any]:
        attention = [nn.Linear(d, q, bias=qkv_bias), nn.Linear(d, kv, bias=qkv_bias)]
        attention += [nn.Linear(d, kv, bias=qkv_bias), nn.Linear(q, d, bias=linear_bias)]
        ups = 2 if family in ("llama", "mistral", "phi3", "qwen2", "qwen3") or "gemma" in family else 1
        mlp = [nn.Linear(d, model.mlp_width, bias=linear_bias) for _ in range(ups)]
        mlp.append(nn.Linear(model.mlp_width, d, bias=linear_bias))
        heads = [norm(model.head_width) for _ in range(2)] if family in ("qwen3", "gemma3_text") else []
        return [*attention, *mlp, *heads, *(norm() for _ in range(norms))]

    parts = [part for _ in range(model.layers) for part in layer()]
    parts.append(nn.Embedding(model.vocab, d))
    if family in ("gpt2", "gpt_neo", "opt", "bert"):
        parts.append(nn.Embedding(CONTEXT + (2 if family == "opt" else 0), d))
    if family == "bert":
        # segments, embedding norm, and the masked-language head, whose matrix is the token table
        parts += [nn.Embedding(2, d), norm(), nn.Linear(d, d), norm()]
        return _count(parts) + model.vocab
    parts.append(norm())
    if family in ("gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3", "phi", "nanochat"):
        parts.append(nn.Linear(d, model.vocab, bias=family == "phi"))
    return _count(parts)


def _count(parts: list[Any]) -> int:
    return sum(weight.numel() for part in parts for weight in part.parameters())


CONTEXT = 96
# Held to transformers' own modules in traced/test_parts_live.py; DeepSeek's to its published total.
LIVE = {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek", "vit", "dinov2", "clip_vision_model"}


@pytest.mark.torch
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - LIVE))
@pytest.mark.parametrize("head_size", [0, 24])
def test_parameters_equal_pytorchs_for_every_family(family: str, head_size: int) -> None:
    import torch

    model = family_model(
        family,
        name="tiny",
        context=CONTEXT,
        layers=3,
        heads=8,
        kv_heads=2,
        width=128,
        mlp_width=320,
        vocab=1000,
        head_size=head_size,
    )
    with torch.device("meta"):
        counted = torch_parameters(family, model)

    assert parameters(model) == counted
