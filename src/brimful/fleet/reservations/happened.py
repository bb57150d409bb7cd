"""What happened to reservations: bought, extended, changed, short of nodes, over, lent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from brimful.fleet.event import Event
from brimful.fleet.node import OfPool, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationBought(OfPool, Event):  # GPUs of a market pool, for a window, paid ahead or granted
    version: ClassVar[int] = 4
    at_s: int
    reservation: str
    tenant: str
    site: str
    gpu: str
    tier: Tier
    gpus: int
    start_s: int
    end_s: int
    microusd_per_gpu_hour: int
    pause_microusd_per_gpu_hour: int
    return_microusd_per_gpu_hour: int
    share_permille: int  # the tenant's share of what its GPUs earn while lent
    idle_s: int  # unused for this long, they are lent
    credit_s: int  # how long a credit is valid
    paid_microusd: int
    credit_microusd: int = 0  # the part of it paid with earlier credits
    credits: tuple[tuple[int, int], ...] = ()  # which: (micro-dollars, when they expire)
    by: str = ""  # who bought it
    key: str = ""  # the buyer's idempotency key: a second purchase under it is the first
    granted: bool = False  # a quota: free of charge, and what it earns is added to its owner's budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationExtended(Event):
    """Its window ends later; the added hours are at current prices."""

    version: ClassVar[int] = 3
    at_s: int
    reservation: str
    end_s: int
    microusd_per_gpu_hour: int
    pause_microusd_per_gpu_hour: int
    return_microusd_per_gpu_hour: int
    paid_microusd: int
    credit_microusd: int = 0
    credits: tuple[tuple[int, int], ...] = ()
    by: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationChanged(Event):
    """Some of its GPUs are paused and lent, wanted back, or given up for the rest of the window."""

    at_s: int
    reservation: str
    verb: Literal["pause", "resume", "return"]
    gpus: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationShort(Event):
    """From here on this many of its GPUs are unavailable: their nodes are gone. 0: all are back."""

    at_s: int
    reservation: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationEnded(Event):
    at_s: int
    reservation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditsExpired(Event):  # a tenant's credits that have expired by now
    at_s: int
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedLent(OfPool, Event):
    """From here on this many GPUs of these reservations are part of a pool's spot supply."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    gpus: int  # the whole spot supply
    lent: tuple[tuple[str, int], ...]  # (reservation, GPUs), for all in force
