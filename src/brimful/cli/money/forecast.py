"""`brimful market forecast`: load by hour, how long spot lasts, whether a price stays low; scored."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brimful.cli.commands import Answer, integer
from brimful.cli.render import EIGHTHS, table
from brimful.client.client import Client
from brimful.client.price_answers import BidChanceAnswer, ChanceScoreAnswer, ForecastAnswer, PoolChancesAnswer
from brimful.errors import BadInput, NotFound
from brimful.language import Number, Percent, Quoted, Seconds, Usd, say, told, words
from brimful.language.printable import all_printable, one_line
from brimful.market.forecast import (
    Band,
    LoadForecaster,
    LoadScore,
    PriceForecaster,
    PriceSeries,
    pooled,
    score_prices,
)
from brimful.units import MICROUSD

EXAMPLE = """brimful market forecast
brimful market forecast --limit 1.5
brimful market forecast --load load.csv.gz --score
brimful market forecast --prices spot.csv.gz --name "g5.xlarge use1-az1" --limit 0.5"""

YEAR_H = 365 * 24
BIDS_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    record = parser.add_mutually_exclusive_group()
    record.add_argument("--load", metavar="PATH")
    record.add_argument("--prices", metavar="PATH")
    parser.add_argument("--name", metavar="NAME")
    parser.add_argument("--limit", type=float, metavar="USD")
    parser.add_argument("--hours", type=integer, default=24, metavar="H")
    parser.add_argument("--score", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    if args.prices:
        return _prices(args)
    if args.hours > 48:
        raise BadInput(say("money.too_far_ahead", hours=args.hours))
    return _from_file(args) if args.load else _from_server(args)


def _from_server(args: argparse.Namespace) -> Answer:
    limit = args.limit
    if limit is not None and not 1e-6 <= limit < 1e6:  # also rejects NaN
        raise BadInput(say("money.bad_limit", limit=limit))
    asked = None if limit is None else round(limit * MICROUSD)
    found: ForecastAnswer = Client().forecast(hours=args.hours, limit_microusd=asked)
    parts = []
    for pool in all_printable(found["pools"]):
        bands = [Band(each["low"], each["likely"], each["high"]) for each in pool["ahead"]]
        name = words("money.gpu_at_site", gpu=pool["gpu"], site=pool["site"])
        parts.append(_load_text(name, bands, pool["known_hours"], pool["gpus"]))
        score = pool["score"]
        if score is not None:
            skills = (score["skill"], score["skill_over_persistence"])
            parts[-1] += "\n" + _score_text(score["hours"], score["coverage"], *skills)
    if found["spot"]:
        parts.append(_spot_text(all_printable(found["spot"])))
    parts += [_chances_text(pool) for pool in all_printable(found["chances"])]
    if found["bids"]:
        parts.append(_bids_text(all_printable(found["bids"]), found["more_bids"]))
    return Answer(found, "\n\n".join(parts) or words("money.no_load_yet"))


def _from_file(args: argparse.Namespace) -> Answer:
    from brimful.adapters.providers.records import read_loads

    loads = _named(read_loads(Path(args.load)), args.name)
    total = LoadScore()
    data: list[dict[str, Any]] = []
    texts: list[str] = []
    rows: list[tuple[str, ...]] = []
    for name, line in all_printable(loads).items():
        forecaster = LoadForecaster()
        for load in line:
            forecaster.tell(load)
        bands, score = forecaster.ahead(args.hours), forecaster.score
        for part in ("hours", "inside", "pinball", "yesterday", "persistence"):
            setattr(total, part, getattr(total, part) + getattr(score, part))
        data.append({"pool": name, "ahead": [band._asdict() for band in bands], "score": _scored(score)})
        rows.append(_score_row(name, score))
        texts.append(_load_text(name, bands, len(line), None))
        if score.coverage is not None:
            skills = (score.skill, score.skill_over_persistence)
            texts[-1] += "\n" + _score_text(score.hours, score.coverage, *skills)
    answer = {"pools": data, "score": _scored(total)}
    if not args.score:
        return Answer(answer, "\n\n".join(texts))
    header = [words(f"money.col_{name}") for name in ("pool", "hours", "inside", "skill", "over_now")]
    rows.append(_score_row(words("money.all_pools"), total))
    return Answer(answer, table(header, rows, right=(1, 2, 3, 4)))


def _named(found: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return found
    if name not in found:
        known = ", ".join(list(found)[:8])
        raise NotFound(say("money.no_such_series", name=Quoted(name[:60]), known=known))
    return {name: found[name]}


def _scored(score: LoadScore) -> dict[str, Any]:
    skills = {"skill": score.skill, "skill_over_persistence": score.skill_over_persistence}
    return {**asdict(score), "coverage": score.coverage, **skills}


def _score_row(name: str, score: LoadScore) -> tuple[str, ...]:
    shares = (score.coverage, score.skill, score.skill_over_persistence)
    return (name, told(Number(score.hours)), *(_percent(each) for each in shares))


def _percent(share: float | None) -> str:
    return "" if share is None else told(Percent(share, 1))


def _load_text(name: str, bands: Sequence[Band], known_hours: int, gpus: int | None) -> str:
    name = one_line(name)
    if not bands:
        return f"{name}\n  " + words("money.record_too_short", hours=known_hours)
    most = max([band.high for band in bands] + [gpus or 0]) or 1
    drawn = "".join(EIGHTHS[min(8, round(8 * band.likely / most))] for band in bands)
    rows = [
        (f"+{h} h", *(told(Number(each, 0)) for each in bands[h - 1]))
        for h in sorted({1, *range(3, len(bands) + 1, 3)})
        if h <= len(bands)
    ]
    header = ["", *(words(f"money.col_{each}") for each in ("low", "likely", "high"))]
    lines = table(header, rows, right=(0, 1, 2, 3)).splitlines()
    return "\n".join([f"{name}  {drawn}", *(f"  {line}" for line in lines)])


def _score_text(hours: int, coverage: float, skill: float | None, over_now: float | None) -> str:
    said = words("money.forecast_score", hours=hours, inside=Percent(coverage, 0))
    if skill is not None and over_now is not None:
        said += words("money.forecast_skill", skill=Percent(skill, 0), over_now=Percent(over_now, 0))
    return f"  {said}"


def _spot_text(pools: Sequence[Any]) -> str:
    rows = [
        (
            words("money.gpu_at_site", gpu=pool["gpu"], site=pool["site"]),
            words("money.spot_there" if pool["there"] else "money.spot_away"),
            told(Seconds(pool["age_s"])),
            told(Number(pool["expected_hours"], 1)),
            *(_percent(pool["stays"][hours]) for hours in ("1", "6", "24")),
        )
        for pool in pools
    ]
    names = ("pool", "spot", "since", "lasts_h", "stays_1", "stays_6", "stays_24")
    lines = [table([words(f"money.col_{name}") for name in names], rows, right=(3, 4, 5, 6))]
    for row, pool in zip(rows, pools, strict=True):
        lines += [f"{row[0]}: {line}" for line in _chance_scores(pool["score"])]
    return "\n".join(lines)


def _chances_text(pool: PoolChancesAnswer) -> str:
    name = words("money.gpu_at_site", gpu=pool["gpu"], site=pool["site"])
    lines = [words("money.chances_of", name=name, price=Usd(pool["microusd_per_gpu_hour"]))]
    known, hours = pool["known_hours"], list(pool["needs_hours"])
    ready = [each for each in hours if known >= pool["needs_hours"][each]]
    if ready and pool["limits"]:
        rows = [
            (
                told(Usd(each["limit_microusd_per_gpu_hour"])),
                *(_percent(each["stays"][ahead]) for ahead in ready),
            )
            for each in pool["limits"]
        ]
        header = [words("money.col_limit"), *(f"{ahead} h" for ahead in ready)]
        lines += table(header, rows, right=range(len(header))).splitlines()
    short: dict[int, list[str]] = {}
    for ahead in hours:
        if ahead not in ready:
            short.setdefault(pool["needs_hours"][ahead], []).append(ahead)
    for needs, each in short.items():
        lines.append(words("money.no_chance", ahead=", ".join(each), known=known, needs=needs))
    return "\n  ".join([*lines, *_chance_scores(pool["score"])])


def _chance_scores(scores: Mapping[str, ChanceScoreAnswer | None]) -> list[str]:
    lines = []
    for ahead, score in scores.items():
        if score is not None:
            errors = {"brier": Number(score["brier"], 3), "usual": Number(score["brier_climatology"], 3)}
            cases = Number(score["cases"])
            lines.append(words("money.chance_score", ahead=ahead, cases=cases, **errors))
    return lines


def _bids_text(bids: Sequence[BidChanceAnswer], more: int) -> str:
    hours = list(bids[0]["stays"])
    rows = [
        (
            bid["job"],
            bid["gpu"],
            bid["site"],
            words("money.bid_holds" if bid["held"] else "money.bid_waits"),
            told(Usd(bid["limit_microusd_per_gpu_hour"])),
            *(_percent(bid["stays"][ahead]) for ahead in hours),
        )
        for bid in bids[:BIDS_SHOWN]
    ]
    names = [words(f"money.col_{name}") for name in ("job", "gpu", "site", "state", "limit")]
    header = [*names, *(f"{ahead} h" for ahead in hours)]
    lines = [words("money.own_bids"), *table(header, rows, right=range(4, len(header))).splitlines()]
    more += len(bids) - len(rows)
    lines += [words("money.more_bids", n=more)] if more else []
    return "\n  ".join(lines)


def _prices(args: argparse.Namespace) -> Answer:
    from brimful.adapters.providers.records import read_prices

    series = read_prices(Path(args.prices))
    end_h = max(line.at_h[-1] for line in series.values())
    if args.score:
        return _price_score(series, args.hours, end_h)
    if args.name is None or args.limit is None or not 0 < args.limit < 1e6:
        raise BadInput(say("money.which_price"))
    line: PriceSeries = _named(series, args.name)[args.name]
    forecaster = PriceForecaster(args.hours)
    for each in series.values():
        for then, peak in each.cases(args.hours, until_h=line.at_h[-1]):
            forecaster.tell(then, peak)
    now = line.situation(line.at_h[-1])
    chance = None if now is None else forecaster.stays_below(now, args.limit)
    data = {"name": args.name, "hours": args.hours, "limit_usd": args.limit, "chance": chance}
    if now is None or chance is None:
        return Answer(data, words("money.price_unknown", name=args.name))
    values = {"price": Number(now.price, 4), "limit": Number(args.limit, 4), "chance": Percent(chance, 1)}
    return Answer(data, words("money.price_stays", name=args.name, hours=args.hours, **values))


def _price_score(series: dict[str, PriceSeries], hours: int, end_h: float) -> Answer:
    """Trained on all but the last twelve months, tested on those."""
    scores = score_prices(series.values(), hours, cut_h=end_h - YEAR_H)
    whole = pooled(scores.values())
    rows = [
        (told(Percent(margin, 0)), told(Number(each.cases)), _percent(each.skill))
        for margin, each in scores.items()
    ]
    rows.append((words("money.all_limits"), told(Number(whole.cases)), _percent(whole.skill)))
    data = {
        "hours": hours,
        "margins": {str(margin): {**asdict(each), "skill": each.skill} for margin, each in scores.items()},
        "skill": whole.skill,
    }
    header = [words(f"money.col_{name}") for name in ("above_price", "cases", "brier_skill")]
    return Answer(data, table(header, rows, right=(0, 1, 2)))
