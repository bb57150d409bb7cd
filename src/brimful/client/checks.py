"""The answer for a job that is checked without submitting it: shapes, as in `answers`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from brimful.client.answers import LimitChanceAnswer, Usd
from brimful.fleet.node import Tier


class CheckPoolAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    free: int
    gpus: int
    verdict: str
    can: Annotated[bool, "whether it could ever run there"]
    chance: Annotated[
        LimitChanceAnswer | None, "where bids decide: that the price stays at or below its limit"
    ]
    starts_s: Annotated[
        int | None, "UTC second at which enough GPUs are free if no other job goes first; null: unknown"
    ]
    needs_bytes: Annotated[int | None, "predicted for one GPU; null: no training config"]
    usable_bytes: int | None
    microusd_per_gpu_hour: Usd
    microusd_per_hour: Annotated[int, "for all its GPUs, now"]
    tonight_s: Annotated[int | None, "the cheapest hour of the next 24; null: all cost the same"]
    tonight_microusd_per_hour: Usd
    most_microusd: Annotated[int | None, "if it runs to its time limit, at today's price; null: no limit"]
    tonight_most_microusd: Usd | None


class ForecastAnswer(TypedDict):
    earliest_s: Annotated[int | None, "UTC second of the start in the earliest try; null: it never started"]
    likely_s: Annotated[int | None, "in the median try"]
    latest_s: Annotated[int | None, "in the latest try"]
    until_s: Annotated[int | None, "how far tries without a start went; null: it started in all"]
    site: Annotated[str, "where it started in the median try"]
    gpu: str
    tries: Annotated[int, "with different run times of the running and waiting jobs"]


class StartAnswer(TypedDict):
    forecast: Annotated[
        ForecastAnswer | None,
        "when it starts, by a rehearsal of today's queue; null: none yet, or it does not wait for GPUs",
    ]
    forecasting: Annotated[bool, "a rehearsal is under way: ask again in a second"]


class CheckProblem(TypedDict):
    code: str
    problem: str
    hint: str
    reason: dict[str, Any]
    status: Annotated[int, "the HTTP status that a submit would be answered with"]


class CheckAnswer(TypedDict):
    kind: Annotated[
        Literal["form", "brimful", "sbatch", "skypilot", "config"],
        "how the text was read; form: no text was sent",
    ]
    job: Annotated[dict[str, Any], "the body for `POST /v1/jobs`"]
    file: Annotated[str, "the equivalent job file"]
    notes: list[str]
    problems: Annotated[list[CheckProblem], "why it would be refused; empty: it would be accepted"]
    fits: Annotated[dict[str, Any], "by GPU type, the JSON of `brimful fit`; empty without a training config"]
    ahead: Annotated[int | None, "waiting jobs of its class or above"]
    pools: list[CheckPoolAnswer]
    forecast: Annotated[
        ForecastAnswer | None,
        "when it would start, by a rehearsal of the current queue; null: not known, or not yet",
    ]
    forecasting: Annotated[bool, "a rehearsal is running: ask again in a second"]
