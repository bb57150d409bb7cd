"""`brimful jobs`: what runs, what waits and why."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from brimful.cli.client import Client
from brimful.cli.commands import Answer
from brimful.cli.render import table
from brimful.server.words import all_printable
from brimful.units import show_seconds, show_usd

EXAMPLE = "brimful jobs --limit 20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=int, default=50, metavar="N", help="how many, newest first (default 50)"
    )


def run(args: argparse.Namespace) -> Answer:
    data = Client().get("/v1/jobs", limit=args.limit)
    if not data["jobs"]:
        return Answer(data, "no jobs yet\n\n  brimful submit -- python examples/train_tiny.py")
    rows = [
        [
            job["job"],
            label(job),
            job["phase"],
            str(job["gpus"]),
            job["priority"],
            waited(job),
            ran(job),
            show_usd(job["cost_microusd"]),
            job["why"],
        ]
        for job in all_printable(data["jobs"])
    ]
    header = ["job", "what", "phase", "GPUs", "priority", "waited", "ran", "cost", "why"]
    text = table(header, rows, right=(3, 5, 6, 7))
    width = shutil.get_terminal_size((160, 24)).columns
    return Answer(data, "\n".join(_cut(line, width) for line in text.splitlines()))


def label(job: dict[str, Any]) -> str:
    return _cut(job["name"] or " ".join(job["command"]), 40)


def waited(job: dict[str, Any]) -> str:
    """Until its first start, or until now."""
    if job["started_s"] is None and job["ended_s"] is not None:
        return show_seconds(job["ended_s"] - job["submitted_s"])
    end_s = job["now_s"] if job["started_s"] is None else job["started_s"]
    return show_seconds(max(0, end_s - job["submitted_s"]))


def ran(job: dict[str, Any]) -> str:
    """The time its leases are billed for; empty where it never ran."""
    seconds = sum(lease["billed_s"] for lease in job["leases"])
    return show_seconds(seconds) if job["started_s"] is not None else ""


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
