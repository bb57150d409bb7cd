"""Models by name: `models.toml` has their sizes, and this module has what every size of a family shares.

A family is what Hugging Face calls `model_type`, so the reader of config.json uses the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from brimful.errors import NotFound
from brimful.language import say
from brimful.specs.model import Experts, Images, Model
from brimful.specs.names import Catalog

_LLAMA: dict[str, Any] = {
    "gated": True, "norm": "rms", "rotary": True, "tied": False, "bias": False, "softmax_fp32": True,
}  # fmt: skip
_GEMMA: dict[str, Any] = {**_LLAMA, "tied": True, "norm_fp32": True}
_GPT2: dict[str, Any] = {"learned": True, "tied": True, "bias": True}
_VISION: dict[str, Any] = {"vocab": 0, "tied": False, "bias": True}
# Tensors that gelu_new keeps: transformers writes it in Python, op by op.
PYTHON_GELU = 4
QUICK_GELU = 2  # of x·sigmoid(1.702x), written the same way

# Family -> fields of Model. `learned`: a table with a row per position, and `extra_positions` more. Source:
# modeling_*.py of huggingface/transformers for each model_type.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {**_GPT2, "gelu_tensors": PYTHON_GELU},
    # transformers, models/gpt_neo/modeling_gpt_neo.py, GPTNeoSelfAttention._attn: matmul, softmax, matmul
    "gpt_neo": {
        **_GPT2, "qkv_bias": False, "gelu_tensors": PYTHON_GELU, "writes_scores": True, "softmax_fp32": True,
    },
    "gpt_neox": {"rotary": True, "parallel": True, "tied": False, "bias": True, "softmax_fp32": True},
    # ReLU keeps its output, which the next matrix reads
    "opt": {**_GPT2, "extra_positions": 2, "gelu_tensors": 0, "softmax_fp32": True},
    # models/mpt/modeling_mpt.py, MptAttention.forward: matmul, softmax in fp32, matmul
    "mpt": {"tied": True, "bias": False, "writes_scores": True, "softmax_fp32": True},
    "falcon": {
        "rotary": True, "parallel": True, "norms": 1, "tied": True, "bias": False, "norm_bias": True,
    },
    "phi": {
        "rotary": True, "parallel": True, "norms": 1, "tied": False, "bias": True, "head_bias": True,
        "gelu_tensors": PYTHON_GELU, "softmax_fp32": True,
    },
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "phi3": _LLAMA,
    "qwen2": {**_LLAMA, "qkv_bias": True},
    "qwen3": {**_LLAMA, "qk_norm": True},
    # karpathy/nanochat, nanochat/gpt.py: squared ReLU keeps its input, like GELU
    "nanochat": {"norm": "rms", "norm_weights": False, "rotary": True, "tied": False, "bias": False},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "norms": 4, "capped": True},
    "gemma3_text": {**_GEMMA, "norms": 4, "qk_norm": True},
    "bert": {**_GPT2, "encoder": True, "segments": 2},
    "mixtral": _LLAMA,
    "qwen2_moe": {**_LLAMA, "qkv_bias": True},
    "qwen3_moe": {**_LLAMA, "qk_norm": True},
    "deepseek": _LLAMA,  # the first version; from V2 on attention differs
    "vit": _VISION,
    "dinov2": {**_VISION, "layer_scale": True, "class_inputs": 2},
    "clip_vision_model": {**_VISION, "embedding_norm": True, "gelu_tensors": QUICK_GELU},
}  # fmt: skip

_NOT_OF_MODEL = frozenset({"title", "aliases", "family", "context", "parameters", "source"})
_FIELDS = frozenset(field.name for field in fields(Model))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published model: its shape, and what was published about it."""

    model: Model
    title: str
    family: str
    context_tokens: int  # the longest sequence it was made for; the tokens of an image
    parameters: int | None  # the published total; None if unknown
    source: str


def find_preset(text: str) -> Preset:
    """The model meant by `text`: 'llama-3.1-8b', 'meta-llama/Llama-3.1-8B-Instruct', 'Llama 3.1 8B'."""
    return _load(_CATALOG.find(text))


def all_presets() -> tuple[Preset, ...]:
    """Every model of the catalog, in the order of the file."""
    return tuple(_load(name) for name in _CATALOG.names())


def family_model(family: str, *, name: str, context: int, **sizes: Any) -> Model:  # noqa: ANN401
    """A model of this family; `sizes` are fields of Model and override what the family shares."""
    shared = dict(FAMILIES[family])
    if isinstance(images := sizes.get("images"), Images):
        # registers come before the patches and have no position
        shared["positions"] = (images.size // images.patch) ** 2 + min(1, images.extra_tokens)
    positions = context + shared.pop("extra_positions", 0) if shared.pop("learned", False) else 0
    given = {"kv_heads": sizes.get("heads"), "positions": positions, **shared, **sizes}
    # Details worth a bias vector or two for which Model has no field yet are left out.
    return Model(name=name, family=family, **{key: value for key, value in given.items() if key in _FIELDS})


def _words(text: str) -> list[str]:
    """'meta-llama/Llama-3.1-8B' -> llama 3.1 8 b: no owner, digits separated, versions kept whole."""
    plain = text.lower()[:200].replace("_", ".")
    name = plain.rpartition("/")[2]
    plain = name if re.search(r"[a-z]", name) else plain  # ViT-B/16 has no owner
    return re.findall(r"[a-z]+|\d+(?:\.\d+)*", plain)


_CATALOG = Catalog(
    "models.toml",
    kind=say("specs.kind_model"),
    every=say("specs.hint_list_models"),
    words=_words,
    ambiguous=lambda problem, hint: NotFound(problem, hint=hint, code="ambiguous_model"),
    unknown=lambda problem, hint: NotFound(problem, hint=hint, code="unknown_model"),
)


@cache
def _load(name: str) -> Preset:
    row = _CATALOG.row(name)
    sizes = {key: value for key, value in row.items() if key not in _NOT_OF_MODEL}
    for part, kind in (("experts", Experts), ("images", Images)):
        if part in sizes:
            sizes[part] = kind(**sizes[part])
    context = sizes["images"].tokens if "images" in sizes else row["context"]
    return Preset(
        model=family_model(row["family"], name=name, context=context, **sizes),
        title=row["title"],
        family=row["family"],
        context_tokens=context,
        parameters=row.get("parameters"),
        source=row["source"],
    )
