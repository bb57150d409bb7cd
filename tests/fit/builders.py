"""Models and trainings with everything that does not matter filled in."""

from __future__ import annotations

from typing import Any

from brimful.specs.model import Model
from brimful.specs.training import Training


def a_model(**changes: Any) -> Model:
    """GPT-2 124M as nanoGPT builds it, unless told otherwise."""
    width = changes.get("width", 768)
    heads = changes.get("heads", 12)
    fields: dict[str, Any] = {
        "name": "gpt2",
        "layers": 12,
        "heads": heads,
        "kv_heads": heads,
        "width": width,
        "mlp_width": 4 * width,
        "vocab": 50304,
        "positions": 1024,
        "tied": True,
        "bias": False,
        "dropout": 0.0,
    }
    return Model(**{**fields, **changes})


def a_training(**changes: Any) -> Training:
    fields: dict[str, Any] = {
        "batch_size": 12,
        "sequence_tokens": 1024,
        "accumulation": 40,
        "dtype": "bfloat16",
        "compiled": True,
    }
    return Training(**{**fields, **changes})
