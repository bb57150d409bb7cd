"""`brimful top`: the fleet, live in the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from brimful.cli.commands import Answer, integer
from brimful.cli.fleet.jobs import CELLS, label
from brimful.cli.fleet.jobs import columns as titles
from brimful.cli.render import bar, cut, live, paint, table
from brimful.client.answers import JobAnswer, MeasuredAnswer, NodeAnswer
from brimful.client.client import Client
from brimful.errors import WorldFailed
from brimful.language import Percent, Usd, count, say, told, words
from brimful.language.printable import all_printable

EXAMPLE = """brimful top
brimful top --once"""

ROOM = 24  # columns that what or why needs to say something
GOING = ["running", "starting", "stopping", "waiting", "held", "pending"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=integer, default=2, metavar="S")
    parser.add_argument("--once", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.once or args.json or not sys.stdout.isatty():
        data = _look(client)
        return Answer(data, screen(data, *shutil.get_terminal_size((100, 30))))

    def draw(columns: int, lines: int) -> str:
        try:
            return screen(_look(client), columns, lines)
        except WorldFailed as error:
            lost = words("fleet.connection_lost", problem=error.said)
            return f"{paint(lost, 'red')}\n\n{words('fleet.retrying')}"

    live(draw, every_s=args.every)
    return Answer(None, "")


def _look(client: Client) -> dict[str, Any]:
    return {
        "fleet": client.fleet(),
        "spend": client.spend(),
        "jobs": client.jobs(limit=200, phase=GOING),
    }


def screen(data: dict[str, Any], columns: int, lines: int) -> str:
    """Everything on one screen of this size; what does not fit is counted, not silently dropped."""
    shown = all_printable(data)
    fleet, spend, jobs = shown["fleet"], shown["spend"], shown["jobs"]
    held = sum(gpu["held"] for node in fleet["nodes"] for gpu in node["gpus"])
    total = fleet["gpus"]
    width = max(8, min(30, columns - 62))
    rate = fleet["allocation_rate"]
    full = paint(bar(held / total if total else 0, width), "cyan")
    allocated = say("fleet.unknown") if rate is None else Percent(rate)
    posted, accruing = Usd(spend["posted_microusd"]), Usd(spend["accruing_microusd"])
    gpus = words("fleet.gpus_held", held=held, gpus=total)
    head = f"{paint('brimful', 'bold')}  {full} {gpus}"
    tail = words("fleet.top_spent", allocated=allocated, posted=posted, accruing=accruing)
    plain = len(f"brimful  {'':{width}} {gpus}   {tail}")
    out = [f"{head}   {tail}", ""] if plain <= columns else [head, tail, ""]
    if fleet["trouble"]:
        out += [paint(words("fleet.scheduler_trouble", trouble=fleet["trouble"]), "red"), ""]
    problems = fleet["problems"].items()
    out += [paint(words("fleet.site_problem", site=site, problem=why), "yellow") for site, why in problems]
    out += _nodes(fleet["nodes"], columns, most=max(3, lines // 3))
    out.append("")
    out += _jobs(jobs, columns, most=max(3, lines - len(out) - 3))
    return "\n".join(out)


def _nodes(nodes: list[NodeAnswer], columns: int, *, most: int) -> list[str]:
    wide = max((len(node["node"]) for node in nodes), default=0)
    out = []
    for node in nodes[:most]:
        cells = "".join("■" if gpu["held"] else "·" for gpu in node["gpus"])[: max(8, columns - wide - 42)]
        state = "" if node["drained"] is None else paint(f"  {words('fleet.drained')}", "yellow")
        out.append(
            f"{node['node']:<{wide}}  {paint(cells, 'cyan')}  {node['gpu']}"
            f"  {words('fleet.per_gpu_h', price=Usd(node['microusd_per_gpu_hour']))}{state}"
        )
    return out + _more("node", len(nodes) - most)


def _more(noun: str, n: int) -> list[str]:
    return [words("fleet.more", counted=count(noun, n))] if n > 0 else []


def _jobs(jobs: list[JobAnswer], columns: int, *, most: int) -> list[str]:
    if not jobs:
        return [words("fleet.no_jobs_going"), "", "  brimful submit -- python examples/train_tiny.py"]
    order = {phase: i for i, phase in enumerate(GOING)}
    jobs = sorted(jobs, key=lambda job: order.get(job["phase"], 9))
    rows = [
        [
            *(cell(job) for cell in CELLS.values()),
            _mfu(job["measured"]),
            told(Usd(job["cost_microusd"])),
            job["node"] or "",
            job["why"] if job["phase"] in ("waiting", "held", "pending") else label(job),
        ]
        for job in jobs[:most]
    ]
    header = titles(*CELLS, "MFU", "cost", "node", "what_or_why")
    shown = _columns_with_room([header, *rows], columns)
    header, rows = [header[i] for i in shown], [[row[i] for i in shown] for row in rows]
    text = table(header, rows, right=[at for at, i in enumerate(shown) if 2 <= i <= 6])
    title, *lines = (cut(line, columns) for line in text.splitlines())
    return [paint(title, "dim"), *lines, *_more("job", len(jobs) - most)]


def _columns_with_room(cells: list[list[str]], columns: int) -> list[int]:
    """Which columns to show: on a narrow screen the node and the MFU give way to what or why."""
    last = len(cells[0]) - 1
    shown = list(range(last + 1))
    for spare in (last - 1, last - 3):
        taken = sum(2 + max(len(row[i]) for row in cells) for i in shown[:-1])
        if columns - taken >= ROOM:
            break
        shown.remove(spare)
    return shown


def _mfu(found: MeasuredAnswer | None) -> str:
    """As measured by the job itself, while it is current."""
    if found is None:
        return ""
    if found["idle"]:
        return words("fleet.idle")
    return told(Percent(found["mfu"])) if found["fresh"] and found["mfu"] is not None else ""
