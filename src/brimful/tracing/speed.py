"""Step time and MFU of any traced program: each op at the card's roofline, never faster than launches.

    op        max(FLOPs / rate its kind reaches, bytes read and written / bandwidth)
    step      the sum over ops, or calls · time to launch a kernel if that is longer

The rates of a card and the interval come from the closed form's own functions (`roofline.py`); that they hold
for other kinds of models is assumed, and the interval is widened for it.
Leaves out: time between GPUs, data loading, and what overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from brimful.fit.roofline import (
    FASTER,
    RATES,
    SLOWER,
    attention_flops_per_s,
    matmul_flops_per_s,
    moved_bytes_per_s,
)
from brimful.specs.estimate import Bound, Interval
from brimful.specs.gpu import Gpu

_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp32"}
_WIDER = 1.25  # the closed form's interval was measured only on transformers


@dataclass(slots=True)
class Cost:
    """All calls of one op in one number format."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    recomputed_flops: int = 0  # part of `flops` that checkpointing repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One step of a traced program on one card."""

    step_s: Interval
    mfu: Interval
    flops: int
    moved_bytes: int
    kernels: int
    peak_flops_per_s: float
    peak_format: str
    bound_by: Bound

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "peak_tflops": found.pop("peak_flops_per_s") / 1e12}


def pace(costs: Mapping[tuple[str, str], Cost], gpu: Gpu, *, tf32: bool) -> Pace | None:
    """The time of one step from its ops; None if nothing was computed."""
    if not costs:
        return None
    compute_s = move_s = 0.0
    for (op, dtype), cost in costs.items():
        flops_s = cost.flops / _rate(gpu, op, _format(gpu, dtype, tf32=tf32))
        bytes_s = cost.bytes / moved_bytes_per_s(gpu)
        if flops_s >= bytes_s:
            compute_s += flops_s
        else:
            move_s += bytes_s
    kernels = sum(cost.calls for cost in costs.values())
    launch_s = kernels * RATES.launch_s
    likely = max(compute_s + move_s, launch_s)
    bound_by: Bound = "compute" if compute_s >= move_s else "bandwidth"
    flops = sum(cost.flops - cost.recomputed_flops for cost in costs.values())
    heaviest = max(costs.items(), key=lambda pair: pair[1].flops)[0][1]
    number = _format(gpu, heaviest, tf32=tf32)
    peak = gpu.dense_flops_per_s[number]
    least = min(likely, max(likely * FASTER / _WIDER, flops / peak))
    step = Interval(least, likely, likely * SLOWER * _WIDER)
    return Pace(
        step_s=step,
        mfu=step.rate(flops / peak, most=1.0),
        flops=flops,
        moved_bytes=sum(cost.bytes for cost in costs.values()),
        kernels=kernels,
        peak_flops_per_s=peak,
        peak_format=number,
        bound_by="launch" if launch_s > compute_s + move_s else bound_by,
    )


def _format(gpu: Gpu, dtype: str, *, tf32: bool) -> str:
    number = _FORMATS.get(dtype, "fp32")
    if number == "fp32" and tf32 and "tf32" in gpu.dense_flops_per_s:
        number = "tf32"
    return number if number in gpu.dense_flops_per_s else "fp32"


def _rate(gpu: Gpu, op: str, number: str) -> float:
    return attention_flops_per_s(gpu, number) if "attention" in op else matmul_flops_per_s(gpu, number)
