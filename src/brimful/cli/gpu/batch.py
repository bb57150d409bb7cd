"""`brimful batch`: a file of prompts through a model, by workers that may be killed at any time."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from brimful.cli.commands import NO, YES, Answer, integer
from brimful.errors import WorldFailed
from brimful.guard.batch import SHARD_LINES, Batch, load_model
from brimful.language import Number, Seconds, Usd, say, words
from brimful.units import MICROUSD

EXAMPLE = """\
brimful runs batch prompts.jsonl --model tiny --out answers.jsonl --workers 4
brimful runs batch prompts.jsonl --model Qwen/Qwen3-0.6B --out answers.jsonl --usd-per-hour 0.35"""
TRIES = 20  # how often a dead worker is restarted before someone should look


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--workers", type=integer, default=1, metavar="N")
    parser.add_argument("--output-tokens", type=integer, default=64, metavar="N")
    parser.add_argument("--shard-lines", type=integer, default=SHARD_LINES, metavar="N")
    parser.add_argument("--usd-per-hour", type=float, metavar="USD")
    parser.add_argument("--worker", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    batch = Batch(args.file, args.out, args.shard_lines)
    if args.worker or args.workers == 1:
        done = batch.work(load_model(args.model, output_tokens=args.output_tokens))
        if args.worker:
            return Answer({"lines": done}, "")
    else:
        _run_workers(batch, args)
    report = batch.join()
    usd = None if args.usd_per_hour is None else report.usd_per_million_tokens(args.usd_per_hour)
    data = asdict(report)
    data |= {"worker_seconds": round(data.pop("seconds"), 3), "usd_per_million_tokens": usd}
    text = words(
        "guard.batch_done",
        lines=Number(report.lines),
        failed=Number(report.failed),
        tokens=Number(report.prompt_tokens + report.output_tokens),
        seconds=Seconds(report.seconds),
        path=args.out,
    )
    if usd is not None:
        text += "\n" + words("guard.batch_cost", usd=Usd(round(usd * MICROUSD)))
    return Answer(data, text, NO if report.failed else YES)


def _run_workers(batch: Batch, args: argparse.Namespace) -> None:
    """Run workers until every shard is complete; replace those that die."""
    command = [sys.executable, "-m", "brimful.cli.main", "batch", str(args.file), "--worker"]
    command += ["--model", args.model, "--out", str(args.out)]
    command += ["--output-tokens", str(args.output_tokens), "--shard-lines", str(args.shard_lines)]
    for _ in range(TRIES):
        workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(args.workers)]
        for worker in workers:
            worker.wait()
        if batch.is_done():
            return
    raise WorldFailed(say("guard.batch_unfinished", folder=batch.folder))
