"""Answers about prices and what is ahead of them: shapes, as in `answers`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from brimful.client.answers import LimitChanceAnswer, Stays, Usd, Utc
from brimful.fleet.node import Tier


class DepthAnswer(TypedDict):
    limit_microusd_per_gpu_hour: Usd
    held: Annotated[int, "GPUs held by bids with this limit"]
    wanted: Annotated[int, "GPUs wanted by waiting bids with this limit"]


class PricePointAnswer(TypedDict):
    at_s: Utc
    microusd_per_gpu_hour: Annotated[int, "billed from here on"]
    cleared_microusd_per_gpu_hour: Usd
    held: int
    wanted: int
    gpus: int


class QuoteAnswer(TypedDict):
    at_s: Annotated[int, "UTC second at which the hour starts"]
    microusd_per_gpu_hour: Usd


class PoolPriceAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    market: Annotated[bool, "whether bids decide; otherwise the price is posted"]
    microusd_per_gpu_hour: Usd
    cleared_microusd_per_gpu_hour: Annotated[int, "before smoothing"]
    floor_microusd_per_gpu_hour: Usd
    gpus: int
    free: int
    depth: list[DepthAnswer]
    history: list[PricePointAnswer]
    ahead: Annotated[list[QuoteAnswer], "price of each hour from now on; empty without a tariff"]


class PricesAnswer(TypedDict):
    now_s: Utc
    pools: list[PoolPriceAnswer]


class LoadHourAnswer(TypedDict):
    at_s: Annotated[int, "UTC second at which the hour starts"]
    low: Annotated[float, "GPUs held or waited for: 10th percentile"]
    likely: Annotated[float, "median"]
    high: Annotated[float, "90th percentile"]


class LoadScoreAnswer(TypedDict):
    hours: Annotated[int, "hours that were forecast a day ahead and have passed"]
    coverage: Annotated[float, "share between low and high; 0.8 is ideal"]
    skill: Annotated[float | None, "reduction of pinball loss against the same hour of the day before"]
    skill_over_persistence: Annotated[float | None, "reduction against the load when the forecast was made"]


class LoadSeenAnswer(TypedDict):
    at_s: Annotated[int, "UTC second at which the hour starts"]
    held: Annotated[int, "GPUs held at the time of measurement"]
    load: Annotated[float, "GPUs held or waited for"]


class PoolForecastAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    gpus: int
    known_hours: Annotated[int, "hours of record"]
    past: Annotated[list[LoadSeenAnswer], "the last week, hour by hour"]
    ahead: Annotated[list[LoadHourAnswer], "empty while the record is too short"]
    score: LoadScoreAnswer | None


class ChanceScoreAnswer(TypedDict):
    cases: Annotated[
        int, "chances that were stated and have been decided; of prices, for limits 0 to 25 % above them"
    ]
    brier: Annotated[float, "mean squared error of the chances; lower is better"]
    brier_climatology: Annotated[float, "the same of always stating the usual rate so far"]
    skill: Annotated[float | None, "how much lower the first is; null: the second is zero"]


class SpotForecastAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    there: Annotated[bool, "whether spot is available now"]
    age_s: Annotated[int, "how long that has been so"]
    spells: Annotated[int, "how often it became available"]
    expected_hours: Annotated[float, "how long spot of this age, or just available, is expected to last"]
    stays: Annotated[dict[str, float], "probability of lasting another 1, 6 and 24 hours"]
    score: Annotated[
        dict[str, ChanceScoreAnswer | None], "of earlier probabilities, by hours; null: none yet"
    ]


class PoolChancesAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    microusd_per_gpu_hour: Annotated[int, "the higher of what is billed and what last cleared"]
    known_hours: Annotated[int, "hours of price history"]
    needs_hours: Annotated[dict[str, int], "hours of price history needed, by hours ahead"]
    limits: Annotated[list[LimitChanceAnswer], "limits of open bids, highest first, and the one asked for"]
    score: Annotated[
        dict[str, ChanceScoreAnswer | None], "of earlier chances, by hours ahead; null: none yet"
    ]


class BidChanceAnswer(TypedDict):
    job: str
    name: str
    tenant: str
    site: str
    gpu: str
    tier: Tier
    gpus: int
    held: Annotated[bool, "whether it holds its GPUs; otherwise it waits for them"]
    limit_microusd_per_gpu_hour: Usd
    stays: Stays


class ForecastAnswer(TypedDict):
    now_s: Utc
    pools: list[PoolForecastAnswer]
    spot: list[SpotForecastAnswer]
    chances: Annotated[list[PoolChancesAnswer], "of the price in each market pool"]
    bids: Annotated[list[BidChanceAnswer], "of your teams in market pools, lowest limit first"]
    more_bids: Annotated[int, "bids that were left out because there are too many"]
