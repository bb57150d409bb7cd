"""The API's answers about reservations."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from brimful.client.answers import Usd, Utc
from brimful.fleet.node import Tier


class ReserveQuoteAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    gpus: int
    start_s: Utc
    end_s: Utc
    microusd_per_gpu_hour: Usd
    pause_microusd_per_gpu_hour: Annotated[int, "credit for a paused GPU-hour, micro-dollars"]
    return_microusd_per_gpu_hour: Annotated[int, "credit for a returned GPU-hour, micro-dollars"]
    share_permille: Annotated[int, "the owner's share of what its GPUs earn while lent"]
    total_microusd: Usd
    free_gpus: Annotated[int, "GPUs that can be reserved for this window"]


class ReservationAnswer(TypedDict):
    reservation: str
    tenant: str
    granted: Annotated[bool, "a quota: free of charge; what it earns is added to its tenant's budget"]
    state: Literal["booked", "open", "ended"]
    site: str
    gpu: str
    tier: Tier
    gpus: Annotated[int, "GPUs left in it"]
    start_s: Utc
    end_s: Utc
    share_permille: int
    used: Annotated[int, "GPUs that its owner's jobs hold now"]
    idle: Annotated[int, "unused now; 0 before the window begins"]
    paused: int
    lent: Annotated[int, "of the idle and paused ones, in the spot pool now"]
    bought_gpu_s: Annotated[int, "GPU-seconds that were paid for"]
    used_gpu_s: int
    idle_gpu_s: int
    paused_gpu_s: int
    lent_gpu_s: int
    returned_gpu_s: int
    short: Annotated[int, "GPUs not available now: their nodes are gone"]
    short_gpu_s: int
    paid_microusd: Usd
    pause_credit_microusd: Usd
    return_credit_microusd: Usd
    refund_microusd: Annotated[
        int, "credit for hours in which nodes were gone, granted at its end, micro-dollars"
    ]
    earned_microusd: Annotated[int, "the owner's share of what borrowers paid, micro-dollars"]
    net_microusd: Annotated[int, "paid minus credits and earnings, micro-dollars"]


class TenantCreditAnswer(TypedDict):
    tenant: str
    microusd: Usd
    expires_s: Annotated[int, "when the first part of it expires, UTC seconds"]


class ReservationsAnswer(TypedDict):
    reservations: list[ReservationAnswer]
    credits: Annotated[list[TenantCreditAnswer], "credits that pay for later reservations"]
