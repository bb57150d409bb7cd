"""What other programs hold of a card: as given, or a desktop's share if the card usually drives a display.

The readings are in `desktops.toml`. Their median is assumed, not their maximum: refusing a run that would
have fit is wrong too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from brimful.specs.gpu import Gpu
from brimful.specs.names import read_table
from brimful.units import MIB

# given: by the user, or by the card's driver. assumed: the median of the readings. none: nothing is assumed.
Basis = Literal["given", "assumed", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What other programs hold of a card, and how that is known."""

    bytes: int = 0
    basis: Basis = "none"
    readings: int = 0  # number behind the assumption

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


NO_OTHERS = Others()


@cache
def desktop_bytes() -> list[int]:
    """What nvidia-smi showed as used on cards that run only a desktop, lowest first."""
    return sorted(row["used_mib"] * MIB for row in read_table("desktops.toml")["readings"])


@cache
def _a_desktop() -> Others:
    used = desktop_bytes()
    middle = len(used) // 2
    median = used[middle] if len(used) % 2 else (used[middle - 1] + used[middle]) // 2
    return Others(bytes=median, basis="assumed", readings=len(used))


def others_on(gpu: Gpu, given_bytes: int | None = None) -> Others:
    """As given; by default a desktop's share on a GeForce and nothing on any other card."""
    if given_bytes is not None:
        assert given_bytes >= 0
        return Others(bytes=given_bytes, basis="given")
    return _a_desktop() if gpu.geforce else NO_OTHERS
