"""`brimful move`: run a job at another site."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.client.client import Client
from brimful.language.printable import printable

EXAMPLE = """brimful move job-7 --to west
brimful move job-7 --to any"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")
    parser.add_argument(
        "--to", required=True, metavar="SITE", help="a site of `brimful fleet`; any: wherever there is room"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    site = "" if args.to == "any" else args.to
    before = client.job(args.job)
    leaves = printable(before["site"]) if site and before["site"] and before["site"] != site else ""
    if args.dry_run:
        then = f"stopped at {leaves} and then " if leaves else ""
        return Answer(
            before,
            f"{args.job} is {before['phase']}; it would be {then}started at {args.to} (nothing was changed)",
        )
    job = client.move(args.job, site)
    where = f"at {args.to} only" if site else "wherever there is room"
    what = f"is being stopped at {leaves} and goes on" if leaves else "runs from its next lease on"
    return Answer(job, f"{args.job} {what} {where}")
