"""`brimful release`: let a job that is on hold go on."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.client.client import Client

EXAMPLE = "brimful release job-7"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")


def run(args: argparse.Namespace) -> Answer:
    job = Client().release(args.job)
    return Answer(job, f"{args.job} is {job['phase']}")
