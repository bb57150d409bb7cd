"""No file at all: a model by name, and what the flags say about its training."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from brimful.configs.literals import Value
from brimful.configs.reading import FLAGS, Reading
from brimful.configs.settings import (
    apply_settings,
    framework_of,
    lora_defaults,
    own_word,
    unknown_key,
)
from brimful.errors import BadInput
from brimful.language import Number, say
from brimful.specs.estimate import Assumption
from brimful.specs.framework import PLAIN
from brimful.specs.presets import find_preset
from brimful.specs.training import Training

# What is taken where nobody says. The loop people mean when they say none of it: PyTorch as it comes, bf16.
_BATCH, _SEQ_LEN, _ACCUMULATION = 1, 2048, 1


def read_flags(name: str, said: Mapping[str, Value]) -> Reading:
    """A published model, trained as the flags say; everything they leave open is listed as assumed."""
    preset = find_preset(name)
    for key in said:
        if own_word(key) is None:
            raise unknown_key(key, ())
    words = {own_word(key): value for key, value in said.items()}
    adapted = any(words.get(word) is True for word in ("lora", "qlora"))
    tokens = min(_SEQ_LEN, preset.context_tokens)
    code = framework_of(said) or PLAIN
    accumulation, whose = _ACCUMULATION, "nobody said"
    if adapted and code.global_batch:
        sizes = [value for word in ("batch_size", "gpus") if isinstance(value := words.get(word), int)]
        accumulation, whose = max(1, code.global_batch // max(1, prod(sizes))), f"{code.title}'s default"
    training = Training(
        batch_size=_BATCH,
        sequence_tokens=tokens,
        accumulation=accumulation,
        dtype="bfloat16",
        compiled=False,
        casts="none" if adapted else "autocast",
        optimizer_kernel="fused",
    )
    assumed: list[tuple[str, Any, str]] = [
        ("batch_size", _BATCH, "nobody said"),
        ("seq_len", tokens, f"nobody said; {preset.title} goes up to {preset.context_tokens:,}"),
        ("gradient_accumulation_steps", accumulation, whose),
        ("compile", False, "PyTorch's default"),
        ("attention", "flash", "what PyTorch 2 picks on cards that can"),
        ("checkpointing", "none", "PyTorch's default"),
        ("optimizer", "adamw-fused", "the usual one"),
        ("torch", "current", "nobody said; before 2.0 PyTorch used memory otherwise"),
    ]
    if adapted:
        assumed.append(("precision", "bf16", "frozen weights are loaded in 16 bits"))
        targets, rank = lora_defaults(code, preset.model.name)
        of = "what recipes take" if code is PLAIN else f"what {code.title}'s recipe takes"
        assumed.append(("rank", rank, of))
        assumed.append(("targets", targets, of))
    else:
        assumed.append(
            ("precision", "amp-bf16", "fp32 weights under autocast, what Trainer's bf16=True does")
        )
    reading = Reading(
        model=preset.model,
        training=training,
        assumed=tuple(Assumption(name=n, value=v, why=why) for n, v, why in assumed),
        warnings=(),
        dialect=FLAGS,
        context_tokens=preset.context_tokens,
    )
    reading = apply_settings(reading, said)
    if reading.model.positions and reading.training.sequence_tokens > preset.context_tokens:
        raise BadInput(
            say(
                "configs.positions_seq_len",
                name=preset.model.name,
                context_tokens=Number(preset.context_tokens),
                sequence_tokens=Number(reading.training.sequence_tokens),
            ),
            hint=say("configs.hint_position_table_ends_seq_len", context_tokens=preset.context_tokens),
        )
    return reading
