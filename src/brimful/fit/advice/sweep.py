"""Sweep: memory and speed over a range of one setting, the largest value that fits, and the knee.

The knee is where more of it stops paying: the smallest value within a twentieth of the best rate. Below it
the GPU waits for something that a step costs once, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from brimful.configs.reading import Reading
from brimful.errors import BadInput
from brimful.fit.correction import Correction
from brimful.fit.fit import predictor
from brimful.language import Number, Percent, Plain, Quoted, Sentence, Size, say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu

Swept = Literal["batch_size", "seq_len"]

_FIELDS: dict[Swept, str] = {"batch_size": "batch_size", "seq_len": "sequence_tokens"}
_HIGHEST: dict[Swept, int] = {"batch_size": 1_000_000, "seq_len": 10_000_000}
_MOST_POINTS = 512
_NEAR = 0.95  # of the best rate: formulas are not more precise than a twentieth

# First what stays the same at any batch; then what grows with it.
GROUPS: dict[str, tuple[str, ...]] = {
    "states": ("weight", "gradients", "optimizer_state", "adapter", "ddp_buckets", "gathered_weights"),
    "activations": ("activations", "temporaries"),
    "logits": ("logits",),
    "cache": ("allocator_cache", "workspaces"),
    "outside": ("cuda_context", "other_programs"),
}
TITLES = {  # in the catalogs, from the bottom of a chart up
    "states": "gpu.states",
    "activations": "gpu.activations",
    "logits": "gpu.logits_loss",
    "cache": "gpu.allocator_cache",
    "outside": "gpu.outside_pytorch",
    "rest": "gpu.rest",
}


def group_of(part: str) -> str:
    """The group of a part by its code."""
    return next((group for group, names in GROUPS.items() if part.startswith(names)), "rest")


@dataclass(frozen=True, slots=True)
class Point:
    value: int
    estimate: Estimate

    @property
    def device_bytes(self) -> int:
        return round(self.estimate.memory.device_bytes.likely)

    @property
    def tokens_per_s(self) -> float:
        return self.estimate.speed.tokens_per_s.likely

    @property
    def mfu(self) -> float:
        return self.estimate.speed.mfu.likely

    def groups(self) -> dict[str, int]:
        """Bytes by group; parts without a group are 'rest'."""
        sums = dict.fromkeys([*GROUPS, "rest"], 0)
        for item in self.estimate.memory.items:
            sums[group_of(item.code)] += item.bytes
        return sums

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "fits": self.estimate.fits,
            "verdict": self.estimate.verdict,
            "device_bytes": self.estimate.memory.device_bytes.as_dict(),
            "groups": self.groups(),
            "mfu": self.mfu,
            "tokens_per_s": self.tokens_per_s,
            "bound_by": self.estimate.speed.bound_by,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    swept: Swept
    points: tuple[Point, ...]
    usable_bytes: int
    largest: int | None  # the largest swept value that fits, even at risk
    sure: int | None  # the largest that fits without risk
    knee: int | None  # the smallest value near the best rate; None if the rate does not rise

    def says(self) -> tuple[Sentence, ...]:
        return (*_largest_says(self), *_knee_says(self))


def parse_range(text: str, swept: Swept) -> list[int]:
    """'1:64', '1:64:8', '1,2,4,8' or '16': ascending whole numbers."""
    parts = text.replace(" ", "").split(":") if ":" in text else text.replace(" ", "").split(",")
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 9]
    high = _HIGHEST[swept]
    if (
        len(numbers) != len(parts)
        or not all(1 <= number <= high for number in numbers)
        or len(parts) > _MOST_POINTS
    ):
        raise BadInput(say("fit.not_a_range_of", text=Quoted(text[:40]), swept=swept, high=Number(high)))
    if ":" not in text:
        return sorted(set(numbers))
    if len(numbers) > 3:
        raise BadInput(say("fit.not_a_range", text=Quoted(text[:40])))
    first, last = numbers[:2]
    if first > last:
        raise BadInput(
            say("fit.range_backwards", text=Quoted(text[:40]), first=Plain(first), last=Plain(last))
        )
    step = numbers[2] if len(numbers) == 3 else 1
    values = range(first, last + 1, step)
    if len(values) > _MOST_POINTS:
        least = -(-(last - first + 1) // _MOST_POINTS)
        raise BadInput(
            say(
                "fit.too_many_values",
                text=text,
                values=Number(len(values)),
                most=_MOST_POINTS,
                first=Plain(first),
                last=Plain(last),
                least=Plain(least),
            )
        )
    return list(values)


def sweep(
    reading: Reading,
    gpu: Gpu,
    swept: Swept,
    values: Sequence[int],
    other_bytes: int | None = None,
    *,
    correction: Correction | None,
) -> Sweep:
    """Estimates over the values, everything else as configured."""
    if swept == "seq_len" and reading.model.images is not None:
        raise BadInput(
            say(
                "fit.length_of_images",
                name=reading.model.name,
                tokens=reading.model.images.tokens,
            )
        )
    predict = predictor(reading, gpu, other_bytes, correction)

    def at(value: int) -> Estimate:
        changed: dict[str, Any] = {_FIELDS[swept]: value}
        return predict(replace(reading.training, **changed))

    points = tuple(Point(value, at(value)) for value in values)
    fitting = [point.value for point in points if point.estimate.fits]
    return Sweep(
        swept=swept,
        points=points,
        usable_bytes=gpu.memory_bytes,
        largest=max(fitting, default=None),
        sure=max((point.value for point in points if point.estimate.verdict == "fits"), default=None),
        knee=_knee(points),
    )


def _knee(points: Sequence[Point]) -> int | None:
    best = max(point.tokens_per_s for point in points)
    if points[0].tokens_per_s >= _NEAR * best:
        return None
    return next(point.value for point in points if point.tokens_per_s >= _NEAR * best)


def _largest_says(sweep: Sweep) -> list[Sentence]:
    first, last = sweep.points[0], sweep.points[-1]
    point = next((point for point in sweep.points if point.value == sweep.largest), first)
    values = {
        "name": sweep.swept,
        "value": point.value,
        "size": Size(point.device_bytes),
        "usable": Size(sweep.usable_bytes),
    }
    if sweep.largest is None:
        said = [say("fit.smallest_does_not_fit", **values)]
    else:
        whole = all(point.estimate.fits for point in sweep.points)  # then the range ended, not the memory
        said = [say("fit.all_fit", **values) if whole else say("fit.largest_fits", **values)]
        if sweep.sure is None:
            said.append(say("fit.at_risk_from", name=sweep.swept, value=first.value))
        elif sweep.sure < sweep.largest:
            said.append(say("fit.at_risk_above", name=sweep.swept, value=sweep.sure))
    if last.value > first.value:
        each = (last.device_bytes - first.device_bytes) / (last.value - first.value)
        said.append(
            say(
                "fit.each_costs" if sweep.swept == "batch_size" else "fit.each_costs.seq_len",
                each=Size(each),
                fixed=Size(max(0, first.device_bytes - each * first.value)),
            )
        )
    return said


def _knee_says(sweep: Sweep) -> list[Sentence]:
    first, last = sweep.points[0], sweep.points[-1]
    if sweep.knee is None:
        if sweep.swept == "seq_len" and last.tokens_per_s < _NEAR * first.tokens_per_s:
            return [
                say(
                    "fit.no_knee_lengths",
                    first=Number(first.tokens_per_s),
                    last=Number(last.tokens_per_s),
                )
            ]
        return [
            say(
                "fit.no_knee",
                value=first.value,
                mfu=Percent(first.mfu),
            )
        ]
    at = next(point for point in sweep.points if point.value == sweep.knee)
    slow = {"launch": say("fit.knee_launches"), "link": say("fit.knee_link")}  # why the small end is slow
    said = [
        say(
            "fit.knee",
            value=sweep.knee,
            mfu=Percent(at.mfu),
        ),
        slow.get(first.estimate.speed.bound_by, say("fit.knee_fixed_costs")),
    ]
    if sweep.largest is not None and sweep.largest < sweep.knee:
        said.append(say("fit.full_before_knee"))
    return said
