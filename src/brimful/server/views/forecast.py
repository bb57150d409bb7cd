"""Forecasts: the load of each pool, and how long spot lasts."""

from __future__ import annotations

from brimful.client.answers import (
    ForecastAnswer,
    LoadScoreAnswer,
    LoadSeenAnswer,
    PoolForecastAnswer,
    SpotForecastAnswer,
)
from brimful.fleet.learned.load import LoadLine
from brimful.fleet.learned.spot import SpotRecord
from brimful.fleet.node import Pool
from brimful.market.forecast import Forecasts, LoadForecaster, LoadScore
from brimful.market.spells import spells_of
from brimful.server.service.reader import Reader
from brimful.units import HOUR_S

STAYS_H = (1, 6, 24)
WEEK_H = 168


class Ahead:
    """The forecasts of a server: learned once, then updated with what is new."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._forecasts = Forecasts()

    def view(self, *, hours: int) -> ForecastAnswer:
        with self._reader.locked():
            fleet, now_s = self._reader.fleet, self._reader.now_s()
            return {
                "now_s": now_s,
                "pools": [
                    _load_of(pool, line, self._forecasts.of(pool, line), hours)
                    for pool, line in sorted(fleet.load.items())
                    if pool in fleet.capacity.pools
                ],
                "spot": [_spot_of(pool, record, now_s) for pool, record in sorted(fleet.spot.items())],
            }


def _load_of(pool: Pool, line: LoadLine, forecaster: LoadForecaster, hours: int) -> PoolForecastAnswer:
    return {
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "gpus": line.gpus,
        "known_hours": len(line.loads),
        "past": past_of(line),
        "ahead": [
            {"at_s": (line.next_hour + h) * HOUR_S, "low": low, "likely": likely, "high": high}
            for h, (low, likely, high) in enumerate(forecaster.ahead(hours))
        ],
        "score": score_of(forecaster.score),
    }


def past_of(line: LoadLine) -> list[LoadSeenAnswer]:
    first = line.next_hour - len(line.loads)
    hours = enumerate(zip(line.held_hours, line.loads, strict=True), start=first)
    return [
        {"at_s": hour * HOUR_S, "held": held, "load": load}
        for hour, (held, load) in hours
        if hour >= line.next_hour - WEEK_H
    ]


def score_of(score: LoadScore) -> LoadScoreAnswer | None:
    if score.coverage is None:
        return None
    return {
        "hours": score.hours,
        "coverage": score.coverage,
        "skill": score.skill,
        "skill_over_persistence": score.skill_over_persistence,
    }


def _spot_of(pool: Pool, record: SpotRecord, now_s: int) -> SpotForecastAnswer:
    spells = spells_of(record.changes, until_s=now_s)
    there = bool(record.nodes)
    age_s = max(0, now_s - record.changes[-1]) if record.changes else 0
    begun_s = age_s if there else 0
    return {
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "there": there,
        "age_s": age_s,
        "spells": -(-len(record.changes) // 2),
        "expected_hours": spells.expected_hours(begun_s),
        "stays": {str(hours): spells.stays(begun_s, hours) for hours in STAYS_H},
    }
