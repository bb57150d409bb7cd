"""FLOPs of a step of this process: by the predictor's formula if it knows the model, else counted once.

The formula is used if the model's own configuration describes a transformer with as many parameters as the
model itself; nothing is guessed from a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.configs.huggingface import is_model_config, read_shape
from brimful.configs.nanogpt import nanogpt_model
from brimful.errors import BadInput
from brimful.fit.count import parameters, recompute_flops, step_flops
from brimful.specs.model import Model
from brimful.specs.training import Checkpointing, Training

_SAME_FRAC = 0.03  # parameters a formula may differ by: adapters, and padding of tables
_NANOGPT = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A transformer whose FLOPs `fit.count` knows."""

    model: Model
    tuned: bool  # some weights are frozen: their gradients are not computed
    checkpointing: Checkpointing

    def flops(self, tokens: int, *, sequence_tokens: int) -> tuple[float, float]:
        """For this many tokens: what MFU counts, and what HFU adds."""
        shape = Training(
            batch_size=1,
            sequence_tokens=max(1, sequence_tokens),
            accumulation=1,
            dtype="float32",
            compiled=False,
            tuning="adapter" if self.tuned else "full",
            checkpointing=self.checkpointing,
        )
        share = tokens / shape.step_tokens
        return step_flops(self.model, shape) * share, recompute_flops(self.model, shape) * share


def formula_of(module: Any, *, checkpointing: Checkpointing | None) -> Formula | None:
    """The formula that fits a PyTorch module, or None."""
    shape = _shape(_config(module))
    if shape is None:
        return None
    counts = [(each.numel(), each.requires_grad) for each in module.parameters()]
    total = sum(n for n, _ in counts)
    trained = sum(n for n, needs_gradient in counts if needs_gradient)
    if abs(parameters(shape) - total) > _SAME_FRAC * total:
        return None
    own: Checkpointing = "full" if getattr(module, "is_gradient_checkpointing", False) else "none"
    return Formula(model=shape, tuned=2 * trained < total, checkpointing=checkpointing or own)


def counted(forward: float, backward: float) -> tuple[float, float]:
    """What MFU counts and what HFU adds, from FLOPs counted op by op.

    A backward pass is at most twice its forward pass; anything beyond that was recomputed.
    Leaves out: recomputation if part of the model is frozen: the skipped gradients hide it.
    """
    useful = min(forward + backward, 3 * forward)
    return useful, forward + backward - useful


def _config(module: Any) -> Mapping[str, Any]:
    """What a model says about itself: Hugging Face's config, or a plain object like nanoGPT's GPTConfig."""
    inner = getattr(module, "module", module)  # DDP
    inner = getattr(inner, "_orig_mod", inner)  # torch.compile
    config = getattr(inner, "config", None)
    if config is None:
        return {}
    found = config.to_dict() if hasattr(config, "to_dict") else getattr(config, "__dict__", None)
    return found if isinstance(found, Mapping) else {}


def _shape(config: Mapping[str, Any]) -> Model | None:
    if all(type(config.get(word)) is int and config[word] > 0 for word in _NANOGPT):
        bias = bool(config.get("bias", True))
        return nanogpt_model({**config, "bias": bias, "dropout": 0.0}, name="nanoGPT")
    if not is_model_config(config):
        return None
    try:
        found = read_shape(config, name="model.config")
    except (BadInput, AssertionError):
        return None
    return None if found.unsure else found.model
