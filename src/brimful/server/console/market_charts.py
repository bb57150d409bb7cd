"""Price and depth of market pools as shapes to draw: coordinates and words, no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.client.answers import SpendDaysAnswer
from brimful.client.price_answers import PoolChancesAnswer
from brimful.language import words
from brimful.server.service.reader import Reader
from brimful.server.views.forecast import WEEK_H, past_of
from brimful.server.views.money import prices_view
from brimful.units import HOUR_S

BACK_S = 6 * 3600
DAY = "24"  # the hours ahead whose chance stands beside the bids
POOLS_SHOWN = 12
STEPS_SHOWN = 8
SPENDERS_SHOWN = 5
DAYS_LEAST = 7  # of a chart of days
WIDTH, HEIGHT = 1000, 100  # of a chart, independent of its size on the page


def market_cards(reader: Reader, chances: Sequence[PoolChancesAnswer] = ()) -> list[dict[str, Any]]:
    """One card per market pool; none if every price is posted."""
    if reader.market is None:
        return []
    now_s, known = reader.now_s(), {(each["site"], each["gpu"], each["tier"]): each for each in chances}
    pools = [each for each in prices_view(reader, since_s=max(0, now_s - BACK_S)) if each["market"]]
    return [
        _card(pool, known.get((pool["site"], pool["gpu"], pool["tier"])), now_s=now_s)
        for pool in pools[:POOLS_SHOWN]
    ]


def _card(pool: Mapping[str, Any], chances: PoolChancesAnswer | None, *, now_s: int) -> dict[str, Any]:
    history = pool["history"]
    start_s = max(history[0]["at_s"], now_s - BACK_S) if history else now_s
    top = max([each["cleared_microusd_per_gpu_hour"] for each in history], default=0) or 1
    wanted = max([max(each["wanted"], each["gpus"]) for each in history], default=0) or 1
    span_s = max(1, now_s - start_s)

    def steps(key: str, highest: int) -> list[tuple[float, float]]:
        """Corners of a step curve."""
        corners: list[tuple[float, float]] = []
        for point in history:
            x = round(WIDTH * max(0, point["at_s"] - start_s) / span_s, 1)
            y = round(HEIGHT - HEIGHT * min(1.0, point[key] / highest), 1)
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        return [*corners, (float(WIDTH), corners[-1][1])] if corners else []

    billed = steps("microusd_per_gpu_hour", top)
    most = max([each["held"] + each["wanted"] for each in pool["depth"]], default=0) or 1
    limits = [] if chances is None else chances["limits"]
    stays = {each["limit_microusd_per_gpu_hour"]: each["stays"][DAY] for each in limits}
    is_known = any(chance is not None for chance in stays.values())
    return {
        **pool,
        "used": pool["gpus"] - pool["free"],
        "since_s": start_s,
        "span_s": now_s - start_s,
        "top_microusd": top,
        "most_wanted": wanted,
        "billed_area": _area(billed),
        "billed_line": _line(billed),
        "cleared_line": _line(steps("cleared_microusd_per_gpu_hour", top)),
        "used_area": _area(steps("held", wanted)),
        "wanted_line": _line(steps("wanted", wanted)),
        "gpus_y": round(HEIGHT - HEIGHT * pool["gpus"] / wanted, 1),
        "steps": [
            {
                **each,
                "held_frac": each["held"] / most,
                "both_frac": (each["held"] + each["wanted"]) / most,
                "stays": stays.get(each["limit_microusd_per_gpu_hour"]) if is_known else None,
            }
            for each in pool["depth"][:STEPS_SHOWN]
        ],
        "more_steps": max(0, len(pool["depth"]) - STEPS_SHOWN),
        "chance_hours": DAY if is_known else "",
        "no_chance": [] if chances is None else _no_chance(chances),
        "chance_scores": []
        if chances is None
        else [(hours, score) for hours, score in chances["score"].items() if score is not None],
    }


def _no_chance(chances: PoolChancesAnswer) -> list[dict[str, Any]]:
    """The hours ahead for which the record is too short, by how much they need."""
    short: dict[int, list[str]] = {}
    for hours, needs in chances["needs_hours"].items():
        if chances["known_hours"] < needs:
            short.setdefault(needs, []).append(hours)
    known = chances["known_hours"]
    return [{"ahead": ", ".join(each), "known": known, "needs": needs} for needs, each in short.items()]


def _line(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in corners)


def _area(corners: Sequence[tuple[float, float]]) -> str:
    if not corners:
        return ""
    return f"{corners[0][0]},{HEIGHT} {_line(corners)} {WIDTH},{HEIGHT}"


def quote_shape(quotes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A tariff as a step curve, hour by hour."""
    if not quotes:
        return None
    top = max(each["microusd_per_gpu_hour"] for each in quotes) or 1
    first_s, span_s = quotes[0]["at_s"], quotes[-1]["at_s"] + HOUR_S - quotes[0]["at_s"]
    corners: list[tuple[float, float]] = []
    for each in quotes:
        x = round(WIDTH * (each["at_s"] - first_s) / span_s, 1)
        y = round(HEIGHT - 0.96 * HEIGHT * each["microusd_per_gpu_hour"] / top, 1)
        corners += [(x, corners[-1][1])] if corners else []
        corners.append((x, y))
    corners.append((float(WIDTH), corners[-1][1]))
    return {"line": _line(corners), "area": _area(corners), "top_microusd": top, "span_s": span_s}


def band_shape(hours: Sequence[Mapping[str, Any]], *, gpus: int) -> dict[str, Any] | None:
    """A load forecast as a band, with the pool's own GPUs as a line."""
    if len(hours) < 2:
        return None
    top = max([float(gpus), *(each["high"] for each in hours)]) or 1.0
    xs = [round(WIDTH * i / (len(hours) - 1), 1) for i in range(len(hours))]

    def curve(name: str) -> list[tuple[float, float]]:
        return [(x, round(HEIGHT - HEIGHT * each[name] / top, 1)) for x, each in zip(xs, hours, strict=True)]

    return {
        "line": _line(curve("likely")),
        "area": _line([*curve("low"), *reversed(curve("high"))]),
        "gpus_y": round(HEIGHT - HEIGHT * gpus / top, 1),
        "top": top,
        "span_s": HOUR_S * len(hours),
    }


def course_shapes(
    points: Sequence[Mapping[str, Any]], predicted: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    """Memory, MFU and step time over time, each beside its prediction; none before two points."""
    if len(points) < 2:
        return []
    start_s, span_s = points[0]["at_s"], max(1, points[-1]["at_s"] - points[0]["at_s"])
    shapes = []
    for name, beside in (("peak_reserved_bytes", "peak_bytes"), ("mfu", "mfu"), ("step_s", "step_s")):
        known = [(each["at_s"], each[name]) for each in points if each[name] is not None]
        wanted = predicted.get(beside)
        if len(known) < 2:
            continue
        top = 1.08 * max([n for _, n in known] + [wanted or 0]) or 1
        corners = [
            (round(WIDTH * (at_s - start_s) / span_s, 1), round(HEIGHT - HEIGHT * n / top, 1))
            for at_s, n in known
        ]
        shapes.append(
            {
                "name": name,
                "last": known[-1][1],
                "most": max(n for _, n in known),
                "predicted": wanted,
                "predicted_y": None if wanted is None else round(HEIGHT - HEIGHT * wanted / top, 1),
                "line": _line(corners),
                "since_s": start_s,
                "until_s": points[-1]["at_s"],
            }
        )
    return shapes


def use_shapes(reader: Reader) -> list[dict[str, Any]]:
    """GPUs held over the last day and week, all pools together, from `past` of the forecast."""
    with reader.locked():
        pools = reader.fleet.capacity.pools
        lines = [line for pool, line in reader.fleet.load.items() if pool in pools]
        held: dict[int, int] = {}
        for line in lines:
            for hour in past_of(line):
                held[hour["at_s"]] = held.get(hour["at_s"], 0) + hour["held"]
        gpus = sum(line.gpus for line in lines)
    hours = sorted(held.items())
    spans = (("day", 24, 2), ("week", WEEK_H, 25))  # the last number: hours of data needed for a chart
    return [_use(code, hours[-n:], gpus) for code, n, least in spans if len(hours) >= least and gpus]


def _use(code: str, hours: Sequence[tuple[int, int]], gpus: int) -> dict[str, Any]:
    width = round(WIDTH / len(hours), 2)
    return {
        "span": code,
        "title": words(f"console.use_{code}"),
        "mean": sum(held for _, held in hours) / len(hours) / gpus,
        "hours": len(hours),
        "gpus": gpus,
        "bars": [
            {
                "x": round(i * width, 2),
                "width": round(0.86 * width, 2),
                "height": round(min(HEIGHT, HEIGHT * held / gpus), 1),
                "at_s": at_s,
                "held": held,
            }
            for i, (at_s, held) in enumerate(hours)
        ],
    }


def spend_shape(found: SpendDaysAnswer) -> dict[str, Any] | None:
    """Bars of days, each a stack of the largest spenders and the others; from the first day with a bill."""
    first = next((i for i, day in enumerate(found["days"]) if day["microusd"]), None)
    if first is None:
        return None
    days = found["days"][min(first, len(found["days"]) - DAYS_LEAST) :]
    top = max(day["microusd"] for day in days) or 1
    named, width = list(found["total"])[:SPENDERS_SHOWN], WIDTH / len(days)
    parts = []
    for i, day in enumerate(days):
        spent = [(f"hue-{n}", name, day["of"].get(name, 0)) for n, name in enumerate(named)]
        spent.append(("others", words("console.all_others"), day["microusd"] - sum(n for *_, n in spent)))
        y = float(HEIGHT)
        for kind, name, microusd in spent:
            if microusd > 0:
                height = HEIGHT * microusd / top
                y -= height
                where = {"x": round(i * width, 2), "y": round(y, 2), "height": round(height, 2)}
                parts.append({**where, "kind": kind, "name": name, "day": day["day"], "microusd": microusd})
    return {
        "parts": parts,
        "width": round(0.86 * width, 2),
        "top_microusd": top,
        "since": days[0]["day"],
        "until": days[-1]["day"],
        "named": [(name, found["total"][name]) for name in named],
        "has_others": len(found["total"]) > len(named),
    }


def size_shape(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The mean delay under each policy as a curve over fleet sizes, smallest first; none before two sizes."""
    # The fleet as it was may have been rehearsed alone, over other days.
    asked = {(table["since_s"], table["until_s"]) for table in tables if table["nodes"]}
    tables = [table for table in tables if (table["since_s"], table["until_s"]) in asked]
    sizes = [table["nodes"] for table in tables]
    curves: dict[str, list[tuple[int, int]]] = {}
    for table in tables:
        for each in table["candidates"]:
            if each["mean_delay_s"] is not None:
                curves.setdefault(each["policy"], []).append((table["nodes"], each["mean_delay_s"]))
    curves = {policy: points for policy, points in curves.items() if len(points) > 1}
    if not curves:
        return None
    top = max(delay_s for points in curves.values() for _, delay_s in points) or 1
    span = sizes[-1] - sizes[0]

    def placed(points: Sequence[tuple[int, int]]) -> str:
        return _line(
            [
                (round(WIDTH * (n - sizes[0]) / span, 1), round(HEIGHT - 0.96 * HEIGHT * delay_s / top, 1))
                for n, delay_s in points
            ]
        )

    return {
        "top_s": top,
        "ends": (sizes[0], sizes[-1]),
        "curves": [
            {"policy": policy, "hue": i % 6, "line": placed(points)}
            for i, (policy, points) in enumerate(curves.items())
        ],
    }


def price_rows(reader: Reader) -> list[dict[str, Any]]:
    """Each pool's price now, and its cheapest hour of the next 24 if there is a tariff."""
    rows = []
    for pool in prices_view(reader)[:POOLS_SHOWN]:
        quotes = pool["ahead"][:24]
        cheapest = min(quotes, key=lambda each: each["microusd_per_gpu_hour"], default=None)
        rows.append({**pool, "cheapest": cheapest})
    return rows
