"""Mixtures of experts and vision transformers: the closed form beside transformers' own modules.

Each configuration is read by our reader and made by transformers. Counts of parameters are equal; the peak of
two training steps, traced under fake CUDA, is near. Routing is taken as even, and no token is dropped.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

import brimful
from brimful.configs.huggingface import read_shape
from brimful.fit.count import parameters
from brimful.fit.fit import estimate
from brimful.specs.framework import find_framework
from brimful.specs.gpu import find_gpu
from tests.conftest import missing
from tests.fit.builders import a_training

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

GPU = find_gpu("a100-80gb")
TOKENS = 1024
Found = dict[str, Any]

SMALL: Found = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 4096,
}  # fmt: skip
MIXTRAL: Found = {**SMALL, "intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2: Found = {
    **SMALL, "intermediate_size": 1536, "moe_intermediate_size": 384, "num_experts": 16,
    "num_experts_per_tok": 4, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
QWEN3: Found = {
    **SMALL, "intermediate_size": 1536, "moe_intermediate_size": 384, "num_experts": 32,
    "num_experts_per_tok": 4, "head_dim": 64, "mlp_only_layers": [0, 1],
}  # fmt: skip
VIT: Found = {
    "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_hidden_layers": 6,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 1000, "image_size": 224,
    "architectures": ["ViTForImageClassification"],
}  # fmt: skip
VIT_BASE: Found = {
    **VIT, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12,
}  # fmt: skip
DINO: Found = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 6, "image_size": 224}
CLIP: Found = {
    "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_hidden_layers": 6,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _installed() -> None:
    if importlib.util.find_spec("transformers") is None:
        missing("transformers", "`make test` installs it")


def the_module(kind: str, found: Found) -> tuple[Any, Any]:
    """transformers' configuration and module of this kind."""
    import transformers as hf

    config = {
        "mixtral": hf.MixtralConfig, "qwen2_moe": hf.Qwen2MoeConfig, "qwen3_moe": hf.Qwen3MoeConfig,
        "vit": hf.ViTConfig, "dinov2": hf.Dinov2Config, "clip_vision_model": hf.CLIPVisionConfig,
    }[kind](**found)  # fmt: skip
    module = {
        "vit": hf.ViTForImageClassification, "dinov2": hf.Dinov2Model, "clip_vision_model": hf.CLIPVisionModel
    }  # fmt: skip
    return config, module.get(kind, hf.AutoModelForCausalLM.from_config)


def a_step(make: Callable[[Any], Any], config: Any, batch: int, casts: str, accumulation: int) -> Any:
    """Forward, backward, fused AdamW; fp32 weights under autocast, or 16-bit ones."""
    half = torch.bfloat16 if casts == "none" else torch.float32

    def build() -> Callable[[], None]:
        model = make(config).to(half).cuda()
        model.train()
        if config.to_dict().get("checkpointed"):
            model.gradient_checkpointing_enable()
        adamw = torch.optim.AdamW(model.parameters(), fused=True)

        def inputs() -> Found:
            if (size := getattr(config, "image_size", None)) is None:
                ids = torch.randint(100, (batch, TOKENS), device="cuda")
                return {"input_ids": ids, "labels": ids, "use_cache": False}
            images = torch.randn(batch, 3, size, size, device="cuda", dtype=half)
            labels = {"labels": torch.zeros(batch, dtype=torch.long, device="cuda")}
            return {"pixel_values": images, **(labels if config.architectures else {})}

        def step() -> None:
            for _ in range(accumulation):
                given = inputs()  # a loop holds on to its batch
                with torch.autocast("cuda", torch.bfloat16, enabled=casts == "autocast"):
                    out = model(**given)
                loss = out.loss if "loss" in out else out.last_hidden_state.float().mean()
                loss.backward()
            adamw.step()
            adamw.zero_grad()

        return step

    return build


CASES = [
    ("mixtral", MIXTRAL, 4, "none", 1, 0.01),
    ("mixtral", {**MIXTRAL, "num_hidden_layers": 8, "checkpointed": True}, 8, "none", 1, 0.05),
    ("qwen2_moe", QWEN2, 4, "none", 1, 0.01),
    ("qwen3_moe", QWEN3, 4, "none", 2, 0.01),
    ("vit", VIT_BASE, 64, "autocast", 1, 0.01),
    ("vit", {**VIT_BASE, "checkpointed": True}, 128, "autocast", 1, 0.12),
    ("dinov2", DINO, 32, "none", 1, 0.03),
    ("clip_vision_model", CLIP, 64, "autocast", 1, 0.02),
]


@pytest.mark.parametrize(("kind", "found", "batch", "casts", "accumulation", "bar"), CASES)
def test_the_closed_form_is_near_the_traced_peak(
    kind: str, found: Found, batch: int, casts: str, accumulation: int, bar: float
) -> None:
    config, make = the_module(kind, found)
    shape = read_shape(config.to_dict(), name="config.json")

    trace = brimful.trace(a_step(make, config, batch, casts, accumulation), gpu=GPU.name)
    training = a_training(
        batch_size=batch,
        sequence_tokens=TOKENS if shape.model.images is None else shape.context,
        accumulation=accumulation,
        casts=casts,
        compiled=False,
        checkpointing="full" if found.get("checkpointed") else "none",
        framework=find_framework("transformers"),
    )
    ours = estimate(shape.model, training, GPU, correction=None).memory.allocated_bytes.likely

    assert not shape.warnings
    assert ours == pytest.approx(trace.allocated_bytes, rel=bar)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("mixtral", MIXTRAL),
        ("qwen2_moe", QWEN2),
        ("qwen2_moe", {**QWEN2, "decoder_sparse_step": 2}),
        ("qwen3_moe", QWEN3),
        ("vit", VIT),
        ("vit", {**VIT, "qkv_bias": False, "patch_size": 32, "num_channels": 1}),
        ("dinov2", DINO),
        ("clip_vision_model", CLIP),
    ],
)
def test_parameters_equal_those_of_transformers(kind: str, found: Found) -> None:
    config, make = the_module(kind, found)
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in make(config).parameters())

    assert parameters(read_shape(config.to_dict(), name="config.json").model) == counted
