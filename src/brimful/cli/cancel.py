"""`brimful cancel`: stop a job, or take it out of the queue."""

from __future__ import annotations

import argparse

from brimful.cli.client import Client
from brimful.cli.commands import Answer

EXAMPLE = "brimful cancel job-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.dry_run:
        job = client.job(args.job)
        return Answer(job, f"{args.job} is {job['phase']} and would be cancelled (nothing was changed)")
    job = client.cancel(args.job)
    text = f"{args.job} cancelled" if job["phase"] == "cancelled" else f"{args.job} is being stopped"
    return Answer(job, text)
