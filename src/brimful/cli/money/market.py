"""`brimful market clear` and `deadline`: a file in, an answer out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from brimful.cli.commands import Answer, Verb, integer
from brimful.cli.options import FILE
from brimful.cli.render import bar, paint, paragraph, table
from brimful.errors import BadInput
from brimful.files import read_given
from brimful.language import Percent, Several, Size, Usd, count, figures, say, told, words
from brimful.language.failures import os_errors_as
from brimful.language.printable import one_line
from brimful.market import auction
from brimful.market.auction import Cleared
from brimful.market.bid import Book
from brimful.market.book import parse_book
from brimful.scheduler.deadlines.programme import Task
from brimful.sim.deadlines import compare
from brimful.sim.traces.capacity import read_capacity
from brimful.units import MICROUSD

MOST_BYTES = 256 * 1024**2
SHOWN = 12  # losing bids shown to a person


def _add_deadline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zone", action="append", metavar="Z")
    parser.add_argument("--accelerator", metavar="NAME")
    parser.add_argument("--count", metavar="N")
    numbers = {
        "task-hours": 48.0,
        "deadline-hours": 70.0,
        "restart-hours": 0.2,
        "on-demand": 3.06,
        "spot": 0.9731,
    }
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default, metavar="X")
    parser.add_argument("--starts", type=integer, default=300, metavar="N")


def deadline(args: argparse.Namespace) -> Answer:
    for name in ("task_hours", "deadline_hours", "restart_hours", "on_demand", "spot"):
        value = getattr(args, name)
        least, code = (0.0, "money.negative") if name == "restart_hours" else (1e-6, "money.not_positive")
        if not least <= value <= 100_000:
            raise BadInput(say(code, option=name.replace("_", "-"), value=f"{value:g}", most=100_000))
    if args.deadline_hours < args.task_hours + args.restart_hours:
        short = args.task_hours + args.restart_hours - args.deadline_hours
        raise BadInput(
            say(
                "money.deadline_too_early",
                work=figures(args.task_hours, 6),
                start=figures(args.restart_hours, 6),
                within=figures(args.deadline_hours, 6),
                short=figures(short, 6),
            )
        )
    capacity, used = read_capacity(
        Path(args.file), zones=args.zone or (), accelerator=args.accelerator, count=args.count
    )
    hours = capacity.ticks * capacity.tick_s / 3600
    if hours < args.deadline_hours:
        short = {"hours": figures(hours, 6), "deadline": figures(args.deadline_hours, 6)}
        raise BadInput(say("money.capacity_too_short", **short))
    task = Task(
        work_s=args.task_hours * 3600,
        deadline_s=args.deadline_hours * 3600,
        restart_s=args.restart_hours * 3600,
        spot_usd_per_hour=args.spot,
        on_demand_usd_per_hour=args.on_demand,
    )
    policies = compare(capacity, task, starts=args.starts)
    data = {"policies": policies, "zones": list(capacity.zones), "record": used, "starts": args.starts}
    return Answer(data, _deadline_text(args, data))


def _deadline_text(args: argparse.Namespace, data: dict[str, Any]) -> str:
    policies = data["policies"]
    highest = max(each["mean_cost_usd"] for each in policies.values())
    rows = [
        (
            name if name == "brim" else words(f"money.policy_{name}"),
            told(Usd(round(each["mean_cost_usd"] * MICROUSD))),
            str(each["misses"]),
            bar(each["mean_cost_usd"] / highest, 32).rstrip(),
        )
        for name, each in policies.items()
    ]
    usual = min(policies[name]["mean_cost_usd"] for name in ("greedy", "uniform_progress"))
    best, ours = policies["clairvoyant"]["mean_cost_usd"], policies["brim"]["mean_cost_usd"]
    saved = say("money.brim_saves", saved=Percent(1 - ours / usual, 1))
    if ours > usual:
        saved = say("money.brim_costs_more", more=Percent(ours / usual - 1, 1))
    elif usual > best:
        closed = Percent((usual - ours) / (usual - best))
        saved = say("money.brim_saves_of_possible", saved=Percent(1 - ours / usual, 1), closed=closed)
    head = words(
        "money.deadline_tried",
        work=figures(args.task_hours, 6),
        within=figures(args.deadline_hours, 6),
        starts=args.starts,
        record=data["record"],
        zones=", ".join(data["zones"]),
    )
    header = [*(words(f"money.col_{name}") for name in ("policy", "mean_cost", "missed")), ""]
    return "\n\n".join([paragraph(head), table(header, rows, right=(1, 2)), paragraph(saved)])


def clear(args: argparse.Namespace) -> Answer:
    book = parse_book(_text(args.file))
    cleared = auction.clear(book)
    return Answer(_as_dict(cleared), _shown(book, cleared))


def _as_dict(cleared: Cleared) -> dict[str, Any]:
    return {
        "pool": cleared.pool,
        "price": cleared.price / MICROUSD,
        "winners": [
            {"bid": win.bid.bid, "quantity": win.units, "limit": win.bid.limit / MICROUSD}
            for win in cleared.wins
        ],
        "losers": [
            {
                "bid": loss.bid.bid,
                "reason": loss.reason,
                "shadow_price": None if loss.shadow_price is None else loss.shadow_price / MICROUSD,
                "limit": loss.bid.limit / MICROUSD,
                "displaced_by": list(loss.displaced_by),
                "detail": str(loss.detail),
                "detail_code": loss.detail.as_dict(),
            }
            for loss in cleared.losses
        ],
    }


def _shown(book: Book, cleared: Cleared) -> str:
    price = words("money.per_gpu_hour", price=Usd(cleared.price))
    used = words("money.used", used=cleared.units, gpus=count("gpu", book.units))
    full = bar(cleared.units / book.units, 16)
    lines = [f"{paint(one_line(cleared.pool), 'bold')}  {price}  {full}  {used}", "", _depth(cleared)]
    if cleared.losses:
        rows = [
            (
                loss.bid.bid,
                told(Usd(loss.bid.limit)),
                "-" if loss.shadow_price is None else told(Usd(loss.shadow_price)),
                words(f"market.lost_{loss.reason}"),
            )
            for loss in cleared.losses[:SHOWN]
        ]
        more = len(cleared.losses) - SHOWN
        header = [words(f"money.col_{name}") for name in ("lost", "limit", "would_win", "why")]
        lines += ["", table(header, rows, right=(1, 2))]
        lines += [words("money.more_in_json", n=more)] if more > 0 else []
        blocked = next((loss for loss in cleared.losses if loss.displaced_by), None)
        if blocked:
            lines += ["", paragraph(Several((blocked.bid.bid, blocked.detail), between=": "))]
    return "\n".join(lines)


def _depth(cleared: Cleared) -> str:
    """The demand curve: who holds what, highest bid first."""
    if not cleared.wins:
        return words("money.nobody_wins")
    highest = max(win.bid.limit for win in cleared.wins)
    rows = [
        (
            words("money.won_running", bid=win.bid.bid) if win.bid.running else win.bid.bid,
            str(win.units),
            told(Usd(win.bid.limit)),
            bar(win.bid.limit / highest, 24).rstrip(),
        )
        for win in sorted(cleared.wins, key=lambda win: -win.bid.limit)[:SHOWN]
    ]
    more = len(cleared.wins) - SHOWN
    header = [*(words(f"money.col_{name}") for name in ("won", "gpus", "limit")), ""]
    return table(header, rows, right=(1, 2)) + ("\n" + words("money.more", n=more) if more > 0 else "")


def _text(name: str) -> str:
    def too_large(size: int) -> BadInput:
        return BadInput(say("money.too_large", file=name, size=Size(size), most=Size(MOST_BYTES)))

    try:
        with os_errors_as("money.unreadable", None, file=name):
            return read_given(Path(name), most=MOST_BYTES, too_large=too_large).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(say("money.not_text", file=name)) from error


VERBS = {
    "clear": Verb("brimful market clear examples/book.json", (FILE,), clear),
    "deadline": Verb(
        "brimful market deadline examples/spot.jsonl --zone a "
        "--task-hours 20 --deadline-hours 24 --starts 50",
        (FILE, _add_deadline),
        deadline,
    ),
}
