"""Hugging Face `config.json`: the shape of a model, by its model_type.

What a family shares stands in specs/presets.py; here stands what each family calls its sizes.
Source: configuration_*.py of huggingface/transformers, and their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.errors import BadInput
from brimful.specs.model import Model
from brimful.specs.presets import FAMILIES, PYTHON_GELU, family_model

# Size -> what the families call it -> bounds. The first name found is taken.
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
_NEEDED = ("layers", "heads", "width", "vocab")
# A type whose modules are those of another.
_LIKE = {
    "gemma3": "gemma3_text",
    "roberta": "bert",
    "smollm3": "llama",
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, the longest sequence it was made for, and what could not be taken as it stood."""

    model: Model
    context: int
    warnings: tuple[str, ...]
    unsure: int
    stored: str = ""  # the format of the checkpoint's weights, where the config says


def is_model_config(found: Mapping[str, Any]) -> bool:
    names = {*_SIZES["width"][0], "text_config"}
    return any(name in found for name in names)


def read_shape(found: Mapping[str, Any], *, name: str) -> Shape:
    """The model a config.json describes; an unknown type is read as its nearest family, and said so."""
    warnings: list[str] = []
    unsure = 0
    outer = found
    inner = found.get("text_config")
    if isinstance(inner, dict) and not any(word in found for word in _SIZES["width"][0]):
        found = inner
        warnings.append("only text_config is counted: the parts for images or sound come on top")
        unsure += 1
    if any(isinstance(found.get(key), int) and found[key] > 1 for key in _EXPERTS):
        raise BadInput(
            f"{name}: a mixture of experts is not predicted yet", hint="dense transformers are; see --models"
        )
    if "patch_size" in found and found.get("vocab_size") is None:
        raise BadInput(
            f"{name}: a vision transformer is not predicted yet: it has patches and classes, no vocabulary",
            hint="text transformers are (--models); `brimful trace` follows a script of any model",
        )
    kind = str(found.get("model_type") or outer.get("model_type") or "")[:60]
    family = _LIKE.get(kind, kind)
    if family not in FAMILIES:
        family = "llama" if "rms_norm_eps" in found else "bert" if kind.endswith("bert") else "gpt2"
        said = f"model_type {kind!r} is not known" if kind else "no model_type"
        warnings.append(f"{said}: taken for a {family}, which has the same parts as far as the sizes tell")
        unsure += 1
    sizes = _sizes(found, name=name)
    context = sizes.pop("context", 2048)
    sizes |= _details(family, found, sizes)
    _check(sizes, name=name)
    model = family_model(family, name=kind or family, context=context, **sizes)
    stored = str(found.get("dtype") or found.get("torch_dtype") or "").removeprefix("torch.")[:20]
    return Shape(model, context, tuple(warnings), unsure, stored)


def _sizes(found: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for size, (words, low, high) in _SIZES.items():
        word = next((word for word in words if found.get(word) is not None), None)
        if word is None:
            continue
        value = found[word]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadInput(
                f"{name}: {word} = {_shown(value)} is out of range",
                hint=f"{word} is a whole number from {low} to {high:,}",
            )
        sizes[size] = value
    missing = [size for size in _NEEDED if size not in sizes]
    if missing:
        words_of = ", ".join(_SIZES[size][0][0] for size in missing)
        raise BadInput(f"{name} does not say {words_of}", hint="is it a model's config.json?")
    for field, words in _FRACS.items():
        word = next((word for word in words if found.get(word) is not None), None)
        if word is not None:
            value = found[word]
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
                raise BadInput(
                    f"{name}: {word} = {_shown(value)} is out of range", hint=f"{word} is from 0 to below 1"
                )
            sizes[field] = float(value)
    return sizes


def _details(family: str, found: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """What one family spells in its own way, or leaves to its default."""
    details: dict[str, Any] = {}
    if isinstance(found.get("tie_word_embeddings"), bool):
        details["tied"] = found["tie_word_embeddings"]
    if family not in ("gpt2", "gpt_neo") and isinstance(found.get("attention_bias"), bool):
        details["qkv_bias"] = found["attention_bias"] or FAMILIES[family].get("qkv_bias", False)
    if "mlp_width" not in sizes:
        ratio = found.get("expansion_ratio", 4)
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
        details["gelu_tensors"] = PYTHON_GELU if activation in ("gelu_new", "gelu_fast") else 1
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
        raise BadInput(
            f"{name}: width {width} is not a multiple of {heads} heads",
            hint="add head_dim, or correct one of them",
        )
    if not 0 < kv_heads <= heads or heads % kv_heads:
        raise BadInput(
            f"{name}: {heads} heads cannot share {kv_heads} key and value heads",
            hint="the first is a multiple of the second",
        )


def _shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "..."
