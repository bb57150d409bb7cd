"""Numbers people read off their screens, held against what is physically possible.

Impossible numbers are common: an MFU divided by another card's peak, a "full fine-tuning" below the size of
weights, gradients and optimizer state, a rate above what the card can multiply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from brimful.predict.count import model_flops_per_token
from brimful.specs.estimate import Estimate, Interval
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training
from brimful.units import GIB, show_bytes

_A100_FLOPS_PER_S = 312e12  # nanoGPT and many copies of it divide by this whatever the card is
# Parts of the memory that no training loop can do without.
_STATES = ("weights", "gradients", "optimizer state", "master weights")
_BEST_MFU = 0.75  # few published training runs come near it; what is above is unusual, not impossible
_HIDDEN_FRAC = 0.03  # of the memory nvidia-smi shows, kept from frameworks; where no name says the size


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number, whether it can be, whether it is possible but rarely seen, and why."""

    name: str
    value: float
    possible: bool
    unusual: bool = False
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def check_mfu(value: float, answer: Estimate, gpu: Gpu, *, nanogpt: bool = False) -> Check:
    """An MFU: not above 1, seldom above published runs, and beside what is predicted.

    `nanogpt` says that nanoGPT may have printed it, which divides by an A100's peak whatever the card is.
    """
    speed = answer.speed
    peak = f"{speed.peak_flops_per_s / 1e12:g} TFLOPS of {gpu.title} in {speed.peak_format}"
    own = value * _A100_FLOPS_PER_S / speed.peak_flops_per_s
    other = own != value and own <= 1 and nanogpt
    divided = f"; as nanoGPT prints it, a share of an A100's 312 TFLOPS, it is {_percent(own)} of this card's"
    if value > 1:
        why = f"{_percent(value)} of {peak} is more than the card can do"
    elif value > _BEST_MFU:
        why = (
            f"{_percent(value)} of {peak} is rarely seen ({_beside(value, speed.mfu)}); was it another peak?"
        )
    else:
        why = _beside(value, speed.mfu)
    return Check(
        name="mfu",
        value=value,
        possible=value <= 1 or other,
        unusual=_BEST_MFU < value <= 1,
        why=why + (divided if other else ""),
    )


def check_rate(value: float, answer: Estimate, model: Model, training: Training, gpu: Gpu) -> Check:
    """Tokens a second of one run, by the FLOPs they take."""
    flops = value / training.gpus * model_flops_per_token(model, sequence_tokens=training.sequence_tokens)
    mfu = flops / answer.speed.peak_flops_per_s
    rate = f"{value:,.0f} tokens/s are {flops / 1e12:.1f} TFLOPS on each GPU"
    said = f"{rate}, {_percent(mfu)} of {gpu.title}'s peak"
    unusual = _BEST_MFU < mfu <= 1
    beside = f"{'rarely seen, and ' if unusual else ''}{_beside(mfu, answer.speed.mfu)}"
    why = f"{said}; {beside}" if mfu <= 1 else f"{said}: more than the card can do"
    return Check(name="tokens_per_s", value=value, possible=mfu <= 1, unusual=unusual, why=why)


def check_peak(value_bytes: int, answer: Estimate, gpu: Gpu) -> Check:
    """A measured peak: above what the states alone take, below what is on the card."""
    states = {item.name: item.bytes for item in answer.memory.items if item.name in _STATES}
    floor = sum(states.values())
    shown = show_bytes(value_bytes)

    def check(why: str, *, possible: bool) -> Check:
        return Check(name="peak_bytes", value=value_bytes, possible=possible, why=why)

    nominal = nominal_bytes(gpu)
    if value_bytes > nominal:
        why = f"{shown} is more than the {show_bytes(nominal)} of {gpu.title}"
        return check(why, possible=False)
    if value_bytes < floor:
        parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in states.items())
        why = f"{shown} is less than the states alone take, {show_bytes(floor)} ({parts})"
        return check(why, possible=False)
    counters = {
        "allocated": answer.memory.allocated_bytes,
        "reserved": answer.memory.reserved_bytes,
        "device": answer.memory.device_bytes,
    }
    within = [name for name, span in counters.items() if span.low <= value_bytes <= span.high]
    if within:
        return check(f"{shown} is what {' or '.join(within)} may show", possible=True)
    if value_bytes > answer.usable_bytes:
        seen = f"the {show_bytes(answer.usable_bytes)} a framework sees of {gpu.title}"
        return check(f"{shown} is more than {seen}; only nvidia-smi can show it", possible=True)
    side = "below" if value_bytes < counters["allocated"].low else "above"
    return check(f"{shown} is possible, but {side} every counter predicted here", possible=True)


def nominal_bytes(gpu: Gpu) -> int:
    """What is on the card: the driver keeps some of it from frameworks, and nvidia-smi counts that too."""
    sizes = [int(size) for name in (gpu.name, *gpu.aliases) for size in re.findall(r"\b(\d+)-?gb\b", name)]
    if not sizes:
        return round(gpu.memory_bytes * (1 + _HIDDEN_FRAC))
    return max(gpu.memory_bytes, max(sizes) * GIB)


def _beside(value: float, predicted: Interval) -> str:
    span = f"the predicted {_percent(predicted.low)} to {_percent(predicted.high)}"
    if predicted.low <= value <= predicted.high:
        return f"within {span}"
    return f"{'below' if value < predicted.low else 'above'} {span}"


def _percent(frac: float) -> str:
    return f"{100 * frac:.0f} %"
