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
    lead_s: int = 0  # from the order until it is ready
    least_s: int = 0  # billed at least so long
    quantum_s: int = 1  # billed in whole ones of these
    is_there: bool = True  # whether one could be had now, as far as the provider tells

    @property
    def site(self) -> str:
        """Where its nodes join: one provider's zone, or region."""
        return "-".join(part for part in (self.provider, self.zone or self.region) if part).lower()

    @property
    def microusd_per_gpu_hour(self) -> int:
        """Rounded up: what is paid for a GPU must cover what the instance costs."""
        return -(-self.microusd_per_hour // self.gpus)
