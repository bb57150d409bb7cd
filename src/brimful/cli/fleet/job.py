"""`brimful job`: one job, by its id. `show`, the longest, is in show.py."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brimful.cli.commands import NO, Answer, Verb, called
from brimful.cli.options import add_consent, add_dry_run, add_job, agree, usd
from brimful.cli.render import noted_table, paint, wrapped
from brimful.client.client import Client
from brimful.errors import BrimfulError, WorldFailed
from brimful.language.printable import all_printable, printable
from brimful.units import counted, show_usd

if TYPE_CHECKING:
    from brimful.client.answers import JobAnswer, LogAnswer, PoolAnswer, WhyAnswer

PIECE_BYTES = 1 << 20
POLL_S = 0.5


def why(args: argparse.Namespace) -> Answer:
    data = Client().why(args.job)
    return Answer(data, _why_text(all_printable(data)))


def _why_text(why: WhyAnswer) -> str:
    lines = [paint(f"{why['job']} is {why['phase']}", "bold"), ""]
    waiting = why["waiting"]
    if waiting and why["ahead"] is not None:
        ahead = f"{counted(why['ahead'], 'job')} before it" if why["ahead"] else "it is next"
        waiting = f"{waiting}; {ahead} in the order"
    said = {"waits": waiting, "is here": why["here"], "price": why["price"]}
    for name, text in said.items():
        if text:
            lines += wrapped(f"  {name:<9}", text)
    if not any(said.values()):
        lines.append("  it is over: `brimful job show` has its leases and its bill")
    if why["pools"]:
        lines += ["", _pools(why["pools"])]
    return "\n".join(lines)


def _pools(pools: list[PoolAnswer]) -> str:
    rows = [
        [
            pool["site"],
            pool["gpu"],
            f"{pool['free']} of {pool['gpus']}",
            show_usd(pool["microusd_per_gpu_hour"]),
            f"{pool['rate']:.2f}" if pool["rate"] else "",
            "" if pool["microusd_per_work_hour"] is None else show_usd(pool["microusd_per_work_hour"]),
        ]
        for pool in pools
    ]
    header = ["site", "GPU", "free", "per GPU-hour", "speed", "per hour of work"]
    return noted_table(header, rows, [pool["verdict"] for pool in pools], right=(2, 3, 4, 5))


def _add_logs(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--follow", "-f", action="store_true")


def logs(args: argparse.Namespace) -> Answer:
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
        or f"{args.job} has printed nothing (it is {phase}); see `{called()} job show {args.job}`"
    )
    return Answer(data, shown)


def follow(client: Client, job: str, *, quiet: bool = False) -> JobAnswer:
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
        sys.stderr.write(f"\n{job} goes on; `{called()} job cancel {job}` stops it\n")
        raise
    return client.job(job)


def _tell(client: Client, job: str) -> str:
    """Say once what it is doing while there is nothing to read."""
    now = client.job(job)
    if now["phase"] == "waiting" and not now["why"]:
        return ""
    if now["phase"] in ("waiting", "starting", "running"):
        why = f": {printable(now['why'])}" if now["why"] else ""
        sys.stderr.write(f"{job} {now['phase']}{why}\n")
    return now["phase"]


def _until_over(client: Client, job: str) -> Iterator[LogAnswer]:
    """Pieces of the log as it grows, from the newest lease on, until no more will come."""
    # The offset belongs to the lease, and a requeued job has another after it.
    lease: str | None = None
    offset = 0
    while True:
        piece = client.log(job, lease=lease, offset=offset, limit=PIECE_BYTES)
        yield piece
        is_new = (piece["lease"], piece["next_offset"]) != (lease, offset)
        lease, offset = piece["lease"], piece["next_offset"]
        if piece["over"] and offset >= piece["size"]:
            return
        if not is_new:
            time.sleep(POLL_S)


def _until_now(client: Client, job: str) -> Iterator[LogAnswer]:
    """Pieces of the newest lease's log up to the size it has now: a job that prints fast has no end."""
    piece = client.log(job, limit=PIECE_BYTES)
    lease, size = piece["lease"], piece["size"]
    while True:
        yield piece
        offset = piece["next_offset"]
        if offset >= size or not piece["text"]:
            return
        limit = min(PIECE_BYTES, max(size - offset, 4))
        piece = client.log(job, lease=lease, offset=offset, limit=limit)
        if piece["lease"] != lease:
            return


def _add_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+")
    add_dry_run(parser)


def cancel(args: argparse.Namespace) -> Answer:
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
        return Answer({"job": name, "error": error.as_dict()}, f"{name}: {error.problem}", NO)


def _cancel(client: Client, name: str, *, dry_run: bool) -> Answer:
    if dry_run:
        job = client.job(name)
        return Answer(job, f"{name} is {job['phase']} and would be cancelled (nothing was changed)")
    job = client.cancel(name)
    return Answer(job, f"{name} cancelled" if job["phase"] == "cancelled" else f"{name} is being stopped")


def _add_hold(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--reason", default="")
    add_dry_run(parser)


def hold(args: argparse.Namespace) -> Answer:
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
    return Answer(job, f"{text}\n\n  {called()} job release {args.job}")


def release(args: argparse.Namespace) -> Answer:
    job = Client().release(args.job)
    return Answer(job, f"{args.job} is {job['phase']}")


def _add_move(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--to", required=True, metavar="SITE")
    add_dry_run(parser)


def move(args: argparse.Namespace) -> Answer:
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


def _add_bid(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--limit", metavar="USD")
    which.add_argument("--class", dest="preset", action="store_true")
    add_consent(parser)


def bid(args: argparse.Namespace) -> Answer:
    limit = None if args.limit is None else usd(args.limit, "--limit")
    client = Client()
    job = client.job(args.job)
    if limit is None and not args.preset:
        return Answer(job, _bid_text(job))
    sentence = _bid_sentence(job, limit)
    if args.dry_run:
        return Answer(job, f"{sentence} (nothing was changed)")
    before = job["limit_microusd_per_gpu_hour"]
    if limit is None or before is None or limit > before:
        agree(sentence, yes=args.yes)
    return Answer(client.bid(args.job, limit), sentence)


def _bid_sentence(job: JobAnswer, limit: int | None) -> str:
    name, gpus = job["job"], counted(job["gpus"], "GPU")
    if limit is None:
        return f"{name} bids what its class ({job['priority']}) stands for, for {gpus}"
    hourly = show_usd(limit * job["gpus"])
    return f"{name} bids up to {show_usd(limit)} per GPU-hour for {gpus}: at most {hourly} an hour"


def _bid_text(job: JobAnswer) -> str:
    limit = job["limit_microusd_per_gpu_hour"]
    lease = job["leases"][-1] if job["leases"] and job["leases"][-1]["ended_s"] is None else None
    pays = f"\n  pays {show_usd(lease['microusd_per_gpu_hour'])} per GPU-hour now" if lease else ""
    why = f"\n  {job['why']}" if job["why"] else ""
    return f"{_bid_sentence(job, limit)}\n  it is {job['phase']}{pays}{why}"


VERBS = {
    "why": Verb("brimful job why job-1", add_job, why),
    "logs": Verb("brimful job logs job-1\nbrimful job logs -f job-1", _add_logs, logs),
    "cancel": Verb("brimful job cancel job-1\nbrimful job cancel job-2 job-3", _add_cancel, cancel),
    "hold": Verb(
        'brimful job hold job-7\nbrimful job hold job-7 --reason "the data set is being fixed"',
        _add_hold,
        hold,
    ),
    "release": Verb("brimful job release job-7", add_job, release),
    "move": Verb(
        "brimful job move job-7 --to west\nbrimful job move job-7 --to any",
        _add_move,
        move,
    ),
    "bid": Verb(
        "brimful job bid job-7\nbrimful job bid job-7 --limit 2.40 --yes\n"
        "brimful job bid job-7 --class --yes",
        _add_bid,
        bid,
    ),
}
