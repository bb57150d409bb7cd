"""Which tensor is it? By its shape, or by its size and the config that asked for it.

Without a config, only a vocabulary size of published models, or a square of scores, counts as a sign; a size
alone never does, since many tensors have it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod

from brimful.allocator.caching import SMALL_SEGMENT, Allocator
from brimful.allocator.settings import LARGE_SEGMENT
from brimful.diagnose.tables import Buffer
from brimful.language import Sentence, say
from brimful.specs.model import Model
from brimful.specs.presets import all_presets
from brimful.specs.training import Training
from brimful.units import GIB, MIB

# In addition to the presets': nanochat, GPT-J and T5, BLOOM, DeepSeek; and GPT-2's, padded by others.
_MORE_VOCABULARIES = (32128, 50400, 50432, 65536, 102400, 129280, 250880)
_ALLOCATOR = Allocator()  # with PyTorch's default settings


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of one training step."""

    what: Sentence
    shape: tuple[int, ...]
    number_bytes: int

    @property
    def bytes(self) -> int:
        return self.number_bytes * prod(self.shape)

    @property
    def product(self) -> str:
        """'16 x 1024 x 50304', as people write shapes in every language."""
        return " x ".join(map(str, self.shape))


LOGITS = say("diagnose.tensor_logits")
SCORES = say("diagnose.tensor_scores")
EITHER = say("diagnose.tensor_logits_or_output")
TABLE = say("diagnose.tensor_token_table")


def step_tensors(model: Model, training: Training) -> list[Tensor]:
    """The large tensors of a step, largest kinds first. A 16-bit run has fp32 copies of some of them."""
    b, t = training.batch_size, training.sequence_tokens
    half = 2 if training.half else 4
    qkv = say("diagnose.tensor_qkv")
    shapes: list[tuple[Sentence, tuple[int, ...]]] = [
        *([(LOGITS, (b, t, model.vocab))] if model.classes is None else []),
        (SCORES, (b, model.heads, t, t)),
        (say("diagnose.tensor_mlp"), (b, t, model.mlp_width)),
        (qkv, (b, t, model.query_width + 2 * model.kv_width)),
        (say("diagnose.tensor_hidden"), (b, t, model.width)),
        *([(TABLE, (model.vocab, model.width))] if model.vocab else []),
        (say("diagnose.tensor_mlp_weight"), (model.mlp_width, model.width)),
    ]
    return [
        Tensor(what, shape, size)
        for what, shape in shapes
        for size in ((half,) if what is qkv else dict.fromkeys((half, 4)))
    ]


def of_size(tried_bytes: int, model: Model, training: Training) -> list[Tensor]:
    """Tensors of this config for which PyTorch prints this size; a block of 2 or 20 MiB may be any."""
    if is_block(tried_bytes):
        return []
    # The message rounds to two decimals of its unit.
    step = GIB if tried_bytes >= GIB else MIB
    return [
        tensor
        for tensor in step_tensors(model, training)
        if abs(_ALLOCATOR.segment_size(tensor.bytes) - tried_bytes) <= 0.0051 * step
    ]


def is_block(tried_bytes: int) -> bool:
    return tried_bytes in (SMALL_SEGMENT, LARGE_SEGMENT)


def of_shape(
    buffer: Buffer, model: Model | None = None, training: Training | None = None
) -> tuple[Sentence | None, bool]:
    """What a tensor of this shape is, and whether the config says so or only the shape."""
    shape = tuple(side for side in buffer.shape if side != 1)
    if model is not None and training is not None:
        tokens = training.batch_size * training.sequence_tokens
        for tensor in step_tensors(model, training):
            flat = (tokens, *tensor.shape[2:])
            if shape in (tensor.shape, tuple(side for side in tensor.shape if side != 1), flat):
                return tensor.what, True
    if len(shape) == 2 and shape[-1] in vocabularies() and shape[0] in widths():
        return EITHER, False
    if len(shape) in (2, 3) and shape[-1] in vocabularies():
        return LOGITS, False
    if len(shape) == 2 and shape[0] in vocabularies():
        return TABLE, False
    if len(shape) == 4 and shape[-1] == shape[-2] >= 128:
        return SCORES, False
    return None, False


@cache
def vocabularies() -> frozenset[int]:
    """Vocabulary sizes of published models, as they are and padded to 64 and 128."""
    plain = {*_MORE_VOCABULARIES, *(preset.model.vocab for preset in all_presets())}
    return frozenset(-(-size // multiple) * multiple for size in plain for multiple in (1, 64, 128))


@cache
def widths() -> frozenset[int]:
    """Hidden-state widths of published models."""
    return frozenset(preset.model.width for preset in all_presets())


# Sign in a traceback -> where in a step that is. These determine the moment wherever they occur:
_PURPOSES: tuple[tuple[str, Sentence], ...] = (
    (r"\bestimate_loss\(|\bevaluate\(|evaluation_loop", say("diagnose.in_evaluation")),
    (r"\.generate\(", say("diagnose.in_generation")),
    (r"load_state_dict\(|\btorch\.load\(", say("diagnose.in_checkpoint_load")),
    (r"from_pretrained\(", say("diagnose.in_model_load")),
    (r"model\w*\.(?:to|cuda)\(", say("diagnose.in_model_move")),
)
# … and of these the last one counts, which is the innermost.
_MOMENTS: tuple[tuple[str, Sentence], ...] = (
    (r"recompute_fn|unpack_hook", say("diagnose.in_recompute")),
    (r"run_backward\(|call_compiled_backward|\.backward\(", say("diagnose.in_backward")),
    (r"zeros_like\(\s*p\b", say("diagnose.in_first_optimizer_step")),
    (r"exp_avg_sq|optimizer\w*\.step\(", say("diagnose.in_optimizer_step")),
    (r"cross_entropy", say("diagnose.in_loss")),
    (r"lm_head\(", say("diagnose.in_logits")),
    (r"scaled_dot_product_attention|att\w* = [\w.]*softmax\(", say("diagnose.in_attention")),
    (r"self\.mlp\(", say("diagnose.in_mlp")),
    (r"F\.linear\(", say("diagnose.in_matmul")),
)
_BACKWARD = _MOMENTS[:2]


def moment(trace: str) -> Sentence | None:
    """Where in the step, by the traceback above the message; None if it shows no sign."""
    near = trace[-12_000:]
    near = near[max(0, near.rfind("Traceback (most recent call last)")) :]
    for sign, where in _PURPOSES:
        if re.search(sign, near):
            return where
    # The backward pass runs forward code again: then it is still the backward pass.
    for signs in (_BACKWARD, _MOMENTS):
        seen = [
            (found[-1].start(), where) for sign, where in signs if (found := list(re.finditer(sign, near)))
        ]
        if seen:
            again = [where for _, where in seen if where is _MOMENTS[0][1]]
            return again[0] if again else max(seen, key=lambda pair: pair[0])[1]
    return None
