"""`brimful why`: why a job waits, why it is where it is, and why it costs what it costs."""

from __future__ import annotations

import argparse
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import noted_table, paint, wrapped
from brimful.client.client import Client
from brimful.language.printable import all_printable
from brimful.units import counted, show_usd

EXAMPLE = "brimful why job-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")


def run(args: argparse.Namespace) -> Answer:
    data = Client().why(args.job)
    return Answer(data, _text(all_printable(data)))


def _text(why: dict[str, Any]) -> str:
    lines = [paint(f"{why['job']} is {why['phase']}", "bold"), ""]
    waiting = why["waiting"]
    if waiting and why["ahead"] is not None:
        ahead = f"{counted(why['ahead'], 'job')} before it" if why["ahead"] else "it is next"
        waiting = f"{waiting}; {ahead} in the order"
    said = {"waits": waiting, "is here": why["here"], "price": why["price"]}
    for name, text in said.items():
        if text:
            lines += wrapped(f"  {name:<9}", text)
    if not any(said.values()):
        lines.append("  it is over: `brimful show` has its leases and its bill")
    if why["pools"]:
        lines += ["", _pools(why["pools"])]
    return "\n".join(lines)


def _pools(pools: list[dict[str, Any]]) -> str:
    rows = [
        [
            pool["site"],
            pool["gpu"],
            f"{pool['free']} of {pool['gpus']}",
            show_usd(pool["microusd_per_gpu_hour"]),
            f"{pool['rate']:.2f}" if pool["rate"] else "",
            "" if pool["microusd_per_work_hour"] is None else show_usd(pool["microusd_per_work_hour"]),
        ]
        for pool in pools
    ]
    header = ["site", "GPU", "free", "per GPU-hour", "speed", "per hour of work"]
    return noted_table(header, rows, [pool["verdict"] for pool in pools], right=(2, 3, 4, 5))
