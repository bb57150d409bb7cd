"""`brimful job show`: one job, its leases and its bill."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from brimful.cli.commands import Answer
from brimful.cli.fleet.jobs import columns, in_phase, ran, waited
from brimful.cli.render import noted_table, paint, wrapped
from brimful.client.answers import JobAnswer, LeaseAnswer
from brimful.client.client import Client
from brimful.client.shown import command_line, measured_said
from brimful.language import Seconds, Several, Usd, count, either, say, told, words
from brimful.language.printable import all_printable
from brimful.units import spans

EXAMPLE = "brimful job show job-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB")


def run(args: argparse.Namespace) -> Answer:
    job = Client().job(args.job)
    return Answer(job, _text(all_printable(job)))


def _text(job: JobAnswer) -> str:
    budget = job["budget_microusd"]
    types = either(job["gpu_types"]) if job["gpu_types"] else say("fleet.any_type")
    cost = Usd(job["cost_microusd"])
    facts = {
        "what": command_line(job["command"]),
        "folder": job["folder"],
        "asks": f"{told(count('gpu', job['gpus']))}, {told(types)}, {job['priority']}",
        "tenant": job["tenant"],
        "submitted": clock(job["submitted_s"]),
        "waited": waited(job),
        "ran": ran(job) or words("fleet.not_yet"),
        "delayed": words("fleet.delay", delay=Seconds(job["delay_s"])),
        "cost": words("fleet.cost_of", cost=cost, budget=Usd(budget)) if budget else told(cost),
    }
    if job["leases"]:
        facts["measured"] = _measured(job)
    title = f"{job['job']} ({job['name']})" if job["name"] else job["job"]
    doing = say("fleet.job_is", job=title, phase=in_phase(job["phase"]))
    head = words("fleet.said_why", said=doing, why=job["why"]) if job["why"] else told(doing)
    lines = [paint(line, "bold") for line in wrapped("", head)]
    lines.append("")
    for name, value in facts.items():
        title = words(f"fleet.row_{name}")
        lines += wrapped(f"  {title:<10} ", value) or [f"  {title}"]
    if job["leases"]:
        lines += ["", _leases(job["leases"])]
    return "\n".join(lines)


def _measured(job: JobAnswer) -> str:
    """'3 s ago: step 120, 412 ms · 39,800 tokens/s · MFU 41.2% of 117 TFLOPS bf16 · …'"""
    found = job["measured"]
    if found is None:
        nothing = say("fleet.nothing")
        why = job["not_measured"]
        return words("fleet.said_why", said=nothing, why=why) if why else told(nothing)
    (_, age), *facts = measured_said(found)
    parts = tuple(say(f"fleet.measured_{name}", said=said) for name, said in facts)
    shown = say("fleet.measured", age=age, facts=Several(parts, " · "))
    return words("fleet.measured_idle", said=shown, idle=found["idle"]) if found["idle"] else told(shown)


def _leases(leases: list[LeaseAnswer]) -> str:
    today = f"{datetime.now(UTC).astimezone():%Y-%m-%d} "
    rows = [
        [
            lease["lease"],
            _where(lease),
            clock(lease["started_s"]).removeprefix(today),
            told(Seconds(lease["billed_s"])),
            told(Usd(lease["microusd_per_gpu_hour"])),
            told(Usd(lease["cost_microusd"])),
        ]
        for lease in leases
    ]
    header = columns("lease", "where", "started", "billed", "per_gpu_h", "cost")
    notes = [_lease_note(lease) for lease in leases]
    return noted_table(header, rows, notes, right=(3, 4, 5))


def _where(lease: LeaseAnswer) -> str:
    parts = [(lease["node"], lease["gpus"]), *lease["rest"]]
    return ", ".join(f"{node} GPU {spans(gpus)}" for node, gpus in parts)


def _lease_note(lease: LeaseAnswer) -> str:
    phase, why = in_phase(lease["phase"]), lease["reason"]
    return words("fleet.said_why", said=phase, why=why) if why else told(phase)


def day(at_s: int) -> str:
    return clock(at_s).partition(" ")[0]


def clock(at_s: int | None) -> str:
    """The viewer's local time; stored times are UTC."""
    if at_s is None:
        return words("fleet.not_yet")
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
