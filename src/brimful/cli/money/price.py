"""`brimful market price`: each pool's current hourly price, who would pay what, and how it got there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from brimful.cli.commands import Answer
from brimful.cli.options import LOG
from brimful.cli.render import EIGHTHS, bar, clock, columns_of, page_columns, paint, paragraph, table
from brimful.client.answers import alike
from brimful.client.client import Client
from brimful.client.price_answers import DepthAnswer, PoolPriceAnswer, PricePointAnswer, PricesAnswer
from brimful.errors import BadInput, NotFound
from brimful.language import Quoted, Seconds, Usd, say, told, words
from brimful.language.printable import all_printable
from brimful.units import HOUR_S

EXAMPLE = """brimful market price
brimful market price h100 --history
brimful market price --ahead
brimful market price --history --log events.jsonl"""

ROWS = 8  # height of the chart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="NAME", nargs="?")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--ahead", action="store_true")
    parser.add_argument("--hours", type=float, default=24.0, metavar="H")
    LOG(parser)


def run(args: argparse.Namespace) -> Answer:
    if not 0 < args.hours <= 24 * 366:  # also rejects NaN
        raise BadInput(say("money.bad_hours", hours=args.hours))
    back_s = int(args.hours * HOUR_S) or 1
    data = _from_log(Path(args.log), back_s) if args.log else _from_server(back_s, history=args.history)
    pools = [each for each in data["pools"] if not args.pool or _matches_name(each, args.pool.lower())]
    if not pools and args.pool:
        known = ", ".join(sorted({name for each in data["pools"] for name in _names(each)}))
        called = Quoted(args.pool[:60])
        raise NotFound(say("money.no_such_pool", pool=called, known=known or say("money.none")))
    if not pools:
        return Answer({**data, "pools": pools}, words("money.no_price_yet"))
    shown = all_printable(pools)
    parts = [
        _pool_text(each, data["now_s"], back_s, history=args.history or bool(args.log))
        + (_ahead_text(each) if args.ahead else "")
        for each in shown
    ]
    return Answer({**data, "pools": pools}, "\n\n".join(parts))


def _names(pool: PoolPriceAnswer) -> tuple[str, str, str]:
    return pool["gpu"], pool["site"], pool["tier"]


def _matches_name(pool: PoolPriceAnswer, name: str) -> bool:
    """`h100` is enough for `h100-sxm-80gb`."""
    return any(each == name or each.startswith(f"{name}-") for each in _names(pool))


def _from_server(back_s: int, *, history: bool) -> PricesAnswer:
    client = Client()
    found = client.prices()
    return client.prices(since_s=max(0, found["now_s"] - back_s)) if history else found


def _from_log(path: Path, back_s: int) -> PricesAnswer:
    """The same from a log alone: the last price of each market pool and its history."""
    from brimful.cli.money.accounts import fold_log
    from brimful.fleet.events import Event, PoolPriced
    from brimful.fleet.node import Pool

    points: dict[Pool, list[PoolPriced]] = {}
    now_s = 0

    def note(event: Event) -> None:
        nonlocal now_s
        now_s = max(now_s, event.at_s)
        if isinstance(event, PoolPriced):
            points.setdefault(event.pool, []).append(event)

    fold_log(path, note, whole=False)
    pools: list[PoolPriceAnswer] = []
    for _, line in sorted(points.items()):
        last = line[-1]
        first = max((i for i, each in enumerate(line) if each.at_s <= now_s - back_s), default=0)
        pools.append(
            {
                **alike(PoolPriceAnswer, last),
                "market": True,
                "floor_microusd_per_gpu_hour": min(each.microusd_per_gpu_hour for each in line),
                "free": max(0, last.gpus - last.held),
                "depth": [],
                "ahead": [],
                "history": [alike(PricePointAnswer, each) for each in line[first:]],
            }
        )
    return {"now_s": now_s, "pools": pools}


def _pool_text(pool: PoolPriceAnswer, now_s: int, back_s: int, *, history: bool) -> str:
    used = pool["gpus"] - pool["free"]
    tier = "" if pool["tier"] == "owned" else f" ({pool['tier']})"
    name = paint(words("money.gpu_at_site", gpu=pool["gpu"], site=pool["site"]) + tier, "bold")
    full = bar(used / pool["gpus"] if pool["gpus"] else 0.0, 12)
    price = paint(told(Usd(pool["microusd_per_gpu_hour"])), "green")
    in_use = words("money.in_use", used=used, gpus=pool["gpus"])
    lines = [f"{name}  {words('money.per_gpu_hour', price=price)}  {full} {in_use}"]
    if not pool["market"]:
        return f"{lines[0]}\n  {words('money.posted')}"
    cleared, floor = pool["cleared_microusd_per_gpu_hour"], pool["floor_microusd_per_gpu_hour"]
    lines.append("  " + words("money.clears_at", price=Usd(cleared), floor=Usd(floor)))
    if history:
        lines += ["", *_chart(pool["history"], now_s, back_s)]
    if pool["depth"]:
        lines += ["", *_depth(pool["depth"], pool["gpus"])]
    return "\n".join(lines)


def _ahead_text(pool: PoolPriceAnswer) -> str:
    """The price of each coming hour, as a sparkline with the hours at which it changes."""
    quotes = pool["ahead"]
    if not quotes:
        why = "money.no_tariff_bids" if pool["market"] else "money.no_tariff"
        return "\n\n" + paragraph(words(why), "  ")
    prices = [each["microusd_per_gpu_hour"] for each in quotes]
    top = max(prices) or 1
    turns = [
        each
        for i, each in enumerate(quotes)
        if i in (0, len(quotes) - 1) or (prices[i] - prices[i - 1]) * (prices[i + 1] - prices[i]) < 0
    ]
    rows = [(clock(each["at_s"]), told(Usd(each["microusd_per_gpu_hour"]))) for each in turns]
    lines = table([words("money.col_from"), words("money.col_price")], rows, right=(1,)).splitlines()
    drawn = "".join(EIGHTHS[min(8, round(8 * price / top))] for price in prices)
    return "\n".join(["", "", f"  {drawn}", *(f"  {line}" for line in lines)])


def _depth(steps: Sequence[DepthAnswer], gpus: int) -> list[str]:
    """Bids by limit, highest first: █ hold GPUs, ░ wait for some."""
    shown = steps[:12]
    most = max(step["held"] + step["wanted"] for step in shown)
    width, total, rows = max(10, min(40, page_columns() - 44)), 0, []
    for step in shown:
        total += step["held"] + step["wanted"]
        held = round(width * step["held"] / most)
        both = max(1, round(width * (step["held"] + step["wanted"]) / most))
        rows.append(
            (
                told(Usd(step["limit_microusd_per_gpu_hour"])),
                str(step["held"]),
                str(step["wanted"]),
                words("money.used", used=total, gpus=gpus),
                "█" * held + "░" * (both - held),
            )
        )
    header = [*(words(f"money.col_{name}") for name in ("limit", "hold", "wait", "so_far")), ""]
    lines = table(header, rows, right=(0, 1, 2, 3)).splitlines()
    lines += [words("money.lower_limits", n=len(steps) - len(shown))] if len(steps) > len(shown) else []
    return [f"  {line}" for line in lines]


def _chart(points: Sequence[PricePointAnswer], now_s: int, back_s: int) -> list[str]:
    """The billed price over time as bars, with use and demand as sparklines below."""
    if not points:
        return ["  " + words("money.no_price_then")]
    columns = max(24, min(96, page_columns() - 14))
    start_s = max(points[0]["at_s"], now_s - back_s)
    span_s = max(1, now_s - start_s)
    at = [_point_at(points, start_s + span_s * (i + 1) // columns) for i in range(columns)]
    prices = [each["microusd_per_gpu_hour"] for each in at]
    top = max(prices) or 1
    labels = {0: told(Usd(top)), ROWS // 2: told(Usd(top // 2))}
    drawn = columns_of([price / top for price in prices], ROWS)
    out = [f"{labels.get(row, ''):>10} ▕{line}" for row, line in enumerate(drawn)]
    uses = "".join(EIGHTHS[min(8, round(8 * each["held"] / max(1, each["gpus"])))] for each in at)
    wants = "".join(EIGHTHS[min(8, round(4 * each["wanted"] / max(1, each["gpus"])))] for each in at)
    ago = words("money.ago", time=Seconds(span_s))
    return [
        *out,
        f"{words('money.row_in_use'):>10} ▕{uses}",
        f"{words('money.row_wanted'):>10} ▕{wants}",
        f"{'':>11} {ago}{words('money.now').rjust(columns - len(ago))}",
        paint("  " + words("money.chart_legend"), "dim"),
    ]


def _point_at(points: Sequence[PricePointAnswer], at_s: int) -> PricePointAnswer:
    """The value at that second."""
    found = points[0]
    for point in points:
        if point["at_s"] > at_s:
            break
        found = point
    return found
