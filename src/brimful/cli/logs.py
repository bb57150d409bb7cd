"""`brimful logs`: what a job printed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from brimful.cli.commands import Answer, called
from brimful.client.client import Client, job_path
from brimful.language.printable import printable

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
    pieces = list(_until_over(client, args.job) if args.follow else _until_now(client, args.job))
    text, phase = "".join(piece["text"] for piece in pieces), pieces[-1]["phase"]
    data = {"job": args.job, "phase": phase, "text": text}
    shown = (
        text.removesuffix("\n")
        or f"{args.job} has printed nothing (it is {phase}); see `{called()} show {args.job}`"
    )
    return Answer(data, shown)


def follow(client: Client, job: str, *, quiet: bool = False) -> dict[str, Any]:
    """Print the log as it grows until the job is over; return the job as it ended.

    Why it waits goes to stderr: the log alone is what a pipe should see.
    """
    told = ""
    try:
        for piece in _until_over(client, job):
            if not quiet and piece["text"]:
                sys.stdout.write(piece["text"])
                sys.stdout.flush()
            elif not quiet and piece["phase"] != told:
                told = _tell(client, job)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{job} goes on; `{called()} cancel {job}` stops it\n")
        raise
    final: dict[str, Any] = client.get(job_path(job))
    return final


def _tell(client: Client, job: str) -> str:
    """Say once what it is doing while there is nothing to read."""
    now = client.get(job_path(job))
    if now["phase"] == "waiting" and not now["why"]:
        return ""
    if now["phase"] in ("waiting", "starting", "running"):
        why = f": {printable(now['why'])}" if now["why"] else ""
        sys.stderr.write(f"{job} {now['phase']}{why}\n")
    return str(now["phase"])


def _until_over(client: Client, job: str) -> Iterator[dict[str, Any]]:
    """Pieces of the log as it grows, from the newest lease on, until no more will come."""
    lease, offset = None, 0
    while True:
        piece = _piece(client, job, lease, offset)
        yield piece
        is_new = (piece["lease"], piece["next_offset"]) != (lease, offset)
        lease, offset = piece["lease"], piece["next_offset"]
        if piece["over"] and offset >= piece["size"]:
            return
        if not is_new:
            time.sleep(POLL_S)


def _until_now(client: Client, job: str) -> Iterator[dict[str, Any]]:
    """Pieces of the newest lease's log up to the size it has now: a job that prints fast has no end."""
    piece = _piece(client, job, None, 0)
    lease, size = piece["lease"], piece["size"]
    while True:
        yield piece
        offset = piece["next_offset"]
        if offset >= size or not piece["text"]:
            return
        piece = _piece(client, job, lease, offset, limit=min(PIECE_BYTES, max(size - offset, 4)))
        if piece["lease"] != lease:
            return


def _piece(
    client: Client, job: str, lease: str | None, offset: int, *, limit: int = PIECE_BYTES
) -> dict[str, Any]:
    """The next piece; the offset belongs to the lease, and a requeued job has another after it."""
    query = {"offset": offset, "limit": limit} | ({} if lease is None else {"lease": lease})
    piece: dict[str, Any] = client.get(job_path(job, "/log"), **query)
    return piece
