"""`brimful cancel`: stop jobs, or take them out of the queue."""

from __future__ import annotations

import argparse
from typing import Any

from brimful.cli.commands import NO, Answer
from brimful.client.client import Client
from brimful.errors import BrimfulError, WorldFailed

EXAMPLE = """brimful cancel job-1
brimful cancel job-2 job-3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="ids, as `brimful jobs` shows them")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if len(args.jobs) == 1:
        return _cancel(client, args.jobs[0], dry_run=args.dry_run)
    answers = [_one_of_several(client, name, dry_run=args.dry_run) for name in dict.fromkeys(args.jobs)]
    return Answer(
        [each.data for each in answers],
        "\n".join(each.text for each in answers),
        max(each.exit_code for each in answers),
    )


def _one_of_several(client: Client, name: str, *, dry_run: bool) -> Answer:
    """What is wrong with one keeps nobody from the others."""
    try:
        return _cancel(client, name, dry_run=dry_run)
    except WorldFailed:
        raise
    except BrimfulError as error:
        data: dict[str, Any] = {"job": name, "error": error.as_dict()}
        return Answer(data, f"{name}: {error.problem}", NO)


def _cancel(client: Client, name: str, *, dry_run: bool) -> Answer:
    if dry_run:
        job = client.job(name)
        return Answer(job, f"{name} is {job['phase']} and would be cancelled (nothing was changed)")
    job = client.cancel(name)
    return Answer(job, f"{name} cancelled" if job["phase"] == "cancelled" else f"{name} is being stopped")
