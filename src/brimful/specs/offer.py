"""`Offer`: capacity somebody sells, at a price."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type at one place, whole."""

    provider: str
    region: str
    zone: str
    instance: str
    gpu: str  # a name of the catalog
    gpus: int
    microusd_per_hour: int  # of the whole instance
    is_spot: bool
    interruptions_per_hour: float | None = None  # of spot, where somebody knows
