"""`Offer`: capacity for sale, at a price."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One whole instance type in one place."""

    provider: str
    region: str
    zone: str
    instance: str
    gpu: str  # its name in the catalog
    gpus: int
    microusd_per_hour: int  # of the whole instance
    is_spot: bool
    interruptions_per_hour: float | None = None  # of spot, if known
    lead_s: int = 0  # from the order until it is ready
    least_s: int = 0  # minimum billed time
    quantum_s: int = 1  # billed in multiples of this
    is_there: bool = True  # whether one is available now, as far as the provider says

    @property
    def site(self) -> str:
        """Where its nodes join: one provider's zone, or region."""
        return "-".join(part for part in (self.provider, self.zone or self.region) if part).lower()

    @property
    def microusd_per_gpu_hour(self) -> int:
        """Rounded up: what is paid for the GPUs must cover the cost of the instance."""
        return -(-self.microusd_per_hour // self.gpus)
