"""The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF.

Names, ranges and defaults are from PyTorch 2.5 to 2.13: c10/core/AllocatorConfig and
c10/cuda/CUDAAllocatorConfig. Settings that affect only pinned host memory or locking change no device byte:
they are accepted, and listed in `notes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from brimful.errors import BadInput, Refused
from brimful.language import Number, Quoted, Sentence, say
from brimful.language.near import similar
from brimful.units import MIB, integer_from_text

# Requests between 1 and 10 MiB are carved from segments of this size, so that they share a cudaMalloc.
LARGE_SEGMENT = 20 * MIB
# `large_segment_size_mb` must exceed the largest request that is carved from such a segment.
MIN_LARGE_SEGMENT_MB = 10
# Sizes from 1 MiB to 64 GiB fall into 16 intervals, one per power of two; the ends include what is outside.
DIVISION_INTERVALS = 16
_FIRST_INTERVAL_BIT = 20

# Accepted and without effect on device bytes, like everything about pinned host memory (`pinned_…`).
_NO_DEVICE_BYTES = {
    "release_lock_on_cudamalloc": say("allocator.concerns_lock"),
    "release_lock_on_hipmalloc": say("allocator.concerns_lock"),
    "throw_on_cudamalloc_oom": say("allocator.concerns_error"),
    "graph_capture_record_stream_reuse": say("allocator.concerns_graph_capture"),
    "expandable_segments_reserve": say("allocator.concerns_address_space"),
    "expandable_segments_reserve_by_class": say("allocator.concerns_address_space"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What PYTORCH_CUDA_ALLOC_CONF can change about device memory. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None  # None: a large segment
    garbage_collection_threshold: float = 0.0
    divisions: tuple[int, ...] = ()  # one per interval from 1 MiB up; empty: round to 512 B only
    large_segment_bytes: int = LARGE_SEGMENT
    memory_fraction: float | None = None  # 1 is no limit, as in newer versions of PyTorch
    notes: tuple[Sentence, ...] = field(default=(), compare=False)

    @staticmethod
    def parse(conf: str) -> Settings:
        """Settings from `key:value,key:value`; '' is PyTorch's default."""
        settings = Settings()
        notes: list[Sentence] = []
        for key, value in _pairs(conf):
            pinned = say("allocator.concerns_pinned") if key.startswith("pinned_") else None
            if (concerns := pinned or _NO_DEVICE_BYTES.get(key)) is not None:
                notes.append(say("allocator.no_device_bytes", key=key, concerns=concerns))
                continue
            if key not in _READERS:
                near = similar(key, _READERS)
                hint = say("allocator.hint_did_you_mean", name=near[0]) if near else None
                said = say("allocator.unknown_option", key=Quoted(key), conf=Quoted(conf[:120]))
                raise BadInput(said, hint=hint)
            settings = replace(settings, **_READERS[key](key, value))
        if (settings.max_split_bytes or settings.large_segment_bytes) < settings.large_segment_bytes:
            raise BadInput(say("allocator.max_split_below_segment", mib=settings.large_segment_bytes // MIB))
        return replace(settings, notes=tuple(notes))

    def __str__(self) -> str:
        """The same settings as a string for PYTORCH_CUDA_ALLOC_CONF; '' for the defaults."""
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_bytes is not None:
            parts.append(f"max_split_size_mb:{self.max_split_bytes // MIB}")
        if self.max_non_split_rounding_bytes is not None:
            parts.append(f"max_non_split_rounding_mb:{self.max_non_split_rounding_bytes // MIB}")
        if self.garbage_collection_threshold:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold:g}")
        if self.divisions:
            parts.append(f"roundup_power2_divisions:{_divisions_text(self.divisions)}")
        if self.large_segment_bytes != LARGE_SEGMENT:
            parts.append(f"large_segment_size_mb:{self.large_segment_bytes // MIB}")
        if self.memory_fraction is not None:
            parts.append(f"per_process_memory_fraction:{self.memory_fraction:g}")
        return ",".join(parts)


def divisions_for(divisions: tuple[int, ...], nbytes: int) -> int:
    """Into how many steps the interval of `nbytes` is divided; 0 and 1: none."""
    interval = nbytes.bit_length() - 1 - _FIRST_INTERVAL_BIT
    return divisions[min(max(interval, 0), DIVISION_INTERVALS - 1)]


def _pairs(conf: str) -> list[tuple[str, str]]:
    """`a:1,b:[x:1,y:2]` as [('a', '1'), ('b', '[x:1,y:2]')]; blanks are ignored, as in PyTorch."""
    if len(conf) > 2000:
        raise BadInput(say("allocator.settings_too_long", length=Number(len(conf))))
    text = re.sub(r"\s+", "", conf)
    pairs = []
    while text:
        match = re.match(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)", text)
        if match is None:
            raise BadInput(say("allocator.settings_unreadable", text=Quoted(text[:60])))
        pairs.append((match[1], match[2]))
        text = text[match.end() :]
    return pairs


def _integer(key: str, value: str, *, at_least: int) -> int:
    number = integer_from_text(value, low=at_least, high=10**15 - 1)
    if number is None:
        raise BadInput(
            say("allocator.not_whole_number", key=key, value=Quoted(value[:40]), at_least=at_least)
        )
    return number


def _fraction(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 < number <= 1.0:
        raise BadInput(say("allocator.fraction_out_of_range", key=key, value=Quoted(value[:40])))
    return number


def _expandable(key: str, value: str) -> dict[str, Any]:
    if value not in ("True", "False"):
        raise BadInput(say("allocator.not_true_or_false", key=key, value=Quoted(value[:40])))
    return {"expandable_segments": value == "True"}


def _mib(field: str, *, at_least: int) -> Callable[[str, str], dict[str, Any]]:
    return lambda key, value: {field: _integer(key, value, at_least=at_least) * MIB}


def _threshold(key: str, value: str) -> dict[str, Any]:
    threshold = _fraction(key, value)
    if threshold == 1.0:
        raise BadInput(say("allocator.threshold_out_of_range", key=key, value=Quoted(value[:40])))
    return {"garbage_collection_threshold": threshold}


def _backend(key: str, value: str) -> dict[str, Any]:
    if value == "native":
        return {}
    if value in ("cudaMallocAsync", "hipMallocAsync"):
        raise Refused(
            say("allocator.backend_not_simulated", key=key, value=value),
            code="backend_not_simulated",
        )
    raise BadInput(say("allocator.unknown_backend", value=Quoted(value[:40])))


def _divisions(key: str, value: str) -> dict[str, Any]:
    """`4`, or `[256:1,512:2,>:4]`: sizes in MiB, each entry for one power of two.

    The first entry also applies to everything below it, `>` to everything above the last one; a power of two
    that is not listed is not divided.
    """
    if not value.startswith("["):
        return {"divisions": (_division(key, value, at_least=1),) * DIVISION_INTERVALS}
    divisions = [0] * DIVISION_INTERVALS
    last = 0
    for number, entry in enumerate(value[1:-1].split(",")):
        size, colon, steps = entry.partition(":")
        if not colon:
            raise BadInput(say("allocator.divisions_entry", key=key, entry=Quoted(entry[:40])))
        parts = _division(key, steps, at_least=0)
        if size == ">":
            divisions[last:] = [parts] * (DIVISION_INTERVALS - last)
            continue
        mib = _integer(key, size, at_least=1)
        if mib & (mib - 1):
            raise BadInput(say("allocator.interval_not_power_of_two", key=key, mib=mib))
        last = min(mib.bit_length() - 1, DIVISION_INTERVALS - 1)
        if number == 0:
            divisions[:last] = [parts] * last
        divisions[last] = parts
    return {"divisions": tuple(divisions)}


def _division(key: str, value: str, *, at_least: int) -> int:
    parts = _integer(key, value, at_least=at_least)
    if parts & (parts - 1):
        raise BadInput(say("allocator.divisions_not_power_of_two", key=key, parts=parts))
    return parts


def _divisions_text(divisions: tuple[int, ...]) -> str:
    if len(set(divisions)) == 1 and divisions[0]:
        return str(divisions[0])
    return "[" + ",".join(f"{1 << i}:{parts}" for i, parts in enumerate(divisions)) + "]"


_READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "expandable_segments": _expandable,
    "max_split_size_mb": _mib("max_split_bytes", at_least=LARGE_SEGMENT // MIB),
    "max_non_split_rounding_mb": _mib("max_non_split_rounding_bytes", at_least=LARGE_SEGMENT // MIB),
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "large_segment_size_mb": _mib("large_segment_bytes", at_least=MIN_LARGE_SEGMENT_MB + 1),
    "per_process_memory_fraction": lambda key, value: {"memory_fraction": _fraction(key, value)},
    "backend": _backend,
}
