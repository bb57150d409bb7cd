"""Numbers people read off their screens, compared with what is physically possible.

Impossible numbers are common: an MFU divided by another card's peak, a "full fine-tuning" below the size of
weights, gradients and optimizer state, a rate above what the card can compute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from brimful.fit.count import A100_FLOPS_PER_S, model_flops_per_token
from brimful.language import Language, Number, Percent, Sentence, Several, Size, language, say
from brimful.specs.estimate import Estimate, Interval
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training
from brimful.units import GIB

# Parts of the memory that no training loop can do without.
_STATES = ("weights", "gradients", "optimizer_state")
_PERCENT = 2  # an MFU above it was given in percent
_BEST_MFU = 0.75  # few published training runs come near it; anything above is unusual, not impossible
# Of the memory nvidia-smi shows, hidden from frameworks; if the name does not state the size.
_HIDDEN_FRAC = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number, whether it is possible, whether it is possible but rarely seen, and why."""

    name: str
    value: float
    possible: bool
    unusual: bool = False
    why: Sentence

    def as_dict(self, spoken: Language | None = None) -> dict[str, Any]:
        why = {"why": (spoken or language("en")).text(self.why), "reason": self.why.as_dict()}
        return {**{name: getattr(self, name) for name in self.__slots__}, **why}


def check_mfu(value: float, answer: Estimate, gpu: Gpu, *, nanogpt: bool = False) -> Check:
    """An MFU: not above 1, seldom above published runs, and beside the prediction.

    `nanogpt` says that nanoGPT may have printed it, which divides by an A100's peak whatever the card is.
    """
    speed = answer.speed
    peak = say(
        "diagnose.peak_of_card",
        tflops=Number(speed.peak_flops_per_s / 1e12, 1),
        gpu=gpu.title,
        format=speed.peak_format,
    )
    own = value * A100_FLOPS_PER_S / speed.peak_flops_per_s
    other = own != value and own <= 1 and nanogpt
    if value > 1:
        why = say("diagnose.mfu_impossible", mfu=Percent(value), peak=peak)
        if _PERCENT < value <= 100:
            share = say("diagnose.mfu_is_a_share", percent=Percent(value / 100), share=Number(value / 100, 2))
            why = say("diagnose.both", one=why, other=share)
    elif value > _BEST_MFU:
        beside = _beside(value, speed.mfu)
        why = say("diagnose.mfu_rare", mfu=Percent(value), peak=peak, beside=beside)
    else:
        why = _beside(value, speed.mfu)
    if other:
        why = say("diagnose.both", one=why, other=say("diagnose.mfu_of_a100", own=Percent(own)))
    unusual = _BEST_MFU < value <= 1
    return Check(name="mfu", value=value, possible=value <= 1 or other, unusual=unusual, why=why)


def check_rate(value: float, answer: Estimate, model: Model, training: Training, gpu: Gpu) -> Check:
    """Tokens per second of one run, by the FLOPs they take."""
    flops = value / training.gpus * model_flops_per_token(model, sequence_tokens=training.sequence_tokens)
    mfu = flops / answer.speed.peak_flops_per_s
    said = say(
        "diagnose.rate",
        rate=Number(value),
        tflops=Number(flops / 1e12, 1),
        mfu=Percent(mfu),
        gpu=gpu.title,
    )
    unusual = _BEST_MFU < mfu <= 1
    beside = _beside(mfu, answer.speed.mfu)
    if mfu > 1:
        why = say("diagnose.rate_impossible", said=said)
    elif unusual:
        why = say("diagnose.both", one=said, other=say("diagnose.rate_rare", beside=beside))
    else:
        why = say("diagnose.both", one=said, other=beside)
    return Check(name="tokens_per_s", value=value, possible=mfu <= 1, unusual=unusual, why=why)


def check_peak(value_bytes: int, answer: Estimate, gpu: Gpu) -> Check:
    """A measured peak: above what the states alone take, below what is on the card."""
    states = [item for item in answer.memory.items if item.code in _STATES]
    floor = sum(item.bytes for item in states)
    shown = Size(value_bytes)

    def check(why: Sentence, *, possible: bool) -> Check:
        return Check(name="peak_bytes", value=value_bytes, possible=possible, why=why)

    nominal = nominal_bytes(gpu)
    if value_bytes > nominal:
        too_much = say("diagnose.peak_above_card", size=shown, whole=Size(nominal), gpu=gpu.title)
        return check(too_much, possible=False)
    if value_bytes < floor:
        parts = Several(tuple(Several((item.name, Size(item.bytes)), between=" ") for item in states))
        too_little = say("diagnose.peak_below_states", size=shown, floor=Size(floor), parts=parts)
        return check(too_little, possible=False)
    counters = {
        "allocated": answer.memory.allocated_bytes,
        "reserved": answer.memory.reserved_bytes,
        "device": answer.memory.device_bytes,
    }
    within = [name for name, span in counters.items() if span.low <= value_bytes <= span.high]
    if within:
        why = say("diagnose.peak_of_counters", size=shown, counters=_or(within))
    elif value_bytes > answer.usable_bytes:
        usable = Size(answer.usable_bytes)
        why = say("diagnose.peak_above_usable", size=shown, usable=usable, gpu=gpu.title)
    elif value_bytes < counters["allocated"].low:
        why = say("diagnose.peak_below_counters", size=shown)
    else:
        why = say("diagnose.peak_above_counters", size=shown)
    return check(why, possible=True)


def nominal_bytes(gpu: Gpu) -> int:
    """What is on the card: the driver hides some of it from frameworks, and nvidia-smi counts that too."""
    sizes = [int(size) for name in (gpu.name, *gpu.aliases) for size in re.findall(r"\b(\d+)-?gb\b", name)]
    if not sizes:
        return round(gpu.memory_bytes * (1 + _HIDDEN_FRAC))
    return max(gpu.memory_bytes, max(sizes) * GIB)


def _or(names: list[str]) -> Sentence | str:
    """'allocated', 'allocated or reserved', 'allocated or reserved or device': the counters' own names."""
    first, *rest = names
    return say("diagnose.or", one=first, other=_or(rest)) if rest else first


def _beside(value: float, predicted: Interval) -> Sentence:
    span = {"low": Percent(predicted.low), "high": Percent(predicted.high)}
    if predicted.low <= value <= predicted.high:
        return say("diagnose.mfu_within", **span)
    if value < predicted.low:
        return say("diagnose.mfu_below", **span)
    return say("diagnose.mfu_above", **span)
