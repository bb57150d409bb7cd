"""`brimful runs score`: predict a table of measured runs, and report the errors."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from brimful.accuracy.runs import read_rows
from brimful.accuracy.score import Errors, Report, Scored, report, score
from brimful.cli.commands import Answer
from brimful.cli.render import table
from brimful.errors import BadInput
from brimful.files import write_whole
from brimful.language import Percent, count, say, told, words
from brimful.language.failures import os_errors_as
from brimful.units import GIB

EXAMPLE = """brimful runs score my_runs.csv
brimful runs score training_runs.csv --quality quality.csv --rows predictions.csv"""

COLUMNS = (
    "id",
    "predicted_allocated_gib",
    "predicted_reserved_gib",
    "predicted_device_gib",
    "predicted_fits",
    "predicted_tokens_per_s_per_gpu",
    "predicted_mfu",
    "skipped_because",
    "assumed",
)
MAX_REASONS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUNS.csv")
    parser.add_argument("--quality", metavar="CSV")
    parser.add_argument("--rows", metavar="OUT.csv")


def run(args: argparse.Namespace) -> Answer:
    quality = None
    if args.quality:
        quality = {row["id"]: row for row in read_rows(Path(args.quality), needed=("id",))}
    if args.rows:
        _check_target(Path(args.rows), {args.runs, args.quality})
    scored = score(read_rows(Path(args.runs)), quality)
    if not scored:
        raise BadInput(say("gpu.no_rows", runs=args.runs))
    if args.rows:
        _write_rows(Path(args.rows), scored)
    found = report(scored)
    return Answer(found.as_dict(), _text(found, args.runs, args.rows))


def _check_target(path: Path, inputs: set[str | None]) -> None:
    """Never overwrite the input, nor anything that is not a plain file."""
    if path.exists() and not path.is_file():
        raise BadInput(say("gpu.rows_not_a_file", path=path))
    if any(given and path.resolve() == Path(given).resolve() for given in inputs):
        raise BadInput(say("gpu.rows_is_the_input", path=path))


def _write_rows(path: Path, scored: list[Scored]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for each in scored:
        line: dict[str, object] = {"id": each.row["id"], "skipped_because": each.skipped_because}
        if each.set_aside:
            line["skipped_because"] = "; ".join(map(str, each.set_aside))
        if each.estimate is not None and each.run is not None:
            memory, speed = each.estimate.memory, each.estimate.speed
            line |= {
                "assumed": "; ".join(map(str, each.run.fallbacks)),
                "predicted_allocated_gib": f"{memory.allocated_bytes.likely / GIB:.4f}",
                "predicted_reserved_gib": f"{memory.reserved_bytes.likely / GIB:.4f}",
                "predicted_device_gib": f"{memory.device_bytes.likely / GIB:.4f}",
                "predicted_fits": each.estimate.fits,
                "predicted_tokens_per_s_per_gpu": f"{speed.tokens_per_s.likely / each.run.training.gpus:.2f}",
                "predicted_mfu": f"{speed.mfu.likely:.4f}",
            }
        writer.writerow(line)
    path = path.resolve()  # a link stays a link, and its target is written
    with os_errors_as("language.cannot_write", path=path):
        write_whole(path, out.getvalue())


def _text(found: Report, runs: str, rows: str | None) -> str:
    groups = {
        words("gpu.score_all"): found.memory,
        words("gpu.score_textbook"): found.textbook,
        **{f"  {name}": errors for name, errors in found.by_counter.items()},
        **{"  " + words("gpu.score_source", name=name): errors for name, errors in found.by_source.items()},
    }
    rates = {
        words("gpu.score_within_node"): found.rate_node,
        words("gpu.score_across_nodes"): found.rate_multi,
    }
    right = {"right": found.fits_right, "tried": found.fits_tried, "false": found.false_fits}
    blocks = [
        words("gpu.score_runs", runs=count("run", found.rows), file=runs),
        words("gpu.score_memory") + "\n" + _errors(groups),
        words("gpu.score_fits", **right),
        words("gpu.score_rates") + "\n" + _errors(rates),
    ]
    if found.mfu_tried:
        blocks.append(words("gpu.score_mfu", within=found.mfu_within, tried=found.mfu_tried))
    if found.skipped:
        head = words("gpu.score_skipped", n=sum(n for _, n in found.skipped))
        worst = [f"  {n} x {told(reason)}" for reason, n in found.skipped[:MAX_REASONS]]
        blocks.append("\n".join([head, *worst]))
    if rows:
        blocks.append(words("gpu.score_written", file=rows))
    return "\n\n".join(blocks)


def _errors(groups: dict[str, Errors | None]) -> str:
    body = [
        [name, told(e.n), told(Percent(e.median, 1)), told(Percent(e.p90, 1)), _signed(e.bias)]
        for name, e in groups.items()
        if e
    ]
    if not body:
        return "  " + words("gpu.score_nothing")
    codes = ("gpu.runs", "gpu.score_median", "gpu.score_p90", "gpu.score_bias")
    return table(["", *map(words, codes)], body, right=(1, 2, 3, 4))


def _signed(frac: float) -> str:
    return ("" if frac < 0 else "+") + told(Percent(frac, 1))
