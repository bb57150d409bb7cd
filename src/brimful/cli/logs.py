"""`brimful logs`: what a job printed."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from brimful.cli.client import Client, job_path
from brimful.cli.commands import Answer

EXAMPLE = """brimful logs job-1
brimful logs -f job-1"""

PIECE_BYTES = 1 << 20
POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")
    parser.add_argument("--follow", "-f", action="store_true", help="keep showing it until the job ends")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.follow and not args.json:
        final = follow(client, args.job)
        sys.stderr.write(f"{args.job} {final['phase']}\n")
        return Answer(None, "")
    text, offset = "", 0
    while True:
        piece = client.get(job_path(args.job, "/log"), offset=offset, limit=PIECE_BYTES)
        text += piece["text"]
        if piece["next_offset"] == offset and (piece["over"] or not args.follow):
            break
        if piece["next_offset"] == offset:
            time.sleep(POLL_S)
        offset = piece["next_offset"]
    data = {"job": args.job, "phase": piece["phase"], "text": text}
    shown = text.removesuffix("\n") or f"{args.job} has printed nothing (it is {piece['phase']})"
    return Answer(data, shown)


def follow(client: Client, job: str, *, quiet: bool = False) -> dict[str, Any]:
    """Print the log as it grows until the job is over; return the job as it ended."""
    offset = 0
    while True:
        piece = client.get(job_path(job, "/log"), offset=offset, limit=PIECE_BYTES)
        if not quiet and piece["text"]:
            sys.stdout.write(piece["text"])
            sys.stdout.flush()
        if piece["over"] and piece["next_offset"] == offset:
            final: dict[str, Any] = client.get(job_path(job))
            return final
        if piece["next_offset"] == offset:
            time.sleep(POLL_S)
        offset = piece["next_offset"]
