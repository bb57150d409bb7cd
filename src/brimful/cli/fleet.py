"""`brimful fleet`: nodes, GPUs, and who holds them."""

from __future__ import annotations

import argparse
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import table, wrapped
from brimful.client.client import Client
from brimful.language.printable import all_printable
from brimful.units import show_usd

EXAMPLE = "brimful fleet"


def add_arguments(parser: argparse.ArgumentParser) -> None:  # noqa: ARG001 - it takes none of its own
    return


def run(args: argparse.Namespace) -> Answer:  # noqa: ARG001
    data = Client().fleet()
    fleet = all_printable(data)
    rows = [
        [
            node["node"],
            str(gpu["index"]),
            node["gpu"] + (" (declared)" if node["declared"] else ""),
            gpu["job"] or _state(node, gpu),
            f"{show_usd(node['microusd_per_gpu_hour'])}/h",
            "unknown" if gpu["mfu"] is None else f"{gpu['mfu']:.0%}",
        ]
        for node in fleet["nodes"]
        for gpu in node["gpus"]
    ]
    lines = [f"{fleet['free']} of {fleet['gpus']} GPUs are free", ""]
    lines.append(table(["node", "GPU", "type", "held by", "price", "MFU"], rows, right=(1, 4)))
    for site, problem in fleet["problems"].items():
        lines += ["", *wrapped(f"site {site}: ", problem)]
    if fleet["trouble"]:
        lines.append(f"\nthe scheduler is in trouble: {fleet['trouble']}")
    return Answer(data, "\n".join(lines))


def _state(node: dict[str, Any], gpu: dict[str, Any]) -> str:
    if gpu["held"]:
        return "held"
    if gpu["bad"]:
        return "bad"
    return "free" if node["drained"] is None else "drained"
