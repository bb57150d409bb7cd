"""Parts of a Hugging Face config.json that only some models have: experts, and image patches.

Source: configuration_*.py of huggingface/transformers for mixtral, qwen2_moe, qwen3_moe, vit, dinov2 and
clip, and configuration_deepseek.py beside deepseek-ai's checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.configs.bounds import whole_between
from brimful.errors import BadInput
from brimful.language import say
from brimful.specs.model import Experts, Images

Found = Mapping[str, Any]

_COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")


def integer(found: Found, words: Sequence[str], *, low: int, high: int, name: str) -> int | None:
    """The whole number under the first of these keys that is present; None if none is."""
    word = next((word for word in words if found.get(word) is not None), None)
    if word is None:
        return None
    value: int = whole_between(low, high)(word, found[word], name)
    return value


# -- experts -----------------------------------------------------------------------------------------------


def read_experts(found: Found, sizes: Mapping[str, Any], *, name: str) -> Experts | None:
    """The mixture that replaces the MLP; None for a dense model."""

    def number(*words: str, low: int = 0, high: int = 10_000_000) -> int | None:
        return integer(found, words, low=low, high=high, name=name)

    count = number(*_COUNT, high=100_000)
    if count is None or count < 2:
        return None
    if number("kv_lora_rank"):
        raise BadInput(say("configs.latent_attention_unknown", name=name))
    chosen = number(*_CHOSEN, low=1, high=count)
    if chosen is None:
        raise BadInput(say("configs.experts_per_token_missing", name=name, count=count))
    width = number("moe_intermediate_size", low=1) or sizes["mlp_width"]
    shared = number("shared_expert_intermediate_size")
    if shared is None:
        shared = width * (number("n_shared_experts", "num_shared_experts", high=1_000) or 0)
    return Experts(
        count=count,
        chosen=chosen,
        width=width,
        shared_width=shared,
        shared_gate="shared_expert_intermediate_size" in found,
        dense_layers=_dense_layers(found, sizes["layers"], name=name),
    )


def _dense_layers(found: Found, layers: int, *, name: str) -> int:
    """Layers with an ordinary MLP: the first ones, those listed, and those that a step skips."""
    first = integer(found, ("first_k_dense_replace",), low=0, high=layers, name=name) or 0
    every = integer(found, ("decoder_sparse_step", "moe_layer_freq"), low=1, high=layers, name=name) or 1
    listed = found.get("mlp_only_layers")
    dense = {layer for layer in listed or () if isinstance(layer, int)} if isinstance(listed, list) else set()
    # transformers, Qwen3MoeDecoderLayer: (layer + 1) % decoder_sparse_step == 0; DeepSeek: layer % freq == 0
    offset = 1 if "decoder_sparse_step" in found else 0
    mixed = [layer for layer in range(first, layers) if layer not in dense and (layer + offset) % every == 0]
    return layers - len(mixed)


# -- images ------------------------------------------------------------------------------------------------


def is_vision(found: Found) -> bool:
    """Patches and no vocabulary: a model that reads only images."""
    return "patch_size" in found and found.get("vocab_size") is None


def read_images(found: Found, *, name: str) -> dict[str, Any]:
    """Fields of Model that describe a vision transformer's input and its head."""
    kind = str(found.get("model_type") or "")

    def number(word: str, default: int, *, low: int = 1, high: int = 100_000) -> int:
        value = integer(found, (word,), low=low, high=high, name=name)
        return default if value is None else value

    size, patch = number("image_size", 224), number("patch_size", 16)
    if patch > size:
        raise BadInput(say("configs.patch_larger_than_image", name=name, patch=patch, size=size))
    if found.get("use_swiglu_ffn") is True:
        raise BadInput(say("configs.giant_dinov2_unknown", name=name))
    images = Images(
        size=size,
        patch=patch,
        channels=number("num_channels", 3, high=1_000),
        extra_tokens=1 + number("num_register_tokens", 0, low=0, high=1_000),
        patch_bias=kind != "clip_vision_model",
        mask_token=kind.startswith("dinov2"),
    )
    fields: dict[str, Any] = {"images": images, "classes": _classes(found, name=name), "vocab": 0}
    if isinstance(found.get("qkv_bias"), bool):
        fields["qkv_bias"] = found["qkv_bias"]
    return fields


def _classes(found: Found, *, name: str) -> int:
    """Of a classifier, if the architecture has one. Source: PretrainedConfig: two labels by default."""
    named = found.get("architectures")
    if not (isinstance(named, list) and any("Classification" in str(one) for one in named)):
        return 0
    labels = found.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    return integer(found, ("num_labels",), low=1, high=10_000_000, name=name) or 2
