"""`brimful jobs`: what runs, what waits and why."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import get_args

from brimful.cli.commands import Answer, integer
from brimful.cli.render import cut, noted_table
from brimful.client.answers import JobAnswer, Phase
from brimful.client.client import Client
from brimful.client.shown import command_line
from brimful.language import Seconds, Sentence, Usd, say, told, words
from brimful.language.catalog import is_held
from brimful.language.printable import all_printable

EXAMPLE = """brimful jobs --limit 20
brimful jobs --phase waiting --phase held"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=integer, default=50, metavar="N")
    parser.add_argument("--phase", action="append", default=[], choices=get_args(Phase))
    parser.add_argument("--tenant")


def run(args: argparse.Namespace) -> Answer:
    data = {"jobs": Client().jobs(limit=args.limit, phase=args.phase, tenant=args.tenant)}
    if not data["jobs"] and (args.phase or args.tenant):
        return Answer(data, words("fleet.no_such_jobs"))
    if not data["jobs"]:
        return Answer(
            data, f"{words('fleet.no_jobs_yet')}\n\n  brimful submit -- python examples/train_tiny.py"
        )
    shown = all_printable(data["jobs"])
    rows = [
        [*(cell(job) for cell in CELLS.values()), told(Usd(job["cost_microusd"])), label(job)]
        for job in shown
    ]
    notes = [job["why"] for job in shown]
    return Answer(data, noted_table(columns(*CELLS, "cost", "what"), rows, notes, right=(2, 3, 4, 5)))


def columns(*names: str) -> list[str]:
    """Titles of a table's columns; what is written in capitals is the same in every language."""
    return [name if name.isupper() else words(f"fleet.col_{name}") for name in names]


def in_phase(name: str) -> Sentence | str:
    """What a job is doing, in words; as it is where a newer server has more phases."""
    return say(f"fleet.phase_{name}") if is_held(f"fleet.phase_{name}") else name


def label(job: JobAnswer) -> str:
    urgency = "" if job["priority"] == "normal" else f"{job['priority']}: "
    return urgency + cut(job["name"] or command_line(job["command"]), 36)


def waited(job: JobAnswer) -> str:
    """All the time it was here and did not run: before its first start, and after each stop."""
    until_s = job["now_s"] if job["ended_s"] is None else job["ended_s"]
    ran_s = sum(lease["billed_s"] for lease in job["leases"])
    return told(Seconds(max(0, until_s - job["submitted_s"] - ran_s)))


def ran(job: JobAnswer) -> str:
    """The time its leases are billed for; empty where it never ran."""
    seconds = sum(lease["billed_s"] for lease in job["leases"])
    return told(Seconds(seconds)) if job["started_s"] is not None else ""


# Column -> what it says of a job.
CELLS: dict[str, Callable[[JobAnswer], str]] = {
    "job": lambda job: job["job"],
    "phase": lambda job: told(in_phase(job["phase"])),
    "gpus": lambda job: str(job["gpus"]),
    "waited": waited,
    "ran": ran,
}
