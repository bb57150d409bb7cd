"""Forecasts on public records: load a day ahead, and whether a price stays below a limit.

    make bench ARGS=forecast     a cluster's hourly load and 769 series of spot prices: two CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.document import markdown
from bench.groups.traces import DATA
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_loads, read_prices
from brimful.market.forecast import LoadForecaster, LoadScore, PriceSeries, pooled, score_prices

TITLE = "Forecasts"
TABLES = ("forecast-load", "forecast-prices")
PRICES = DATA.parent / "prices"
LOADS = PRICES / "alibaba_cluster_hourly_load.csv.gz"
SPOT = PRICES / "aws_gpu_spot_history.csv.gz"
YEAR_H = 365 * 24
TUNED = ("A10", "GPU-series-1", "GPU-series-2")  # on these; the others were only evaluated


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="learn 10 days of a pool's load and forecast a day",
        subject=body(lambda: told([float(h % 24) for h in range(240)]).ahead(24)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not (LOADS.is_file() and SPOT.is_file()):
        return {}
    return {"forecast-load": _loads(), "forecast-prices": _prices(list(read_prices(SPOT).values()))}


def told(loads: list[float]) -> LoadForecaster:
    forecaster = LoadForecaster()
    for load in loads:
        forecaster.tell(load)
    return forecaster


def _loads() -> str:
    rows, kept = [], LoadScore()
    for name, loads in read_loads(LOADS).items():
        score = told(loads).score
        rows.append((f"{name}{' (tuned on)' if name in TUNED else ''}", *_cells(score)))
        if name not in TUNED and name != "requested":
            for part in ("hours", "inside", "pinball", "yesterday", "persistence"):
                setattr(kept, part, getattr(kept, part) + getattr(score, part))
    rows.append(("the three pools kept aside", *_cells(kept)))
    return markdown(("pool", "hours", "in the band", "below yesterday", "below no change"), rows)


def _cells(score: LoadScore) -> tuple[str, ...]:
    shares = (score.coverage, score.skill, score.skill_over_persistence)
    return (f"{score.hours:,}", *("" if each is None else f"{each:.1%}" for each in shares))


def _prices(series: list[PriceSeries]) -> str:
    end_h = max(line.at_h[-1] for line in series)
    rows = []
    for hours in (24, 72):
        scores = score_prices(series, hours, cut_h=end_h - YEAR_H)
        whole = pooled(scores.values())
        skills = [*(each.skill for each in scores.values()), whole.skill]
        rows.append((f"{hours} h", f"{whole.cases:,}", *(f"{each or 0.0:.1%}" for each in skills)))
    return markdown(("stays below", "cases", "price", "+1 %", "+2 %", "+5 %", "+10 %", "+25 %", "all"), rows)
