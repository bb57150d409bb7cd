"""Forecasts: the load of each pool, how long spot lasts, and whether prices stay below limits."""

from __future__ import annotations

from collections.abc import Iterator

from brimful.client.answers import LimitChanceAnswer
from brimful.client.price_answers import (
    BidChanceAnswer,
    ChanceScoreAnswer,
    ForecastAnswer,
    LoadScoreAnswer,
    LoadSeenAnswer,
    PoolChancesAnswer,
    PoolForecastAnswer,
    SpotForecastAnswer,
)
from brimful.fleet.learned.load import LoadLine
from brimful.fleet.learned.spot import SpotRecord
from brimful.fleet.lease import JobState
from brimful.fleet.node import Pool
from brimful.market.forecast import BrierScore, Forecasts, LoadForecaster, LoadScore
from brimful.market.pools import limit_of
from brimful.market.staying import STAYS_H, StayRecord
from brimful.market.survival import AHEAD_H, PriceRecord, needs_h
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.views.money import depth_of
from brimful.units import HOUR_S

WEEK_H = 168
MOST_BIDS = 200


class Ahead:
    """The forecasts of a server: learned once, then updated with what is new."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._forecasts = Forecasts()
        self._stays: dict[Pool, StayRecord] = {}

    def view(self, who: Principal, *, hours: int, limit_microusd: int | None = None) -> ForecastAnswer:
        with self._reader.locked():
            fleet, now_s = self._reader.fleet, self._reader.now_s()
            bids = sorted(_bids(self._reader, who), key=lambda each: (each[3], each[0].serial))
            return {
                "now_s": now_s,
                "pools": [
                    _load_of(pool, line, self._forecasts.of(pool, line), hours)
                    for pool, line in sorted(fleet.load.items())
                    if pool in fleet.capacity.pools
                ],
                "spot": [
                    _spot_of(pool, record, self._stays.setdefault(pool, StayRecord()), now_s)
                    for pool, record in sorted(fleet.spot.items())
                ],
                "chances": [
                    _chances_of(self._reader, pool, record, limit_microusd)
                    for pool, record in sorted(_records(self._reader).items())
                ],
                "bids": [_bid(self._reader, *each) for each in bids[:MOST_BIDS]],
                "more_bids": max(0, len(bids) - MOST_BIDS),
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


def _spot_of(pool: Pool, record: SpotRecord, known: StayRecord, now_s: int) -> SpotForecastAnswer:
    known.tell(record.changes, now_s=now_s)
    spells = known.spells
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
        "score": {str(each.hours): _chance_score(each.score) for each in known.horizons},
    }


# -- prices of market pools ------------------------------------------------------------------------------


def _records(reader: Reader) -> dict[Pool, PriceRecord]:
    """Of every market pool that has had a price."""
    if reader.market is None:
        return {}
    known = reader.price_records.of
    return {pool: known[pool] for pool in reader.market.in_fleet(reader.fleet) if pool in known}


def chance_of(reader: Reader, state: JobState, pool: Pool) -> LimitChanceAnswer | None:
    """That the price stays at or below its bid there; None: no bids decide, or too little is known."""
    record, lease = reader.price_records.of.get(pool), state.open_lease
    if record is None or reader.market is None or not reader.market.covers(pool):
        return None
    if lease is not None and lease.reservation:
        return None
    limit = limit_of(state.job, floor=reader.floor_microusd(pool))
    stays = _stays(record, limit)
    is_known = any(chance is not None for chance in stays.values())
    return {"limit_microusd_per_gpu_hour": limit, "stays": stays} if is_known else None


def _stays(record: PriceRecord, limit: int) -> dict[str, float | None]:
    return {str(hours): chance for hours, chance in record.stays(limit).items()}


def _chances_of(reader: Reader, pool: Pool, record: PriceRecord, asked: int | None) -> PoolChancesAnswer:
    limits = {each["limit_microusd_per_gpu_hour"] for each in depth_of(reader, pool)}
    limits |= set() if asked is None else {asked}
    return {
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "microusd_per_gpu_hour": round(record.price),
        "known_hours": record.hours,
        "needs_hours": {str(hours): needs_h(hours) for hours in AHEAD_H},
        "limits": [
            {"limit_microusd_per_gpu_hour": limit, "stays": _stays(record, limit)}
            for limit in sorted(limits, reverse=True)
        ],
        "score": {str(each.hours): _chance_score(each.score) for each in record.horizons},
    }


def _chance_score(score: BrierScore) -> ChanceScoreAnswer | None:
    if not score.cases:
        return None
    return {
        "cases": score.cases,
        "brier": score.loss / score.cases,
        "brier_climatology": score.climatology / score.cases,
        "skill": score.skill,
    }


def _bids(reader: Reader, who: Principal) -> Iterator[tuple[JobState, Pool, bool, int]]:
    """Of the teams that `who` sees: the job, its market pool, whether it holds its GPUs, its limit."""
    fleet = reader.fleet
    for pool in _records(reader):
        floor = reader.floor_microusd(pool)
        for lease in fleet.leases_at.get(pool.site, {}).values():
            node, state = fleet.nodes.get(lease.node), fleet.jobs[lease.job]
            is_bid = lease.phase != "ending" and not lease.reservation
            if is_bid and node is not None and node.pool == pool and who.sees(state.job.tenant):
                yield state, pool, True, limit_of(state.job, floor=floor)
        for state in fleet.waiting.values():
            if state.job.gpus and who.sees(state.job.tenant) and pool in fleet.able_pools(state.shape):
                yield state, pool, False, limit_of(state.job, floor=floor)


def _bid(reader: Reader, state: JobState, pool: Pool, held: bool, limit: int) -> BidChanceAnswer:
    return {
        "job": state.job.job,
        "name": state.job.name,
        "tenant": state.job.tenant,
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "gpus": state.job.gpus,
        "held": held,
        "limit_microusd_per_gpu_hour": limit,
        "stays": _stays(reader.price_records.of[pool], limit),
    }
