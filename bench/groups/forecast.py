"""Forecasts on public records: load a day ahead, whether a price stays below a limit, whether spot stays.

    make bench ARGS=forecast     a cluster's hourly load, 769 series of prices, nine of capacity: a CPU minute

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from bench.document import judged, markdown
from bench.groups.deadlines import RECORDS, records
from bench.groups.traces import DATA
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_loads, read_prices
from brimful.market.forecast import (
    BrierScore,
    LoadForecaster,
    LoadScore,
    PriceSeries,
    pooled,
    score_prices,
)
from brimful.market.staying import STAYS_H, StayRecord
from brimful.sim.deadlines import Capacity

TITLE = "Forecasts"
TABLES = ("forecast-load", "forecast-prices", "forecast-spot")
PRICES = DATA.parent / "prices"
LOADS = PRICES / "alibaba_cluster_hourly_load.csv.gz"
SPOT = PRICES / "aws_gpu_spot_history.csv.gz"
YEAR_H = 365 * 24
BELOW_YESTERDAY, INSIDE, BRIER_SKILL = 0.12, (0.75, 0.85), 0.25
TUNED = ("A10", "GPU-series-1", "GPU-series-2")  # on these; the others were only evaluated


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="learn 10 days of a pool's load and forecast a day",
        subject=body(lambda: told([float(h % 24) for h in range(240)]).ahead(24)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not all(path.is_file() for path in (LOADS, SPOT, RECORDS)):
        return {}
    prices = list(read_prices(SPOT).values())
    return {"forecast-load": _loads(), "forecast-prices": _prices(prices), "forecast-spot": _stays()}


def told(loads: list[float]) -> LoadForecaster:
    forecaster = LoadForecaster()
    for load in loads:
        forecaster.tell(load)
    return forecaster


def _loads() -> str:
    rows, kept = [], LoadScore()
    for name, loads in read_loads(LOADS).items():
        score = told(loads).score
        rows.append(
            load_row(f"{name}{' (tuned on)' if name in TUNED else ''}", score, whole=name == "requested")
        )
        if name not in TUNED and name != "requested":
            for part in ("hours", "inside", "pinball", "yesterday", "persistence"):
                setattr(kept, part, getattr(kept, part) + getattr(score, part))
    rows.append(load_row("the three pools kept aside", kept, whole=True))
    return markdown(("pool", "hours", "in the band", "below yesterday", "below no change", "bar"), rows)


def load_row(name: str, score: LoadScore, *, whole: bool) -> tuple[str, ...]:
    """`whole`: of all pools, or of all kept aside; for a single pool, the bar is that of no change alone."""
    inside, below, change = score.coverage or 0.0, score.skill or 0.0, score.skill_over_persistence or 0.0
    low, high = INSIDE
    bar = f"{low:.0%} to {high:.0%}" + (f", ≥ {BELOW_YESTERDAY:.0%}" if whole else "") + ", ≥ 0%"
    is_met = score.hours > 0 and low <= inside <= high and change >= 0
    is_met &= not whole or below >= BELOW_YESTERDAY
    shares = (f"{each:.1%}" for each in (inside, below, change))
    return name, f"{score.hours:,}", *shares, judged(bar, is_met=is_met)


def _prices(series: list[PriceSeries]) -> str:
    end_h = max(line.at_h[-1] for line in series)
    rows = []
    for hours in (24, 72):
        scores = score_prices(series, hours, cut_h=end_h - YEAR_H)
        whole = pooled(scores.values())
        skills = [*(each.skill for each in scores.values()), whole.skill]
        cells = (f"{each or 0.0:.1%}" for each in skills)
        bar = judged(f"≥ {BRIER_SKILL:.0%}", is_met=(whole.skill or 0.0) >= BRIER_SKILL)
        rows.append((f"{hours} h", f"{whole.cases:,}", *cells, bar))
    limits = ("price", "+1 %", "+2 %", "+5 %", "+10 %", "+25 %")
    return markdown(("stays below", "cases", *limits, "all", "bar of all"), rows)


def _stays() -> str:
    """Each public record of spot capacity by itself, from nothing but the prior."""
    rows: list[tuple[str, ...]] = []
    whole = [BrierScore() for _ in STAYS_H]
    for name, record in records():
        known = StayRecord()
        known.tell(changes_of(record), now_s=record.ticks * record.tick_s)
        scores = [each.score for each in known.horizons]
        whole = [pooled(pair) for pair in zip(whole, scores, strict=True)]
        rows.append(stays_row(name, scores))
    rows.append(stays_row("all", whole))
    return markdown(("stays for", "cases", *(f"{hours} h" for hours in STAYS_H)), rows)


def stays_row(name: str, scores: Sequence[BrierScore]) -> tuple[str, ...]:
    return name, f"{sum(each.cases for each in scores):,}", *(f"{each.skill or 0.0:.1%}" for each in scores)


def changes_of(record: Capacity) -> list[int]:
    up = [0, *record.up[0]]
    return [i * record.tick_s for i, (a, b) in enumerate(pairwise(up)) if a != b]
