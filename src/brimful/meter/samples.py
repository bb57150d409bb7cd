"""Samples: what was measured, and the line of JSON for each of them in a file.

A file of samples is JSON lines. Each line has `kind`: `run` once at the beginning, then `step` for every
optimizer step, `gpu` for every look at a card, and `end` when the run closed normally. A reader skips kinds
and fields it does not know, so that a newer writer never breaks an older reader.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from brimful.errors import BadInput, NotFound
from brimful.files import read_given
from brimful.language import Plain, Sentence, os_words, say, verbatim
from brimful.language.catalog import is_held

VERSION = 1
PHASES = ("data", "forward", "backward", "optimizer", "other")
_MOST_BYTES = 1 << 30  # of a file of samples: a million steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """What does not change during a run: which program, which card, what a step should cost."""

    kind: ClassVar[str] = "run"

    at_s: float  # UTC seconds
    pid: int
    host: str
    command: tuple[str, ...] = ()
    job: str | None = None  # the brimful job, if it runs under one
    rank: int = 0
    world: int = 1
    model: str = ""
    parameters: int | None = None
    tokens_per_step: int | None = None  # of this process
    flops_per_step: float | None = None  # of this process, as MFU counts them
    recompute_flops: float = 0.0  # of this process and step, added by HFU
    flops_source: str = ""  # "formula: NAME", "counted", "declared" or "no_flops": see source_said
    device: str = "cpu"  # as PyTorch names it: cuda:0
    gpu: str | None = None  # as the driver names it
    gpu_uuid: str | None = None
    peak_flops_per_s: float | None = None
    peak_format: str | None = None  # bf16, fp16, tf32, fp32, fp8
    peak_source: str = ""  # "catalog: NAME", "declared" or "no_peak: NAME"
    torch: str = ""  # its version
    estimate: dict[str, Any] | None = None  # an `Estimate.as_dict()`, if one was given
    more: dict[str, Any] = field(default_factory=dict)  # what the caller adds: batch_size, dtype, …


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One optimizer step as the loop saw it. The five parts sum to `step_s`, which excludes pauses."""

    kind: ClassVar[str] = "step"

    at_s: float
    step: int
    step_s: float
    warmup: bool = False  # the first steps: allocation, compilation, autotuning; left out of every mean
    clock: str = "host"  # "cuda": the parts are device times, by events; "host": times of the program
    data_s: float = 0.0  # waiting for the next batch
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    other_s: float = 0.0
    host_s: dict[str, float] = field(default_factory=dict)  # the same parts by the program's clock
    pauses_s: dict[str, float] = field(default_factory=dict)  # "evaluation", "checkpoint", … before this step
    syncs: int | None = None  # times the program waited for the device: .item(), .cpu(), .tolist()
    sync_s: float | None = None  # how long it waited in them
    comm_s: float | None = None  # in collectives, as far as the program sees them
    micro_steps: int = 0  # forward passes
    tokens: int | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None  # since the process began, or since it was reset
    peak_reserved_bytes: int | None = None
    fragmentation: float | None = None  # share of the reserved bytes without a tensor: 0–1
    # In this step: cudaMalloc failed, the cache was flushed, and it went on.
    malloc_retries: int | None = None
    step_s_vs_estimate: float | None = None  # measured / likely
    allocated_vs_estimate: float | None = None
    reserved_vs_estimate: float | None = None

    @property
    def parts_s(self) -> dict[str, float]:
        return {phase: getattr(self, f"{phase}_s") for phase in PHASES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """A process that holds memory of a card."""

    pid: int
    used_bytes: int | None = None  # None: the driver does not say (MIG, containers, no permission)
    kind: str = "compute"  # or "graphics"
    name: str = ""  # the program; empty if it cannot be seen
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at one card, or at one MIG slice of it, by its driver. None: the card does not report it."""

    kind: ClassVar[str] = "gpu"

    at_s: float
    index: int
    mig: int | None = None  # which slice of the card; None for the whole card
    uuid: str = ""
    name: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None  # by every program; without what the driver keeps for itself
    memory_reserved_bytes: int | None = None  # by the driver
    busy_frac: float | None = None  # of the time some kernel ran: not how much work it did
    memory_busy_frac: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    fan_frac: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_hz: float | None = None
    throttle: tuple[str, ...] = ()  # why the clock is reduced; idle is not a throttle
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded
    processes: tuple[ProcessSample, ...] = ()
    gaps: dict[str, str] = field(default_factory=dict)  # field -> the NVML error that left it None
    problem: str = ""  # the NVML error, if the card does not answer; then nothing else is known


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSample:
    """How a run ended, and its means: steady steps only, without pauses."""

    kind: ClassVar[str] = "end"

    at_s: float
    steps: int
    steady_steps: int  # the steps in the means
    wall_s: float
    step_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    parts_s: dict[str, float] = field(default_factory=dict)  # mean of each part
    pauses_s: dict[str, float] = field(default_factory=dict)  # sum of each kind
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    malloc_retries: int | None = None
    error: str = ""  # the type of the exception that ended it


def source_said(source: str) -> Sentence:
    """Where FLOPs or a peak are from. A file of an older version has text instead of a code."""
    kind, _, name = source.partition(": ")
    return say(f"meter.source_{kind}", name=name) if is_held(f"meter.source_{kind}") else verbatim(source)


Sample = RunSample | StepSample | GpuSample | EndSample
_KINDS: dict[str, type[Any]] = {c.kind: c for c in (RunSample, StepSample, GpuSample, EndSample)}


def as_dict(sample: Sample) -> dict[str, Any]:
    """A sample as JSON: `kind` and every field, in the order of the class."""
    return {"kind": sample.kind, **asdict(sample)}


def as_line(sample: Sample) -> str:
    """One line of a file. Fields with their default value are left out: in a long run, most have it."""
    said: dict[str, Any] = {"kind": sample.kind}
    if isinstance(sample, RunSample):
        said["version"] = VERSION
    for name, default in _DEFAULTS[sample.kind]:
        value = getattr(sample, name)
        if value != default:
            said[name] = value
    return _encode(said)


def _default(each: Field[Any]) -> object:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _plain(value: object) -> object:
    assert isinstance(value, ProcessSample), type(value)
    return asdict(value)


# Built once: a line is written at every step of a training run.
_DEFAULTS = {kind: [(each.name, _default(each)) for each in fields(cls)] for kind, cls in _KINDS.items()}
_encode = json.JSONEncoder(default=_plain, allow_nan=False).encode


def from_dict(found: Mapping[str, Any]) -> Sample | None:
    """The sample in a line; None if its kind is unknown. Raises ValueError on a bad one."""
    kind = _KINDS.get(str(found.get("kind")))
    if kind is None:
        return None
    sample: Sample = kind(**_fields(kind, found))
    return sample


def _fields(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    use: dict[str, Any] = {}
    for each in fields(kind):
        if each.name in found:
            use[each.name] = _checked(each.name, str(each.type), found[each.name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(say("meter.field_missing", field=each.name))
    return use


def _checked(name: str, hint: str, value: object) -> object:
    """The value, if it has the declared type of the field."""
    if value is None and "None" in hint:
        return None
    base = hint.removesuffix(" | None")
    if base == "tuple[ProcessSample, ...]" and isinstance(value, list):
        return tuple(
            ProcessSample(**_fields(ProcessSample, each)) for each in value if isinstance(each, dict)
        )
    if base == "tuple[str, ...]" and isinstance(value, list):
        return tuple(map(str, value))
    if base == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    plain = {"int": int, "str": str, "bool": bool}.get(base, dict if base.startswith("dict") else None)
    if plain is not None and isinstance(value, plain) and (plain is bool or not isinstance(value, bool)):
        return value
    raise ValueError(say("meter.wrong_type", field=name, value=f"{value!r:.60}", type=base))


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file. A last line truncated by a crash ends it; other damage is reported."""

    def too_large(size: int) -> BadInput:
        return BadInput(say("meter.samples_too_big", name=path.name, bytes=size, most=_MOST_BYTES))

    try:
        lines = io.BytesIO(read_given(path, most=_MOST_BYTES, too_large=too_large)).readlines()
        yield from _read(lines, name=path.name)
    except FileNotFoundError:
        raise NotFound(say("meter.no_samples", path=path)) from None
    except OSError as error:
        raise BadInput(say("meter.samples_unreadable", path=path, error=os_words(error))) from error


def _read(lines: list[bytes], *, name: str) -> Iterator[Sample]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            sample = from_dict(found) if isinstance(found, dict) else None
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                return
            said = say("meter.bad_sample_line", line=Plain(number), name=name, why=_why(error))
            raise BadInput(said, code="bad_samples") from error
        if sample is not None:
            yield sample


def _why(error: Exception) -> object:
    """Our own sentence if it is one; else the exception's own text."""
    said = error.args[0] if error.args else ""
    return said if isinstance(said, Sentence) else str(error)
