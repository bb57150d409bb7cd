"""What would make a traced program smaller: read off what it holds at its peak, with the bytes at stake."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from brimful.tracing import items
from brimful.tracing.tape import Tape

_WORTH = 0.08  # of the peak: less is not worth a line
_SCATTERED = 0.10  # of reserved memory that is not handed out at the peak


def fixes_for(
    tape: Tape, parts: dict[str, int], live: Collection[int], *, peak: int, allocated: int, reserved: int
) -> tuple[dict[str, Any], ...]:
    """Changes worth trying, the largest stake first: what a change acts on, which is no promise."""
    found = [
        (
            parts.get(items.LOSS, 0),
            "loss",
            "take the loss in chunks of the batch, or use a fused linear cross-entropy",
        ),
        (
            parts.get(items.ACTIVATIONS, 0),
            "activations",
            "checkpoint the layers, or halve the batch and accumulate gradients twice as often",
        ),
        (_score_bytes(tape, live), "attention", "call scaled_dot_product_attention: no score matrix is kept"),
        (
            parts.get(items.OPTIMIZER_STATE, 0),
            "optimizer",
            "an 8-bit optimizer keeps a quarter of it; sharding spreads it over GPUs",
        ),
        (
            parts.get(items.STEP_TEMPORARIES, 0),
            "optimizer step",
            "fused=True updates without temporaries",
        ),
        (
            _old_gradient_bytes(tape, live, peak),
            "gradients",
            "zero_grad(set_to_none=True) before the forward pass",
        ),
    ]
    out = [
        {"name": name, "at_stake_bytes": size, "change": change}
        for size, name, change in sorted(found, key=lambda row: -row[0])
        if allocated and size > _WORTH * allocated
    ]
    if reserved and (reserved - allocated) > _SCATTERED * reserved:
        out.append(
            {
                "name": "fragmentation",
                "at_stake_bytes": reserved - allocated,
                "change": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            }
        )
    return tuple(out)


def _score_bytes(tape: Tape, live: Collection[int]) -> int:
    """Square matrices of scores: attention written out, four dimensions of which the last two are equal."""
    total = 0
    for number in live:
        shape = tape.blocks[number].shape
        if len(shape) >= 3 and shape[-1] == shape[-2] >= 128 and tape.blocks[number].role == "":
            total += tape.blocks[number].bytes
    return total


def _old_gradient_bytes(tape: Tape, live: Collection[int], peak: int) -> int:
    """Gradients of a step that is over, still there in a later one: nobody reads them any more."""
    step = sum(end <= peak for end in tape.step_ends)
    return sum(
        block.bytes
        for block in (tape.blocks[number] for number in live)
        if block.role == items.GRADIENTS and block.step < step
    )
