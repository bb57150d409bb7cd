"""`brimful jobs`: what runs, what waits and why."""

from __future__ import annotations

import argparse
from typing import Any

from brimful.cli.client import Client
from brimful.cli.commands import Answer, whole
from brimful.cli.render import table
from brimful.server.words import all_printable
from brimful.units import show_seconds, show_usd

EXAMPLE = """brimful jobs --limit 20
brimful jobs --phase waiting --phase held"""

PHASES = (
    "waiting",
    "held",
    "starting",
    "running",
    "stopping",
    "finished",
    "failed",
    "stopped",
    "cancelled",
    "unknown",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=whole, default=50, metavar="N", help="how many, newest first (default 50)"
    )
    parser.add_argument(
        "--phase", action="append", default=[], choices=PHASES, help="only these (may be given again)"
    )
    parser.add_argument("--tenant", help="only this tenant's")


def run(args: argparse.Namespace) -> Answer:
    data = {"jobs": Client().jobs(limit=args.limit, phase=args.phase, tenant=args.tenant)}
    if not data["jobs"] and (args.phase or args.tenant):
        return Answer(data, "no such jobs")
    if not data["jobs"]:
        return Answer(data, "no jobs yet\n\n  brimful submit -- python examples/train_tiny.py")
    header = ["job", "phase", "GPUs", "waited", "ran", "cost", "what"]
    shown = all_printable(data["jobs"])
    rows = [
        [
            job["job"],
            job["phase"],
            str(job["gpus"]),
            waited(job),
            ran(job),
            show_usd(job["cost_microusd"]),
            label(job),
        ]
        for job in shown
    ]
    title, *lines = table(header, rows, right=(2, 3, 4, 5)).splitlines()
    # The reason stands on a line of its own, whole: it is what people come for, and what they grep.
    for at, job in reversed(list(enumerate(shown))):
        if job["why"]:
            lines.insert(at + 1, f"    {job['why']}")
    return Answer(data, "\n".join([title, *lines]))


def label(job: dict[str, Any]) -> str:
    urgency = "" if job["priority"] == "normal" else f" ({job['priority']})"
    return _cut(job["name"] or " ".join(job["command"]), 36) + urgency


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
