"""What would make a traced program smaller, derived from its peak, with the bytes at stake."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from brimful.language import Sentence, Several, as_asked, say
from brimful.specs.parts import Part
from brimful.tracing.tape import Tape

# What a change affects.
Fix = Literal[
    "loss", "activations", "attention", "optimizer", "optimizer_step", "gradients", "fragmentation"
]  # fmt: skip

_WORTH = 0.08  # of the peak: less is not worth mentioning
_SCATTERED = 0.10  # of reserved memory that is unused at the peak


def fixes_for(
    tape: Tape, parts: dict[Part, int], live: Collection[int], *, peak: int, allocated: int, reserved: int
) -> tuple[dict[str, Any], ...]:
    """Changes worth trying, largest stake first: the bytes that a change affects, not a promise."""
    found: list[tuple[int, Fix, tuple[Sentence, ...]]] = [
        (parts.get("logits_loss", 0), "loss", (say("tracing.change_loss_chunks"),)),
        (parts.get("activations", 0), "activations", (say("tracing.change_checkpoint"),)),
        (_score_bytes(tape, live), "attention", (say("tracing.change_sdpa"),)),
        (
            parts.get("optimizer_state", 0),
            "optimizer",
            (say("tracing.change_8_bit_optimizer"), say("tracing.change_sharding")),
        ),
        (parts.get("optimizer_temporaries", 0), "optimizer_step", (say("tracing.change_fused"),)),
        (_old_gradient_bytes(tape, live, peak), "gradients", (say("tracing.change_zero_grad"),)),
    ]
    out = [
        _fix(code, size, change)
        for size, code, change in sorted(found, key=lambda row: -row[0])
        if allocated and size > _WORTH * allocated
    ]
    if reserved and (reserved - allocated) > _SCATTERED * reserved:
        change = say("tracing.change_setting", setting="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        out.append(_fix("fragmentation", reserved - allocated, (change,)))
    return tuple(out)


def fix_name(code: Fix) -> Sentence:
    return Sentence(f"tracing.fix_{code}", {})


def _fix(code: Fix, size: int, change: tuple[Sentence, ...]) -> dict[str, Any]:
    return {
        "code": code,
        "name": code.replace("_", " "),
        "at_stake_bytes": size,
        "change": as_asked(Several(change, between="; ")),
        "change_codes": [one.as_dict() for one in change],
    }


def _score_bytes(tape: Tape, live: Collection[int]) -> int:
    """Square score matrices of unfused attention: four dimensions, of which the last two are equal."""
    total = 0
    for number in live:
        shape = tape.blocks[number].shape
        if len(shape) >= 3 and shape[-1] == shape[-2] >= 128 and tape.blocks[number].role is None:
            total += tape.blocks[number].bytes
    return total


def _old_gradient_bytes(tape: Tape, live: Collection[int], peak: int) -> int:
    """Gradients of a finished step that are still alive in a later one: nothing reads them any more."""
    step = sum(end <= peak for end in tape.step_ends)
    return sum(
        block.bytes
        for block in (tape.blocks[number] for number in live)
        if block.role == "gradients" and block.step < step
    )
