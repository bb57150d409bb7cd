"""`brimful jobs`: what runs, what waits and why."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import get_args

from brimful.cli.commands import Answer, integer
from brimful.cli.render import cut, noted_table
from brimful.client.answers import ArrayAnswer, JobAnswer, Phase
from brimful.client.client import Client
from brimful.client.shown import command_line
from brimful.language import Seconds, Sentence, Several, Usd, say, told, words
from brimful.language.catalog import is_held
from brimful.language.printable import all_printable

EXAMPLE = """brimful jobs --limit 20
brimful jobs --phase waiting --phase held"""
# An array shows the first of these phases that one of its tasks has.
FIRST = (
    *("running", "starting", "stopping", "waiting", "held", "pending"),
    *("failed", "stopped", "skipped", "cancelled", "finished"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=integer, default=50, metavar="N")
    parser.add_argument("--phase", action="append", default=[], choices=get_args(Phase), metavar="PHASE")
    parser.add_argument("--tenant")
    parser.add_argument("--array", metavar="JOB")


def run(args: argparse.Namespace) -> Answer:
    fold = args.array is None
    found = Client().jobs(limit=args.limit, phase=args.phase, tenant=args.tenant, array=args.array, fold=fold)
    data = {"jobs": found}
    if not data["jobs"] and (args.phase or args.tenant or args.array):
        return Answer(data, words("fleet.no_such_jobs"))
    if not data["jobs"]:
        return Answer(
            data, f"{words('fleet.no_jobs_yet')}\n\n  brimful submit -- python examples/train_tiny.py"
        )
    shown = all_printable(data["jobs"])
    folded = [job["array_tasks"] if fold else None for job in shown]
    rows = [_folded(job, tasks) if tasks else _row(job) for job, tasks in zip(shown, folded, strict=True)]
    notes = [_counts(tasks) if tasks else job["why"] for job, tasks in zip(shown, folded, strict=True)]
    return Answer(data, noted_table(columns(*CELLS, "cost", "what"), rows, notes, right=(2, 3, 4, 5)))


def _row(job: JobAnswer) -> list[str]:
    return [*(cell(job) for cell in CELLS.values()), told(Usd(job["cost_microusd"])), label(job)]


def _folded(job: JobAnswer, tasks: ArrayAnswer) -> list[str]:
    """One line for all tasks: the most telling phase, and their total run time and cost."""
    phase = next((name for name in FIRST if name in tasks["phases"]), job["phase"])
    ran = told(Seconds(tasks["run_s"])) if tasks["run_s"] else ""
    cost = told(Usd(tasks["cost_microusd"]))
    return [job["array"], told(in_phase(phase)), str(job["gpus"]), "", ran, cost, label(job)]


def _counts(tasks: ArrayAnswer) -> str:
    phases = [name for name in FIRST if name in tasks["phases"]]
    counts = [say(f"fleet.tasks_{name}", n=tasks["phases"][name]) for name in phases]
    return words("fleet.array_counts", tasks=tasks["tasks"], counts=Several(tuple(counts)))


def columns(*names: str) -> list[str]:
    """Titles of a table's columns; words in capitals are the same in every language."""
    return [name if name.isupper() else words(f"fleet.col_{name}") for name in names]


def in_phase(name: str) -> Sentence | str:
    """What a job is doing, in words; unchanged if a newer server has more phases."""
    return say(f"fleet.phase_{name}") if is_held(f"fleet.phase_{name}") else name


def does(name: str) -> Sentence | str:
    """The same as a verb, for a sentence: 'is running', 'has failed'."""
    return say(f"fleet.verb_{name}") if is_held(f"fleet.verb_{name}") else name


def label(job: JobAnswer) -> str:
    urgency = "" if job["priority"] == "normal" else f"{job['priority']}: "
    return urgency + cut(job["name"] or command_line(job["command"]), 36)


def waited(job: JobAnswer) -> str:
    """All the time since submit that it did not run: before its first start, and after each stop."""
    until_s = job["now_s"] if job["ended_s"] is None else job["ended_s"]
    ran_s = sum(lease["billed_s"] for lease in job["leases"])
    # Without the wait for jobs that must come first.
    if job["phase"] in ("pending", "skipped"):
        return ""
    return told(Seconds(max(0, until_s - job["ready_s"] - ran_s)))


def ran(job: JobAnswer) -> str:
    """The time its leases are billed for; empty if it never ran."""
    seconds = sum(lease["billed_s"] for lease in job["leases"])
    return told(Seconds(seconds)) if job["started_s"] is not None else ""


# Column -> its text for a job.
CELLS: dict[str, Callable[[JobAnswer], str]] = {
    "job": lambda job: job["job"],
    "phase": lambda job: told(in_phase(job["phase"])),
    "gpus": lambda job: str(job["gpus"]),
    "waited": waited,
    "ran": ran,
}
