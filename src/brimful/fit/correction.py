"""A user's own correction of our estimates: what it is, how it is applied, and where it is stored.

`brimful runs calibrate` makes it (calibrate.py) and `brimful fit` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, WorldFailed
from brimful.files import write_whole
from brimful.language import Plain, Quoted, Sentence, os_words, say, verbatim
from brimful.specs.estimate import Estimate, Interval, Item, Memory, Speed

SPEED = "tokens_per_s"
SUBJECTS = ("allocated", "reserved", "device", SPEED)
# A run further off than this does not match its row: a unit, a counter or a shape is wrong.
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
    error_after: float  # the same, with each run corrected by the others

    @property
    def helps(self) -> bool:
        return self.error_before - self.error_after > LEAST_GAIN

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "helps": self.helps}


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The factors that help, by counter; what `brimful fit` applies."""

    factors: Mapping[str, Factor]
    gpus: tuple[str, ...] = ()  # where they were measured

    @property
    def runs(self) -> int:
        return max((factor.runs for factor in self.factors.values()), default=0)

    def covers(self, gpu: str) -> bool:
        """Whether it was fitted on this card. A correction for one card says nothing about another."""
        return gpu in self.gpus

    def note(self, gpu: str) -> Sentence:
        """One sentence for readers of this card's estimate."""
        cards = ", ".join(self.gpus) or say("fit.no_card")
        if not self.covers(gpu):
            return say("fit.not_corrected", cards=cards, gpu=gpu)
        parts = ", ".join(f"{name} x{factor.factor:.3g}" for name, factor in self.factors.items())
        return say("fit.corrected", n=self.runs, cards=cards, parts=parts)


# -- applying ----------------------------------------------------------------------------------------------


def calibrated(estimate: Estimate, correction: Correction | None) -> Estimate:
    """The estimate, corrected by your own runs on the same card. Everything else about it stays."""
    if correction is None or not correction.factors or not correction.covers(estimate.gpu):
        return estimate
    factors = {name: factor.factor for name, factor in correction.factors.items()}
    return replace(
        estimate,
        memory=_memory(estimate.memory, factors, correction),
        speed=_speed(estimate.speed, factors.get(SPEED, 1.0)),
    )


def _memory(memory: Memory, factors: Mapping[str, float], correction: Correction) -> Memory:
    """Each counter by its own factor; an unmeasured one moves by as many bytes as the counter within it.

    Memory of other programs on the card is as the user stated, and is not corrected.
    """
    other = sum(item.bytes for item in memory.items if item.code == "other_programs")
    allocated = _scaled(memory.allocated_bytes, factors.get("allocated", 1.0))
    moved = allocated.likely - memory.allocated_bytes.likely
    reserved = (
        _scaled(memory.reserved_bytes, factors["reserved"])
        if "reserved" in factors
        else _moved(memory.reserved_bytes, moved)
    )
    reserved = reserved.with_each(allocated, max)  # counters nest, whatever their factors are
    moved = reserved.likely - memory.reserved_bytes.likely
    device, first = memory.device_bytes, memory.first_step_bytes
    if "device" in factors:
        device, first = (
            _moved(_scaled(_moved(counter, -other), factors["device"]), other) for counter in (device, first)
        )
    else:
        device, first = _moved(device, moved), _moved(first, moved)
    device = device.with_each(_moved(reserved, other), max).each(round)
    change = round(device.likely - memory.device_bytes.likely)
    why = say("fit.why_calibration", n=correction.runs)
    items = (*memory.items, Item("calibration", change, why)) if change else memory.items
    return replace(
        memory,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        first_step_bytes=first.each(round),
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


def _scaled(interval: Interval, factor: float, most: float = inf) -> Interval:
    return interval.each(lambda end: min(most, end * factor))


def _moved(interval: Interval, amount: float) -> Interval:
    return interval.each(lambda end: max(0, end + amount))


# -- keeping -----------------------------------------------------------------------------------------------


def calibration_path(environment: Mapping[str, str]) -> Path:
    """Where the correction is kept: the user's config folder (XDG base directories)."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    base = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return base / "brimful" / "calibration.json"


def write_correction(path: Path, correction: Correction) -> None:
    import json

    data = {
        "version": VERSION,
        "gpus": list(correction.gpus),
        "factors": {name: factor.as_dict() for name, factor in correction.factors.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise WorldFailed(say("fit.cannot_write_calibration", path=path, error=os_words(error))) from error


def load_correction(path: Path) -> Correction | None:
    """What `brimful runs calibrate --write` stored, or None."""
    try:
        if not path.is_file():
            return None
        import json

        if path.stat().st_size > MAX_BYTES:
            raise _unreadable(path, say("fit.calibration_bytes", n=path.stat().st_size))
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            why = say("fit.calibration_version", found=Quoted(data["version"]), known=Plain(VERSION))
            raise _unreadable(path, why)
        factors = {name: _factor(values) for name, values in data["factors"].items() if name in SUBJECTS}
        return Correction(factors=factors, gpus=tuple(map(str, data["gpus"])))
    except OSError as error:
        raise _unreadable(path, os_words(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, verbatim(f"{type(error).__name__}: {str(error)[:80]}")) from error


def _factor(values: Mapping[str, Any]) -> Factor:
    names = ("factor", "low", "high", "error_before", "error_after")
    numbers = {name: float(values[name]) for name in names}
    if not 1 / FARTHEST <= numbers["factor"] <= FARTHEST:
        raise ValueError(f"a factor of {numbers['factor']}")
    return Factor(**numbers, runs=int(values["runs"]))


def _unreadable(path: Path, why: Sentence) -> BadInput:
    return BadInput(say("fit.not_calibration", path=path, why=why))
