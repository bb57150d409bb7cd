"""`brimful nodes`: list nodes, drain one before maintenance, and give it work again."""

from __future__ import annotations

import argparse
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import noted_table
from brimful.client.client import Client
from brimful.errors import BadInput
from brimful.language.printable import all_printable, printable
from brimful.units import counted, show_usd

EXAMPLE = """brimful nodes
brimful nodes drain local-0 --reason "new fans"
brimful nodes resume local-0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "verb",
        nargs="?",
        choices=("list", "drain", "resume"),
        default="list",
        help="what to do (default: list)",
    )
    parser.add_argument("node", nargs="?", metavar="NODE", help="as the list shows it")
    parser.add_argument("--reason", default="", help="why it is drained")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        fleet = client.fleet()
        return Answer(fleet["nodes"], _list(all_printable(fleet["nodes"])))
    if args.node is None:
        raise BadInput(f"which node shall {args.verb}?", hint="`brimful nodes` lists them")
    if args.dry_run:
        return _dry_run(client, args)
    if args.verb == "drain":
        done = client.drain(args.node, args.reason)
        running = ", ".join(done["running"])
        goes_on = f"; {running} goes on there until it ends" if running else "; it is empty"
        return Answer(done, f"{printable(args.node)} starts nothing more{goes_on}")
    done = client.resume(args.node)
    return Answer(done, f"{printable(args.node)} takes work again")


def _dry_run(client: Client, args: argparse.Namespace) -> Answer:
    node = next((each for each in client.fleet()["nodes"] if each["node"] == args.node), None)
    if node is None:
        raise BadInput(f"there is no node {args.node[:100]!r}", hint="`brimful nodes` lists them")
    held = sum(gpu["held"] for gpu in node["gpus"])
    return Answer(node, f"{printable(args.node)}, {held} GPUs held, would {args.verb} (nothing was changed)")


def _list(nodes: list[dict[str, Any]]) -> str:
    if not nodes:
        return "no node has joined yet"
    rows = [
        [
            node["node"],
            node["site"],
            f"{len(node['gpus'])} x {node['gpu']}" + (" (declared)" if node["declared"] else ""),
            str(sum(gpu["held"] for gpu in node["gpus"])),
            show_usd(node["microusd_per_gpu_hour"]),
        ]
        for node in nodes
    ]
    notes = ["" if node["drained"] is None else f"drained: {node['drained']}" for node in nodes]
    drained = sum(node["drained"] is not None for node in nodes)
    foot = f"\n\n{counted(drained, 'node')} drained" if drained else ""
    return noted_table(["node", "site", "GPUs", "held", "per GPU-h"], rows, notes, right=(3, 4)) + foot
