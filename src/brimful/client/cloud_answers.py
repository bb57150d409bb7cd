"""The API's answers about machines: for sale, and bought."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from brimful.client.answers import Usd, Utc
from brimful.fleet.node import Tier


class MachineAnswer(TypedDict):
    node: str
    provider: str
    site: str
    gpu: str
    gpus: int
    tier: Tier
    state: Literal["ordered", "ready", "returned"]
    jobs: Annotated[list[str], "jobs that hold GPUs there or for which it is kept"]
    ordered_s: Utc
    ready_s: Annotated[int | None, "start of billing, UTC seconds"]
    microusd_per_hour: Usd
    cost_microusd: Annotated[int, "if it were given back now, micro-dollars"]
    reason: Annotated[str, "why it was bought"]


class CloudAnswer(TypedDict):
    now_s: Utc
    is_buying: Annotated[bool, "false: the server has no providers"]
    dry_run: bool
    hourly_cap_microusd: Usd
    monthly_cap_microusd: Usd
    hourly_microusd: Annotated[int, "of all machines, now, micro-dollars"]
    month_microusd: Annotated[int, "this calendar month (UTC), micro-dollars"]
    machines: list[MachineAnswer]
    problems: Annotated[dict[str, str], "by provider"]


class OfferAnswer(TypedDict):
    provider: str
    site: str
    region: str
    instance: str
    gpu: str
    gpus: Annotated[int, "per machine"]
    tier: Tier
    microusd_per_gpu_hour: Usd
    microusd_per_hour: Usd
    is_there: Annotated[bool, "whether it is available now, as far as known"]
    refused_until_s: Annotated[int | None, "after a refused order: not tried again before, UTC seconds"]
    stays_hours: Annotated[float | None, "how long spot is expected to last; null: not spot"]
    lead_s: int


class OffersAnswer(TypedDict):
    offers: list[OfferAnswer]


class PlaceAnswer(TypedDict):
    site: str
    provider: str
    gpu: str
    tier: Tier
    nodes: int
    gpus: Annotated[int, "of all its machines"]
    microusd_per_hour: Usd
    ready_s: Annotated[int, "when the machines would be ready, UTC seconds"]
    hours: Annotated[float | None, "of running; null: no prediction of the work"]
    total_microusd: Annotated[
        int | None, "compute, restarts and moved checkpoints, micro-dollars; null: unknown"
    ]
    done_s: Annotated[int | None, "expected finish, UTC seconds"]
    chance: Annotated[
        float | None, "probability of finishing by its deadline there; null: no deadline, or unknown"
    ]
    refused: Annotated[str, "why it may not be bought; empty: it may"]
    refused_code: str | None


class CloudPlanAnswer(TypedDict):
    verdict: Annotated[
        Literal["order", "own", "capped", "dry_run", "nothing"],
        "own: enough GPUs of the fleet are free; capped: over the spending caps",
    ]
    said: str
    said_code: str
    places: Annotated[list[PlaceAnswer], "cheapest first"]


class ProviderAnswer(TypedDict):
    provider: str
    sites: list[str]
    offers: int
    there: Annotated[int, "offers available now"]
    machines: Annotated[int, "bought and still there"]
    problems: Annotated[dict[str, str], "by machine or part; empty: none"]


class ProvidersAnswer(TypedDict):
    providers: list[ProviderAnswer]
