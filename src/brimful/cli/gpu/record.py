"""`brimful runs record`: a measured run, as rows that `score` and `calibrate` read."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from brimful.cli.commands import Answer
from brimful.cli.render import wrapped
from brimful.configs.reading import Reading
from brimful.configs.settings import own_word
from brimful.diagnose.record import append_rows, rows_of
from brimful.errors import BadInput
from brimful.guard.command import read_command
from brimful.guard.forecast import read_settings
from brimful.language import say, told, words
from brimful.meter.samples import RunSample, Sample, read_samples
from brimful.specs.gpu import find_gpu

EXAMPLE = """\
brimful runs record run.jsonl --config config/train_gpt2.py
brimful runs record run.jsonl --model llama-3.1-8b --set batch_size=4 --to my_runs.csv
brimful runs score my_runs.csv && brimful runs calibrate my_runs.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("samples", type=Path)
    parser.add_argument("--to", type=Path, default=Path("my_runs.csv"), metavar="FILE")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--source", metavar="NAME")
    parser.add_argument("--dry-run", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    samples: list[Sample] = list(read_samples(args.samples))
    first = next((sample for sample in reversed(samples) if isinstance(sample, RunSample)), None)
    if first is None:
        raise BadInput(say("gpu.holds_no_run", samples=args.samples))
    card = args.gpu or first.gpu
    if card is None:
        raise BadInput(say("gpu.card_unknown", device=first.device))
    source = re.sub(r"[^\w.]", "_", args.source or first.host or "own")
    found = rows_of(samples, _reading(args, first), find_gpu(card), source=source)
    new = [] if args.dry_run else append_rows(args.to, found.rows)
    data = {
        "file": str(args.to),
        "written": new,
        "rows": [{key: value for key, value in row.items() if value} for row in found.rows],
        "cannot_say": [told(what) for what in found.unsaid],
        "cannot_say_codes": [what.as_dict() for what in found.unsaid],
    }
    done = "gpu.record_would_write" if args.dry_run else "gpu.record_wrote"
    ids = ", ".join(row["id"] for row in found.rows)
    lines = [words(done if new or args.dry_run else "gpu.record_nothing_new", file=args.to, ids=ids)]
    row = found.rows[0]
    rate = words("gpu.record_rate", model=row["model"], gpu=row["gpu"], rate=row["tokens_per_s_per_gpu"])
    kinds = [f"{r['peak_mem_gib']} GiB {r['mem_kind']}" for r in found.rows if r["peak_mem_gib"]]
    lines += wrapped("  ", ", ".join([rate, *kinds]))
    head = f"  {words('gpu.record_unsaid')} "
    lines += [line for what in found.unsaid for line in wrapped(head, what)]
    return Answer(data, "\n".join(lines))


def _reading(args: argparse.Namespace, first: RunSample) -> Reading:
    """What was run: from the user or the run's own command line, plus what the Meter was told."""

    metered = [f"{key}={value}" for key, value in first.more.items() if own_word(key) is not None]
    if first.world > 1:
        metered.append(f"gpus={first.world}")
    command = read_command(["python", *first.command])
    return read_settings(command, config=args.config, model=args.model, sets=[*metered, *args.set])
