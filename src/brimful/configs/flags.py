"""No file: a model by name, and a training from flags."""

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
from brimful.language import Number, Sentence, say
from brimful.specs.estimate import Assumption
from brimful.specs.framework import PLAIN, all_frameworks
from brimful.specs.presets import find_preset
from brimful.specs.training import Training

# The defaults. They describe the loop people mean when they specify nothing: plain PyTorch, bf16.
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
    own = next((each for each in all_frameworks() if each.name == preset.family), PLAIN)
    code = framework_of(said) or own  # nanochat's models are trained by nanochat
    unsaid, default = (
        say("configs.why_nobody_said"),
        say("configs.why_framework_default", framework="PyTorch"),
    )
    accumulation, whose = _ACCUMULATION, unsaid
    if adapted and code.global_batch:
        sizes = [value for word in ("batch_size", "gpus") if isinstance(value := words.get(word), int)]
        accumulation = max(1, code.global_batch // max(1, prod(sizes)))
        whose = say("configs.why_framework_default", framework=code.title)
    training = Training(
        batch_size=_BATCH,
        sequence_tokens=tokens,
        accumulation=accumulation,
        dtype="bfloat16",
        compiled=False,
        casts="none" if adapted else "autocast",
        optimizer_kernel="fused",
        framework=code,
    )
    longest = say("configs.why_model_goes_up_to", model=preset.title, n=preset.context_tokens)
    assumed: list[tuple[str, Any, Sentence]] = [
        ("batch_size", _BATCH, unsaid),
        ("seq_len", tokens, longest),
        ("gradient_accumulation_steps", accumulation, whose),
        ("compile", False, default),
        ("attention", "flash", say("configs.why_pytorch_picks_flash")),
        ("checkpointing", "none", default),
        ("optimizer", "adamw-fused", say("configs.why_usual")),
        ("torch", "current", say("configs.why_torch_unsaid")),
    ]
    if adapted:
        assumed.append(("precision", "bf16", say("configs.why_frozen_16_bits")))
        targets, rank = lora_defaults(code, preset.model.name)
        of = say("configs.why_recipes")
        if code is not PLAIN:
            of = say("configs.why_framework_recipe", framework=code.title)
        assumed.append(("rank", rank, of))
        assumed.append(("targets", targets, of))
    else:
        assumed.append(("precision", "amp-bf16", say("configs.why_autocast")))
    reading = Reading(
        model=preset.model,
        training=training,
        assumed=tuple(Assumption(name=n, value=v, why=why) for n, v, why in assumed),
        warnings=(),
        dialect=FLAGS,
    )
    reading = apply_settings(reading, said)
    if reading.model.positions and reading.training.sequence_tokens > preset.context_tokens:
        raise BadInput(
            say(
                "configs.sequence_too_long",
                name=preset.model.name,
                context_tokens=Number(preset.context_tokens),
                sequence_tokens=Number(reading.training.sequence_tokens),
                context_tokens_2=str(preset.context_tokens),
            )
        )
    return reading
