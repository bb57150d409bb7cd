"""Which peak an MFU is divided by: this card's own, in the number format of the run's matmuls."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.errors import BadInput, NotFound
from brimful.fit.roofline import peak_format
from brimful.language import say
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.training import Dtype, Training
from brimful.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """FLOPs per second, their number format, and their source; or why there is none."""

    flops_per_s: float | None
    format: str | None
    source: str


def declared_peak(flops_per_s: float) -> Peak:
    if not 1e6 <= flops_per_s <= 1e19:
        raise BadInput(say("meter.peak_out_of_range", flops_per_s=f"{flops_per_s:g}"))
    return Peak(flops_per_s=float(flops_per_s), format=None, source="declared")


def no_peak(name: str) -> Peak:
    """For a device or card whose peak is unknown."""
    return Peak(flops_per_s=None, format=None, source=f"no_peak: {name}")


def peak_of(card: str, *, memory_bytes: int | None, dtype: Dtype, tf32: bool) -> Peak:
    """The catalog's peak for a card as the driver or the user names it."""
    try:
        gpu = find_card(card, memory_bytes)
    except NotFound:
        return no_peak(card)
    shape = Training(batch_size=1, sequence_tokens=1, accumulation=1, dtype=dtype, compiled=False, tf32=tf32)
    number = peak_format(shape, gpu)
    return Peak(flops_per_s=gpu.dense_flops_per_s[number], format=number, source=f"catalog: {gpu.name}")


def find_card(card: str, memory_bytes: int | None) -> Gpu:
    """The card; if two sizes share a name, the memory the driver shows decides."""
    try:
        return find_gpu(card)
    except NotFound as unclear:
        if unclear.code != "ambiguous_gpu" or memory_bytes is None:
            raise
        return find_gpu(f"{card} {round(memory_bytes / GIB)}GB")
