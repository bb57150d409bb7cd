"""Your own measurements correct our estimates: one factor for each counter, and one for speed.

A factor is the median of measured / predicted over the runs that read that counter. It is used only where it
lowers the error of runs it has not seen: each run is predicted with the factor of all the others, and the
errors with and without are compared. A wrong unit or a misread row stands far off and is set aside by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from brimful.errors import BadInput, Refused, WorldFailed
from brimful.predict.score import COUNTERS, Scored
from brimful.specs.estimate import Estimate, Interval, Item, Memory, Speed

SPEED = "tokens_per_s"
SUBJECTS = (*COUNTERS.values(), SPEED)
LEAST_RUNS = 3
# A run further off than this was not the run its row describes: a unit, a counter or a shape is wrong.
FARTHEST = 3.0
LEAST_GAIN = 0.005  # a correction worth less than half a point is noise
MAX_BYTES = 1 << 20
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Measured / predicted of one counter, or of speed, over a user's own runs."""

    factor: float  # the median
    low: float  # the least and the most of the runs
    high: float
    runs: int
    error_before: float  # median absolute error as predicted
    error_after: float  # the same, each run corrected by the others

    @property
    def helps(self) -> bool:
        return self.error_before - self.error_after > LEAST_GAIN

    def as_dict(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "low": self.low,
            "high": self.high,
            "runs": self.runs,
            "error_before": self.error_before,
            "error_after": self.error_after,
            "helps": self.helps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The factors that help, by counter; what `brimful fit` applies."""

    factors: Mapping[str, Factor]
    gpus: tuple[str, ...] = ()  # on which they were measured

    @property
    def runs(self) -> int:
        return max((factor.runs for factor in self.factors.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything a table of runs told: the factors found, whether or not they help, and what was left out."""

    factors: Mapping[str, Factor]
    too_few: Mapping[str, int] = field(
        default_factory=dict
    )  # counter -> runs, where they are below LEAST_RUNS
    set_aside: Sequence[tuple[str, str, float]] = ()  # id, counter, measured / predicted
    gpus: tuple[str, ...] = ()

    @property
    def correction(self) -> Correction:
        helpful = {name: factor for name, factor in self.factors.items() if factor.helps}
        return Correction(factors=helpful, gpus=self.gpus)


# -- fitting -----------------------------------------------------------------------------------------------


def calibrate(scored: Iterable[Scored]) -> Calibration:
    """Factors from rows that were predicted and measured."""
    ratios: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    aside: list[tuple[str, str, float]] = []
    gpus: set[str] = set()
    for each in scored:
        for name, ratio in _ratios(each):
            if 1 / FARTHEST <= ratio <= FARTHEST:
                ratios[name].append(ratio)
                gpus.add(each.run.gpu.name if each.run else "")
            else:
                aside.append((each.row["id"], name, ratio))
    return Calibration(
        factors={name: factor_of(found) for name, found in ratios.items() if len(found) >= LEAST_RUNS},
        too_few={name: len(found) for name, found in ratios.items() if 0 < len(found) < LEAST_RUNS},
        set_aside=tuple(aside),
        gpus=tuple(sorted(gpus)),
    )


def _ratios(each: Scored) -> list[tuple[str, float]]:
    """Measured / predicted of what this row measured."""
    found = []
    if each.memory_error is not None:
        found.append((COUNTERS[each.row["mem_kind"]], 1 / (1 + each.memory_error)))
    if each.rate_error is not None:
        found.append((SPEED, 1 / (1 + each.rate_error)))
    return found


def factor_of(ratios: Sequence[float]) -> Factor:
    """The factor these ratios give, and what it is worth on runs it has not seen."""
    assert len(ratios) >= 2
    after = []
    for i, ratio in enumerate(ratios):
        others = median([*ratios[:i], *ratios[i + 1 :]])
        after.append(abs(others / ratio - 1))
    return Factor(
        factor=median(ratios),
        low=min(ratios),
        high=max(ratios),
        runs=len(ratios),
        error_before=median(abs(1 / ratio - 1) for ratio in ratios),
        error_after=median(after),
    )


def enough(calibration: Calibration) -> None:
    """Refuse where there is nothing to fit, and say what is missing."""
    if calibration.factors:
        return
    found = ", ".join(f"{runs} of {name}" for name, runs in calibration.too_few.items()) or "none"
    raise Refused(
        f"too few measured runs to correct anything: {found}; {LEAST_RUNS} of one kind are needed",
        hint="add rows with peak_mem_gib and mem_kind, or tokens_per_s_per_gpu, from runs of your own",
    )


# -- applying ----------------------------------------------------------------------------------------------


def calibrated(estimate: Estimate, correction: Correction | None) -> Estimate:
    """The estimate as your own runs correct it. Everything else about it stays."""
    if correction is None or not correction.factors:
        return estimate
    factors = {name: factor.factor for name, factor in correction.factors.items()}
    return replace(
        estimate,
        memory=_memory(estimate.memory, factors, correction),
        speed=_speed(estimate.speed, factors.get(SPEED, 1.0)),
    )


def _memory(memory: Memory, factors: Mapping[str, float], correction: Correction) -> Memory:
    """Each counter by its own factor; one nobody measured moves by as many bytes as the one within it.

    Other programs on the card are what the user said they are, and are not corrected.
    """
    other = sum(item.bytes for item in memory.items if item.name == "other programs")
    allocated = _scaled(memory.allocated_bytes, factors.get("allocated", 1.0))
    moved = allocated.likely - memory.allocated_bytes.likely
    reserved = (
        _scaled(memory.reserved_bytes, factors["reserved"])
        if "reserved" in factors
        else _moved(memory.reserved_bytes, moved)
    )
    reserved = _at_least(reserved, allocated)
    moved = reserved.likely - memory.reserved_bytes.likely
    device, first = memory.device_bytes, memory.first_step_bytes
    if "device" in factors:
        device, first = (
            _moved(_scaled(_moved(counter, -other), factors["device"]), other) for counter in (device, first)
        )
    else:
        device, first = _moved(device, moved), _moved(first, moved)
    device = _whole(_at_least(device, _moved(reserved, other)))
    change = round(device.likely - memory.device_bytes.likely)
    why = f"as {correction.runs} runs of your own say (`brimful calibrate`)"
    items = (*memory.items, Item("your calibration", change, why)) if change else memory.items
    return replace(
        memory,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        first_step_bytes=_whole(first),
        items=items,
    )


def _speed(speed: Speed, factor: float) -> Speed:
    return replace(
        speed,
        step_s=_scaled(speed.step_s, 1 / factor),
        tokens_per_s=_scaled(speed.tokens_per_s, factor),
        mfu=_scaled(speed.mfu, factor, most=1.0),
        hfu=_scaled(speed.hfu, factor, most=1.0),
    )


def _scaled(interval: Interval, factor: float, most: float | None = None) -> Interval:
    ends = (interval.low * factor, interval.likely * factor, interval.high * factor)
    return Interval(*ends) if most is None else Interval(*(min(most, end) for end in ends))


def _moved(interval: Interval, amount: float) -> Interval:
    return Interval(*(max(0, end + amount) for end in (interval.low, interval.likely, interval.high)))


def _at_least(outer: Interval, inner: Interval) -> Interval:
    """Counters nest whatever their factors say."""
    return Interval(max(outer.low, inner.low), max(outer.likely, inner.likely), max(outer.high, inner.high))


def _whole(interval: Interval) -> Interval:
    return Interval(round(interval.low), round(interval.likely), round(interval.high))


# -- keeping -----------------------------------------------------------------------------------------------


def calibration_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the correction is kept: the user's config folder (XDG base directories)."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    base = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return base / "brimful" / "calibration.json"


def write_correction(path: Path, correction: Correction) -> None:
    """Beside and then over: a reader meets the old file or the new one, never half of one."""
    data = {
        "version": VERSION,
        "gpus": list(correction.gpus),
        "factors": {name: factor.as_dict() for name, factor in correction.factors.items()},
    }
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise WorldFailed(
            f"cannot write {path}: {error.strerror}", hint="name another folder in XDG_CONFIG_HOME"
        ) from error


def load_correction(path: Path) -> Correction | None:
    """What was kept, or None where nothing was."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_BYTES:
            raise _unreadable(path, f"it has {path.stat().st_size:,} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise _unreadable(path, f"it has version {data['version']!r}, not {VERSION}")
        factors = {name: _factor(values) for name, values in data["factors"].items() if name in SUBJECTS}
        return Correction(factors=factors, gpus=tuple(map(str, data["gpus"])))
    except OSError as error:
        raise _unreadable(path, error.strerror or "unreadable") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {str(error)[:80]}") from error


def _factor(values: Mapping[str, Any]) -> Factor:
    names = ("factor", "low", "high", "error_before", "error_after")
    numbers = {name: float(values[name]) for name in names}
    if not 1 / FARTHEST <= numbers["factor"] <= FARTHEST:
        raise ValueError(f"a factor of {numbers['factor']}")
    return Factor(**numbers, runs=int(values["runs"]))


def _unreadable(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} is not a calibration: {why}",
        hint="remove it, or write it again with `brimful calibrate --write`",
    )
