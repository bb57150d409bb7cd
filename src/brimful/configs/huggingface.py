"""Hugging Face `config.json`: the shape of a model, by its model_type.

What a family shares is in specs/presets.py; here are the names each family uses for its sizes.
Source: configuration_*.py of huggingface/transformers, and their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.configs.bounds import fraction
from brimful.configs.parts import integer, is_vision, read_experts, read_images
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, say
from brimful.specs.model import Model
from brimful.specs.presets import FAMILIES, PYTHON_GELU, QUICK_GELU, family_model

# Size -> the families' names for it -> bounds. The first name found is used.
_SIZES: dict[str, tuple[tuple[str, ...], int, int]] = {
    "layers": (("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1, 10_000),
    "heads": (("num_attention_heads", "n_head", "n_heads", "num_heads"), 1, 100_000),
    "kv_heads": (("num_key_value_heads", "num_kv_heads"), 1, 100_000),
    "width": (("hidden_size", "n_embd", "d_model"), 1, 1_000_000),
    "mlp_width": (("intermediate_size", "n_inner", "ffn_dim"), 1, 10_000_000),
    "vocab": (("vocab_size",), 1, 100_000_000),
    "context": (("max_position_embeddings", "n_positions", "max_seq_len"), 1, 100_000_000),
    "head_size": (("head_dim",), 1, 1_000_000),
    "segments": (("type_vocab_size",), 0, 1_000),
}
_FRACS = {
    "dropout": ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout"),
    "attention_dropout": ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout"),
}
_NEEDED = ("layers", "heads", "width")
# A type whose modules are those of another.
_LIKE = {
    "gemma3": "gemma3_text",
    "roberta": "bert",
    "smollm3": "llama",
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
    "deit": "vit",
    "dinov2_with_registers": "dinov2",
}
_GELUS = {"gelu_new": PYTHON_GELU, "gelu_fast": PYTHON_GELU, "quick_gelu": QUICK_GELU}
# CLIPVisionConfig's defaults, which published files leave out.
_CLIP_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, the longest sequence it was made for, and what could not be read as written."""

    model: Model
    context: int
    warnings: tuple[Sentence, ...]
    unsure: int
    stored: str = ""  # the format of the checkpoint's weights, if the config says


def is_model_config(found: Mapping[str, Any]) -> bool:
    names = {*_SIZES["width"][0], "text_config"}
    return any(name in found for name in names)


def read_shape(found: Mapping[str, Any], *, name: str) -> Shape:
    """The model a config.json describes; an unknown type is read as its nearest family, with a warning."""
    warnings: list[Sentence] = []
    unsure = 0
    outer = found
    inner, seen = found.get("text_config"), found.get("vision_config")
    if found.get("model_type") == "clip" and isinstance(seen, dict):
        found, outer = {"model_type": "clip_vision_model", **_CLIP_DEFAULTS, **seen}, {}
        warnings.append(say("configs.only_vision_config"))
        unsure += 1
    elif isinstance(inner, dict) and not any(word in found for word in _SIZES["width"][0]):
        found = inner
        warnings.append(say("configs.only_text_config"))
        unsure += 1
    kind = str(found.get("model_type") or outer.get("model_type") or "")[:60]
    family = _LIKE.get(kind, kind)
    vision = is_vision(found)
    if family not in FAMILIES or vision != ("vocab" in FAMILIES[family]):
        family = (
            "vit"
            if vision
            else "llama"
            if "rms_norm_eps" in found
            else "bert"
            if kind.endswith("bert")
            else "gpt2"
        )
        known = say("configs.model_type_unknown", kind=Quoted(kind)) if kind else say("configs.no_model_type")
        warnings.append(say("configs.taken_for", type=known, family=family))
        unsure += 1
    sizes = _sizes(found, name=name, needed=(*_NEEDED, "vocab")[: 3 if vision else 4])
    context = sizes.pop("context", 2048)
    sizes |= _details(family, found, sizes)
    if (experts := read_experts(found, sizes, name=name)) is not None:
        sizes["experts"] = experts
    if vision:
        sizes |= read_images(found, name=name)
        context = sizes["images"].tokens
    _check(sizes, name=name)
    model = family_model(family, name=kind or family, context=context, **sizes)
    stored = str(found.get("dtype") or found.get("torch_dtype") or "").removeprefix("torch.")[:20]
    return Shape(model, context, tuple(warnings), unsure, stored)


def _sizes(found: Mapping[str, Any], *, name: str, needed: Sequence[str]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for size, (words, low, high) in _SIZES.items():
        if (value := integer(found, words, low=low, high=high, name=name)) is not None:
            sizes[size] = value
    missing = [size for size in needed if size not in sizes]
    if missing:
        words_of = ", ".join(_SIZES[size][0][0] for size in missing)
        raise BadInput(say("configs.does_not_say", name=name, words=words_of))
    for field, words in _FRACS.items():
        word = next((word for word in words if found.get(word) is not None), None)
        if word is not None:
            sizes[field] = fraction(word, found[word], name)
    return sizes


def _details(family: str, found: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """What one family spells in its own way, or leaves to its default."""
    details: dict[str, Any] = {}
    if isinstance(found.get("tie_word_embeddings"), bool):
        details["tied"] = found["tie_word_embeddings"]
    if family not in ("gpt2", "gpt_neo") and isinstance(found.get("attention_bias"), bool):
        details["qkv_bias"] = found["attention_bias"] or FAMILIES[family].get("qkv_bias", False)
    if "mlp_width" not in sizes:
        ratio = found.get("expansion_ratio", found.get("mlp_ratio", 4))
        details["mlp_width"] = (ratio if isinstance(ratio, int) and 0 < ratio < 100 else 4) * sizes["width"]
    if family == "falcon":
        details |= _falcon(found, sizes)
    if family == "gemma" and "head_size" not in sizes:
        details["head_size"] = 256  # GemmaConfig's default
    attention = found.get("attn_config")
    if family == "mpt" and isinstance(attention, dict) and isinstance(attention.get("kv_n_heads"), int):
        details["kv_heads"] = attention["kv_n_heads"]
    activation = found.get("activation_function") or found.get("hidden_act")
    if isinstance(activation, str):
        details["gelu_tensors"] = _GELUS.get(activation, 1)
    if family == "gpt_neox" and found.get("use_parallel_residual") is False:
        details["parallel"] = False
    return details


def _falcon(found: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Falcon 7B shares one key and value head and one norm; from 40B on there are groups and two norms."""
    new = found.get("new_decoder_architecture") is True
    shared = found.get("multi_query", True) is True
    kv_heads = sizes.get("kv_heads", sizes["heads"]) if new else 1 if shared else sizes["heads"]
    bias = found.get("bias") is True
    return {"kv_heads": kv_heads, "norms": 2 if new else 1, "bias": bias}


def _check(sizes: Mapping[str, Any], *, name: str) -> None:
    heads, width, kv_heads = sizes["heads"], sizes["width"], sizes.get("kv_heads", sizes["heads"])
    if not sizes.get("head_size") and width % heads:
        raise BadInput(say("configs.model_width_not_multiple_of_heads", name=name, width=width, heads=heads))
    if not 0 < kv_heads <= heads or heads % kv_heads:
        raise BadInput(say("configs.kv_heads_do_not_divide", name=name, heads=heads, kv_heads=kv_heads))
