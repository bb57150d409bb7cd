"""`brimful job show`: one job, its leases and its bill."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from brimful.cli.commands import Answer
from brimful.cli.fleet.jobs import ran, waited
from brimful.cli.render import noted_table, paint, wrapped
from brimful.client.client import Client
from brimful.language.printable import all_printable, command_line, measured_words
from brimful.units import counted, show_seconds, show_usd, spans

if TYPE_CHECKING:
    from brimful.client.answers import JobAnswer, LeaseAnswer

EXAMPLE = "brimful job show job-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB")


def run(args: argparse.Namespace) -> Answer:
    job = Client().job(args.job)
    return Answer(job, _text(all_printable(job)))


def _text(job: JobAnswer) -> str:
    budget = job["budget_microusd"]
    gpus = f"{counted(job['gpus'], 'GPU')}, {' or '.join(job['gpu_types']) or 'any type'}"
    facts = {
        "what": command_line(job["command"]),
        "in": job["folder"],
        "asks for": f"{gpus}, {job['priority']}",
        "tenant": job["tenant"],
        "submitted": clock(job["submitted_s"]),
        "waited": waited(job),
        "ran": ran(job) or "not yet",
        "delayed": f"{show_seconds(job['delay_s'])}: waits, restarts and lost work",
        "cost": show_usd(job["cost_microusd"]) + (f" of {show_usd(budget)}" if budget else ""),
    }
    if job["leases"]:
        facts["measured"] = _measured(job)
    why = f": {job['why']}" if job["why"] else ""
    title = f" ({job['name']})" if job["name"] else ""
    lines = [paint(line, "bold") for line in wrapped("", f"{job['job']}{title} is {job['phase']}{why}")]
    lines.append("")
    for name, value in facts.items():
        lines += wrapped(f"  {name:<10} ", value) or [f"  {name}"]
    if job["leases"]:
        lines += ["", _leases(job["leases"])]
    return "\n".join(lines)


def _measured(job: JobAnswer) -> str:
    """'3 s ago: step 120, 412 ms · 39,800 tokens/s · MFU 41.2% of 117 TFLOPS bf16 · …'"""
    found = job["measured"]
    if found is None:
        return ": ".join(filter(None, ("nothing", job["not_measured"])))
    (_, age), *facts = measured_words(found)
    parts = [
        text if name == "Speed" else f"{name.lower() if name != 'MFU' else name} {text}"
        for name, text in facts
    ]
    return f"{age}: {' · '.join(parts)}" + (f"; {found['idle']}" if found["idle"] else "")


def _leases(leases: list[LeaseAnswer]) -> str:
    today = f"{datetime.now(UTC).astimezone():%Y-%m-%d} "
    rows = [
        [
            lease["lease"],
            f"{lease['node']} GPU {spans(lease['gpus'])}",
            clock(lease["started_s"]).removeprefix(today),
            show_seconds(lease["billed_s"]),
            show_usd(lease["microusd_per_gpu_hour"]),
            show_usd(lease["cost_microusd"]),
        ]
        for lease in leases
    ]
    header = ["lease", "where", "started", "billed", "per GPU-h", "cost"]
    notes = [": ".join(filter(None, (lease["phase"], lease["reason"]))) for lease in leases]
    return noted_table(header, rows, notes, right=(3, 4, 5))


def day(at_s: int) -> str:
    return clock(at_s).partition(" ")[0]


def clock(at_s: int | None) -> str:
    """The viewer's local time; stored times are UTC."""
    if at_s is None:
        return "not yet"
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
