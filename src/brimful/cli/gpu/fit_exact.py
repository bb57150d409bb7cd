"""`fit --exact`: the framework's own model, traced, beside the formula; and why the two differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brimful.configs.reading import Reading
from brimful.language import Percent, Sentence, Several, Size, say, told
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brimful.specs.estimate import Item
    from brimful.tracing.report import Trace

NEAR_FRAC = 0.03  # a smaller difference needs no explanation
_STATES = ("weights", "weight_casts", "adapter", "optimizer_state", "gradients")
_OUTSIDE = ("allocator_cache", "cuda_context", "other_programs", "rounding", "workspaces")


def traced(reading: Reading, gpu: Gpu) -> Trace:
    from brimful.tracing.models.programs import exact
    from brimful.tracing.program import need_torch

    need_torch()
    found: Trace = exact(reading.model, reading.training, gpu)
    return found


def fits(trace: Trace, answer: Estimate) -> bool:
    """Whether it fits beside the other programs that the formula counts."""
    return trace.fits and trace.device_bytes + answer.others.bytes <= answer.usable_bytes


def as_dict(trace: Trace, answer: Estimate, reading: Reading) -> dict[str, Any]:
    closed = answer.memory.allocated_bytes.likely
    return {
        "code": _code(reading),
        "allocated_bytes": trace.allocated_bytes,
        "reserved_bytes": trace.reserved_bytes,
        "device_bytes": trace.device_bytes + answer.others.bytes,
        "fits": fits(trace, answer),
        "formula_allocated_bytes": round(closed),
        "formula_off": round(closed / trace.allocated_bytes - 1, 4),
        "formula_less_traced": _differences(trace, answer),
    }


def text(trace: Trace, answer: Estimate, reading: Reading) -> str:
    head = say(
        "gpu.exact_head",
        program=_code(reading),
        allocated=Size(trace.allocated_bytes),
        reserved=Size(trace.reserved_bytes),
        device=Size(trace.device_bytes + answer.others.bytes),
        verdict=say("gpu.exact_fits" if fits(trace, answer) else "gpu.exact_does_not_fit"),
    )
    return told(Several((head, _why(trace, answer, reading)), between="\n"))


def _why(trace: Trace, answer: Estimate, reading: Reading) -> Sentence:
    closed = answer.memory.allocated_bytes.likely
    off = closed / trace.allocated_bytes - 1
    said = Percent(abs(off), 1)
    if abs(off) <= NEAR_FRAC:
        return say("gpu.exact_near", closed=Size(round(closed)), off=said)
    if reading.training.framework.name == "pytorch" and reading.model.family:
        return say("gpu.exact_other_code", closed=Size(round(closed)), off=said)
    part, less = max(_differences(trace, answer).items(), key=lambda each: abs(each[1]))
    more = "gpu.exact_less" if less < 0 else "gpu.exact_more"
    return say(
        "gpu.exact_off",
        closed=Size(round(closed)),
        off=said,
        how=say(more, size=Size(abs(less))),
        part=say(f"gpu.exact_part_{part}"),
    )


def _differences(trace: Trace, answer: Estimate) -> dict[str, int]:
    ours, theirs = _parts(trace.items), _parts(answer.memory.items)
    return {part: theirs[part] - ours[part] for part in ours}


def _parts(items: Iterable[Item]) -> dict[str, int]:
    found = {"states": 0, "logits": 0, "activations": 0}
    for item in items:
        if item.code in _OUTSIDE:
            continue
        part = "states" if item.code in _STATES else "logits" if item.code == "logits_loss" else "activations"
        found[part] += item.bytes
    return found


def _code(reading: Reading) -> str:
    if reading.training.framework.name == "litgpt":
        return "LitGPT"
    return "transformers" if reading.model.family else "nanoGPT"
