"""`brimful submit`: hand over a command."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from brimful.adapters.engines.found import catalog_name
from brimful.cli.client import Client, job_path
from brimful.cli.commands import NO, Answer, called, whole
from brimful.cli.logs import follow
from brimful.errors import BadInput
from brimful.fleet.job import PRIORITIES
from brimful.server.words import all_printable, printable
from brimful.units import microusd_from_usd, show_usd

EXAMPLE = """brimful submit -- python examples/train_tiny.py
brimful submit --gpus 2 --priority background --budget 1.50 --follow -- python train.py --lr 3e-4"""

TAKES_COMMAND = True
LOOKS = 20  # a tenth of a second apart
# What makes `python` mean the same in the job as in the shell that submits it.
CARRIED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_ALL", "TZ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "brimful submit [options] -- COMMAND [ARG ...]"
    parser.add_argument(
        "--gpus", type=whole, default=1, metavar="N", help="how many, all on one node (default 1)"
    )
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="TYPE", help="allowed GPU type (default: any)"
    )
    parser.add_argument("--name", default="", help="what to call it in lists")
    parser.add_argument("--priority", choices=list(PRIORITIES), default="normal", help="who goes first")
    parser.add_argument("--tenant", default="default", help="whose account pays")
    parser.add_argument("--budget", metavar="USD", help="stop it before it costs more than this")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the job's environment"
    )
    parser.add_argument(
        "--follow", "-f", action="store_true", help="show its log until it ends; exit 1 if it failed"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be submitted, and change nothing"
    )


def run(args: argparse.Namespace) -> Answer:
    if not args.command:
        raise BadInput(
            "there is no command to run", hint="put it after --: brimful submit -- python train.py"
        )
    body = _body(args)
    if args.dry_run:
        return Answer(body, _dry_text(all_printable(body)))
    client = Client()
    job = client.post("/v1/jobs", body)
    if args.follow:
        final = follow(client, job["job"], quiet=args.json)
        why = printable(final["why"])
        outcome = f"{job['job']} {final['phase']}" + (f": {why}" if why else "")
        text = f"{outcome}  (cost {show_usd(final['cost_microusd'])})"
        return Answer(final, text, 0 if final["phase"] == "finished" else NO)
    job = _after_a_look(client, job)
    why = f": {printable(job['why'])}" if job["why"] else ""
    state = f"{job['job']} {'submitted, ' if job['phase'] == 'waiting' else ''}{job['phase']}{why}"
    return Answer(job, f"{state}\n\n  {called()} logs -f {job['job']}\n  {called()} show {job['job']}")


def _after_a_look(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """The job once the scheduler has looked at it: one that can never start should say so at once."""
    for _ in range(LOOKS):
        job = client.get(job_path(job["job"]))
        if job["phase"] != "waiting" or job["why"]:
            break
        time.sleep(0.1)
    return job


def _body(args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {
        "command": args.command,
        "folder": _folder(),
        "gpus": args.gpus,
        "gpu_types": [catalog_name(text) for text in args.gpu],
        "name": args.name,
        "priority": args.priority,
        "tenant": args.tenant,
        "env": {key: os.environ[key] for key in CARRIED if key in os.environ} | _pairs(args.env),
    }
    if args.budget is not None:
        body["budget_microusd"] = microusd_from_usd(args.budget)
        if not body["budget_microusd"]:
            raise BadInput(
                f"--budget is {args.budget[:40]!r}", hint="a sum in dollars above zero, such as 1.50"
            )
    return body


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise BadInput(
            "the folder you are in is not there any more", hint="cd into one that is, and submit again"
        ) from error


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (equals and key.isidentifier()):
            raise BadInput(f"--env {pair[:60]!r} is not NAME=VALUE", hint="--env WANDB_MODE=offline")
        pairs[key] = value
    return pairs


def _dry_text(body: dict[str, Any]) -> str:
    budget = body.get("budget_microusd")
    return "\n".join(
        [
            "would submit (nothing was changed):",
            f"  command   {' '.join(body['command'])}",
            f"  in        {body['folder']}",
            f"  GPUs      {body['gpus']} ({' or '.join(body['gpu_types']) or 'any type'}), on one node",
            f"  priority  {body['priority']}",
            f"  budget    {show_usd(budget) if budget else 'none: it runs until it ends'}",
        ]
    )
