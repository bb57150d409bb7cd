"""What to change: each fix is found by estimating again with it, and keeps the effective batch.

A run with 12 x 40 sequences is not the run with 16 x 32, so no fix here changes their product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from brimful.specs.estimate import Estimate, Fix
from brimful.specs.training import Training

# Fields of Training that users know by another name.
_WORDS = {
    "compiled": "compile",
    "accumulation": "gradient_accumulation_steps",
}

Predict = Callable[[Training], Estimate]

_CHUNKS = 8
_MAX_BATCH = 1 << 20  # beyond any micro-batch a GPU can hold

_MAX_DIVISOR = 4096  # a batch no single GPU holds, so larger ones need not be tried

_IN_CODE = "a change in model.py"


def fixes(training: Training, predict: Predict) -> tuple[Fix, ...]:
    """Changes that save memory, those that fit first, then by what they cost in speed."""
    before = predict(training)
    singles = [_changed(training, before, predict, change, note) for change, note in _switches(training)]
    tried = [_smaller_batch(training, before, predict), *singles]
    saving = [fix for fix in tried if fix is not None and fix.saves_bytes > 0]
    if not any(fix.fits for fix in saving):
        everything, note = _everything(training)
        saving.append(_changed(training, before, predict, everything, note))
    return tuple(
        sorted(saving, key=lambda fix: (not fix.fits, round(fix.step_time_factor, 2), len(fix.change)))
    )


def largest_batch(training: Training, predict: Predict) -> int | None:
    """The largest batch_size of one micro-step that fits, by bisection: memory only grows with it."""

    def fits(batch_size: int) -> bool:
        return predict(replace(training, batch_size=batch_size)).fits

    if not fits(1):
        return None
    low, high = 1, 2
    while high < _MAX_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smaller_batch(training: Training, before: Estimate, predict: Predict) -> Fix | None:
    """The largest smaller batch that fits and divides the effective batch; one sequence if none does."""
    whole = training.effective_batch
    start = min(training.batch_size - 1, _MAX_DIVISOR)
    smaller = [size for size in range(start, 0, -1) if whole % size == 0]
    if not smaller:
        return None
    for size in smaller:
        after = replace(training, batch_size=size, accumulation=whole // size)
        estimate = predict(after)
        if estimate.fits:
            break
    change = {
        "batch_size": (training.batch_size, after.batch_size),
        "gradient_accumulation_steps": (training.accumulation, after.accumulation),
    }
    return _fix(before, estimate, change, f"config only; still {whole} sequences a step")


def _switches(training: Training) -> list[tuple[dict[str, Any], str]]:
    """Settings of Training to try, with what they ask of the user. Names are those of Training."""
    switches: list[tuple[dict[str, Any], str]] = []
    if not training.compiled:
        switches.append(
            ({"compiled": True}, "config only; fuses the loss, so its fp32 copies are never made")
        )
    if training.loss_chunks == 1:
        switches.append(
            (
                {"loss_chunks": _CHUNKS},
                f"loss in {_CHUNKS} slices, each made again in the backward pass; {_IN_CODE}",
            )
        )
    if training.checkpointing != "full":
        switches.append(
            ({"checkpointing": "full"}, f"each layer is run again in the backward pass; {_IN_CODE}")
        )
    return switches


def _everything(training: Training) -> tuple[dict[str, Any], str]:
    """All of it at once, one sequence at a time: what is left when no single change is enough."""
    change = {
        "batch_size": 1,
        "accumulation": training.effective_batch,
        "compiled": True,
        "loss_chunks": max(_CHUNKS, training.loss_chunks),
        "checkpointing": "full",
    }
    return change, f"everything at once; {_IN_CODE}"


def _changed(
    training: Training, before: Estimate, predict: Predict, change: dict[str, Any], note: str
) -> Fix:
    now = {key: getattr(training, key) for key in change}
    pairs = {_WORDS.get(key, key): (now[key], then) for key, then in change.items() if now[key] != then}
    return _fix(before, predict(replace(training, **change)), pairs, note)


def _fix(before: Estimate, after: Estimate, change: dict[str, tuple[Any, Any]], note: str) -> Fix:
    return Fix(
        change=change,
        fits=after.fits,
        saves_bytes=round(before.memory.device_bytes.likely - after.memory.device_bytes.likely),
        step_time_factor=after.speed.step_s.likely / before.speed.step_s.likely,
        keeps_effective_batch=True,
        note=note,
    )
