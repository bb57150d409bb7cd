"""`brimful bid`: what a job offers for an hour of a GPU, and how to change it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from brimful.cli.commands import Answer
from brimful.client.client import Client
from brimful.errors import BadInput, Refused
from brimful.units import counted, microusd_from_usd, show_usd

if TYPE_CHECKING:
    from brimful.client.answers import JobAnswer

EXAMPLE = """brimful bid job-7
brimful bid job-7 --limit 2.40 --yes
brimful bid job-7 --class --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--limit", metavar="USD", help="the most it pays for a GPU-hour, in dollars")
    which.add_argument(
        "--class", dest="preset", action="store_true", help="back to what its class stands for (4, 2, 1.25)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before it may cost more")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    limit = None if args.limit is None else usd(args.limit, "--limit")
    client = Client()
    job = client.job(args.job)
    if limit is None and not args.preset:
        return Answer(job, _shown(job))
    sentence = _sentence(job, limit)
    if args.dry_run:
        return Answer(job, f"{sentence} (nothing was changed)")
    if _may_cost_more(job, limit):
        agree(sentence, yes=args.yes)
    return Answer(client.bid(args.job, limit), sentence)


def usd(text: str, what: str, *, zero: bool = False) -> int:
    """Micro-dollars a person wrote; never a guess."""
    microusd = microusd_from_usd(text)
    if microusd is None or (microusd == 0 and not zero):
        raise BadInput(
            f"{what} is {text[:40]!r}, which is no sum of money",
            hint="dollars such as 2.40, six decimals at most",
        )
    if microusd > 10**15:
        raise BadInput(f"{what} is {show_usd(microusd)}, a slip of the pen", hint="a billion dollars at most")
    return microusd


def agree(sentence: str, *, yes: bool) -> None:
    """Spending needs consent: `--yes`, or an answer where somebody can give one."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"not done: {sentence}", hint="add --yes to agree", code="needs_consent")
    sys.stdout.write(f"{sentence}. Go on? [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("not done", code="needs_consent")


def _may_cost_more(job: JobAnswer, limit: int | None) -> bool:
    before = job["limit_microusd_per_gpu_hour"]
    return limit is None or before is None or limit > before


def _sentence(job: JobAnswer, limit: int | None) -> str:
    name, gpus = job["job"], counted(job["gpus"], "GPU")
    if limit is None:
        return f"{name} bids what its class ({job['priority']}) stands for, for {gpus}"
    hourly = show_usd(limit * job["gpus"])
    return f"{name} bids up to {show_usd(limit)} per GPU-hour for {gpus}: at most {hourly} an hour"


def _shown(job: JobAnswer) -> str:
    limit = job["limit_microusd_per_gpu_hour"]
    lease = job["leases"][-1] if job["leases"] and job["leases"][-1]["ended_s"] is None else None
    pays = f"\n  pays {show_usd(lease['microusd_per_gpu_hour'])} per GPU-hour now" if lease else ""
    why = f"\n  {job['why']}" if job["why"] else ""
    return f"{_sentence(job, limit)}\n  it is {job['phase']}{pays}{why}"
