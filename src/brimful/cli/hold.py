"""`brimful hold`: keep a job from starting, or stop it until it is released."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer, called
from brimful.client.client import Client

EXAMPLE = """brimful hold job-7
brimful hold job-7 --reason "the data set is being fixed\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")
    parser.add_argument("--reason", default="", help="what to tell those who wonder")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.dry_run:
        job = client.job(args.job)
        stop = " and would be stopped first" if job["node"] else ""
        return Answer(job, f"{args.job} is {job['phase']}, would be put on hold{stop} (nothing was changed)")
    job = client.hold(args.job, args.reason)
    if job["phase"] == "held":
        text = f"{args.job} is on hold"
    else:
        text = f"{args.job} is being stopped, with the notice a preemption gives, and then stays on hold"
    return Answer(job, f"{text}\n\n  {called()} release {args.job}")
