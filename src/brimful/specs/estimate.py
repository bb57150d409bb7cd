"""`Estimate`: what brimful predicts for one model, training and GPU. `as_dict` is the JSON of `brimful fit`.

Three counters are never mixed:
- allocated: tensors alive (`torch.cuda.max_memory_allocated`)
- reserved: what PyTorch's allocator took from the driver (`max_memory_reserved`)
- device: what nvidia-smi shows, with the CUDA context and other programs on the card
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, log
from operator import sub
from typing import Any, Literal

from brimful.language import Sentence, Several, as_asked, say
from brimful.specs.desktop import NO_OTHERS, Others
from brimful.specs.parts import Moment, Part, moment, part
from brimful.specs.training import Training

# By the chance of running out:
# fits                 at most 5 %
# at_risk              at most 50 %: the likely value has room; counts as `fits`
# likely_does_not_fit  at most 95 %
# does_not_fit         above: not even the low end has room
Verdict = Literal["fits", "at_risk", "likely_does_not_fit", "does_not_fit"]
CHANCE_SPREAD = 0.2
MOST_CHANCE = 0.05  # of running out, if the verdict is "fits"
_ROUNDING = 1e-9
_LEAST_WIDTH = 0.001  # if the interval has no width
Bound = Literal["compute", "bandwidth", "launch", "link"]  # what limits the speed


def as_json(noun: object, *names: str) -> dict[str, Any]:
    """These fields of an object, each through its own `as_dict` if it has one, alone or in a tuple."""

    def shown(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, tuple):
            return [shown(each) for each in value]
        return value.as_dict() if hasattr(value, "as_dict") else value

    return {name: shown(getattr(noun, name)) for name in names}


@dataclass(frozen=True, slots=True)
class Interval:
    """`likely` is the answer; the truth is expected between `low` and `high`."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.likely <= self.high, self

    def each(self, change: Callable[[float], float]) -> Interval:
        """All three values changed by the same order-preserving function."""
        return Interval(change(self.low), change(self.likely), change(self.high))

    def with_each(self, other: Interval, change: Callable[[float, float], float]) -> Interval:
        """Low with low, likely with likely, high with high: `operator.add`, `max`."""
        ends = ((self.low, other.low), (self.likely, other.likely), (self.high, other.high))
        return Interval(*(change(*pair) for pair in ends))

    def rate(self, amount: float, *, most: float = inf) -> Interval:
        """How much of `amount` per second, if this is its time in seconds: the longest gives the least."""
        return Interval(*(min(most, amount / seconds) for seconds in (self.high, self.likely, self.low)))

    def as_dict(self) -> dict[str, float]:
        return {"low": self.low, "likely": self.likely, "high": self.high}


def chance_of_running_out(device_bytes: Interval, usable_bytes: int) -> float:
    """How likely the run needs more than the card has, if nothing else is known about it.

    Formula: logistic(ln(likely / usable) / s), a half if the likely value just fills the card. If it has
    room, s is a fifth of ln(high / likely); if it has not, s puts the low end at 95 %.
    Source: the fifth is a choice on the safe side; docs/explanation/accuracy.md shows how the chances did on
    published runs. Nine in ten of those ran, whatever was predicted; the chance does not rely on that.
    """
    low, likely, high = device_bytes.low, device_bytes.likely, device_bytes.high
    over = log(likely / usable_bytes)
    width = log(likely / low) / log(1 / MOST_CHANCE - 1) if over > 0 else CHANCE_SPREAD * log(high / likely)
    return 1 / (1 + exp(-max(-40.0, min(40.0, over / max(width, _LEAST_WIDTH)))))


def verdict_of(device_bytes: Interval, usable_bytes: int) -> Verdict:
    chance = chance_of_running_out(device_bytes, usable_bytes)
    if chance <= MOST_CHANCE:
        return "fits"
    if chance > 1 - MOST_CHANCE + _ROUNDING:
        return "does_not_fit"
    return "at_risk" if device_bytes.likely <= usable_bytes else "likely_does_not_fit"


def batch_risk(sure: int | None, largest: int | None) -> str:
    """The suffix of the code of a sentence about the largest batch: "fits" as in the verdict."""
    if sure == largest:
        return ""
    return ".none_sure" if sure is None else ".at_risk"


@dataclass(frozen=True, slots=True)
class Item:
    """One part of the memory at the peak, and why it is there."""

    code: Part
    bytes: int
    why: Sentence

    @property
    def name(self) -> Sentence:
        return part(self.code)

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "name": as_asked(self.name),
            "bytes": self.bytes,
            "why": as_asked(self.why),
            "reason": self.why.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of a step that needs most, and the pipeline stage; stages count from 1."""

    moment: Moment
    stage: int = 0  # 0: there is no pipeline
    stages: int = 0

    def says(self) -> Several:
        where = (say("specs.pipeline_stage", n=self.stage, all=self.stages),) if self.stage else ()
        return Several((moment(self.moment), say("specs.every_step"), *where))

    def as_dict(self) -> dict[str, Any]:
        stage = {"stage": self.stage, "of": self.stages} if self.stage else None
        return {"peak_at": as_asked(self.says()), "peak_at_code": self.moment, "peak_at_stage": stage}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The three counters at their peak. The items sum to the likely device bytes."""

    allocated_bytes: Interval
    reserved_bytes: Interval
    device_bytes: Interval
    first_step_bytes: Interval  # device bytes of the first optimizer step, which has no AdamW state yet
    items: tuple[Item, ...]
    peak_at: Peak
    # Cache in the device bytes that PyTorch releases when the card is full.
    spare_bytes: Interval = Interval(0, 0, 0)

    @property
    def needed_bytes(self) -> Interval:
        """What the card must have: the device bytes without the cache that can be released."""
        return self.device_bytes.with_each(self.spare_bytes, sub)

    def each(self, change: Callable[[Interval], Interval]) -> Memory:
        """All counters changed by the same function."""
        names = ("allocated_bytes", "reserved_bytes", "device_bytes", "first_step_bytes")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **changed)

    def as_dict(self) -> dict[str, Any]:
        return {
            **as_json(self, "allocated_bytes", "reserved_bytes", "device_bytes"),
            "first_step": {"device_bytes": self.first_step_bytes.as_dict()},
            **as_json(self, "items"),
            **self.peak_at.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One optimizer step, accumulation included. An MFU always names the peak it was divided by."""

    step_s: Interval
    tokens_per_s: Interval
    mfu: Interval
    hfu: Interval
    peak_flops_per_s: float
    peak_format: str
    bound_by: Bound

    def as_dict(self) -> dict[str, Any]:
        return {
            **as_json(self, "step_s", "tokens_per_s", "mfu", "hfu"),
            "peak_tflops": self.peak_flops_per_s / 1e12,
            **as_json(self, "peak_format", "bound_by"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Something the estimate assumed because it was not specified."""

    name: str
    value: Any
    why: Sentence

    def as_dict(self) -> dict[str, Any]:
        why = {"why": as_asked(self.why), "reason": self.why.as_dict()}
        return {"name": self.name, "value": self.value, **why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A change, what it saves and what it costs, found by estimating again with it."""

    change: dict[str, tuple[Any, Any]]  # config key -> (now, then)
    training: Training  # with the change made
    fits: bool
    verdict: Verdict
    saves_bytes: int  # of the device counter; negative if it needs more
    device_bytes: int  # likely, with the change
    step_time_factor: float
    mfu: float  # likely, with the change
    keeps_effective_batch: bool
    keeps_numerics: bool  # the same sums in the same number formats, up to rounding
    config_only: bool  # lines of the config are enough; otherwise code must be edited too
    note: tuple[Sentence, ...]  # what it does and its side effects

    def says(self) -> Several:
        return Several(self.note, between="; ")

    def as_dict(self) -> dict[str, Any]:
        return {
            "change": {key: list(pair) for key, pair in self.change.items()},
            **as_json(self, "fits", "verdict", "saves_bytes", "device_bytes"),
            "step_time_factor": round(self.step_time_factor, 3),
            "mfu": round(self.mfu, 4),
            **as_json(self, "keeps_effective_batch", "keeps_numerics", "config_only"),
            "note": as_asked(self.says()),
            "note_codes": [one.as_dict() for one in self.note],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Whether it fits, how fast it is, what was assumed, and what to change."""

    gpu: str
    parameters: int
    usable_bytes: int
    memory: Memory
    speed: Speed
    others: Others = NO_OTHERS  # included in the device bytes
    assumed: tuple[Assumption, ...] = ()
    warnings: tuple[Sentence, ...] = ()
    fixes: tuple[Fix, ...] = ()  # if it does not fit or is at risk: what makes it fit
    faster: tuple[Fix, ...] = ()  # if it fits and needs no fix: what raises MFU and still fits
    largest_batch: int | None = None  # of one micro-step; None if not even one sequence fits
    sure_batch: int | None = None  # the largest whose verdict is "fits"; above it is at risk
    active_parameters: int | None = None  # those a token uses, in a mixture of experts; None: all
    sequence_tokens: int = 0  # of an image; 0 if sequences are text

    @property
    def fits(self) -> bool:
        return self.memory.needed_bytes.likely <= self.usable_bytes

    @property
    def short_bytes(self) -> int:
        """What is missing; negative if there is room left."""
        return round(self.memory.needed_bytes.likely) - self.usable_bytes

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.memory.needed_bytes, self.usable_bytes)

    @property
    def chance(self) -> float:
        """Of running out of memory."""
        return chance_of_running_out(self.memory.needed_bytes, self.usable_bytes)

    @property
    def batch_risk(self) -> str:
        return batch_risk(self.sure_batch, self.largest_batch)

    @property
    def images_per_s(self) -> Interval | None:
        """For a vision transformer, whose sequence is an image."""
        tokens = self.sequence_tokens
        return self.speed.tokens_per_s.each(lambda rate: rate / tokens) if tokens else None

    def as_dict(self) -> dict[str, Any]:
        rates = self.speed.as_dict() | (as_json(self, "images_per_s") if self.sequence_tokens else {})
        active = () if self.active_parameters is None else ("active_parameters",)
        return {
            **as_json(self, "fits", "verdict"),
            "chance_of_running_out": round(self.chance, 4),
            **as_json(self, "gpu", "parameters", *active),
            "usable_bytes": self.usable_bytes,
            "short_bytes": max(0, self.short_bytes),
            "other_programs": self.others.as_dict(),
            "memory": self.memory.as_dict(),
            "speed": rates,
            **as_json(self, "assumed"),
            "warnings": [as_asked(warning) for warning in self.warnings],
            "warning_codes": [warning.as_dict() for warning in self.warnings],
            **as_json(self, "fixes", "faster", "largest_batch", "sure_batch"),
        }
