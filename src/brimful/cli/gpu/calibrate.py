"""`brimful runs calibrate`: correct the estimates by runs you measured yourself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.render import table
from brimful.errors import BadInput
from brimful.language import os_words, say

if TYPE_CHECKING:
    import argparse

    from brimful.accuracy.calibrate import Calibration

EXAMPLE = """brimful runs calibrate my_runs.csv
brimful runs calibrate my_runs.csv --write
brimful runs calibrate --forget"""

NAMES = {
    "allocated": "allocated memory",
    "reserved": "reserved memory",
    "device": "memory nvidia-smi shows",
    "tokens_per_s": "tokens per second",
}
MAX_NAMED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUNS.csv", nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--forget", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    from brimful.accuracy.calibrate import calibrate, enough
    from brimful.accuracy.runs import read_rows
    from brimful.accuracy.score import report, score
    from brimful.fit.correction import calibration_path, write_correction

    path = calibration_path()
    if args.forget:
        return _forget(path, dry_run=args.dry_run, asked=args.runs or args.write)
    if args.runs is None:
        raise BadInput(say("gpu.no_table_runs_named"))
    scored = score(read_rows(Path(args.runs)))
    found = calibrate(scored)
    enough(found)
    skipped = report(scored).skipped
    helps = bool(found.correction.factors)
    written = args.write and not args.dry_run and helps
    if written:
        write_correction(path, found.correction)
    data: dict[str, Any] = {
        "factors": {name: factor.as_dict() for name, factor in found.factors.items()},
        "too_few": dict(found.too_few),
        "set_aside": [{"id": id, "counter": name, "ratio": ratio} for id, name, ratio in found.set_aside],
        "skipped": skipped,
        "gpus": list(found.gpus),
        "file": str(path),
        "written": written,
    }
    return Answer(data, _text(args, found, skipped, path, written=written), YES if helps else NO)


def _forget(path: Path, *, dry_run: bool, asked: object) -> Answer:
    from brimful.errors import WorldFailed

    if asked:
        raise BadInput(say("gpu.forget_goes_alone"))
    there = path.is_file()
    if there and not dry_run:
        try:
            path.unlink()
        except OSError as error:
            raise WorldFailed(say("gpu.cannot_remove_2", path=path, error=os_words(error))) from error
    said = f"{'would remove' if dry_run else 'removed'} {path}" if there else "no correction is kept"
    return Answer({"file": str(path), "removed": there and not dry_run}, said)


def _text(
    args: argparse.Namespace, found: Calibration, skipped: dict[str, int], path: Path, *, written: bool
) -> str:
    header = ["", "runs", "measured / predicted", "least", "most", "error now", "corrected", ""]
    rows = [
        [
            NAMES[name],
            str(f.runs),
            f"x{f.factor:.3f}",
            f"x{f.low:.2f}",
            f"x{f.high:.2f}",
            f"{f.error_before:.1%}",
            f"{f.error_after:.1%}",
            "used" if f.helps else "not used: no better",
        ]
        for name, f in found.factors.items()
    ]
    lines = [table(header, rows, right=(1, 2, 3, 4, 5, 6)), ""]
    lines.append("corrected: the median error of each run, corrected by the others alone")
    lines += [f"too few runs of {NAMES[name]}: {runs}" for name, runs in found.too_few.items()]
    for id, name, ratio in found.set_aside[:MAX_NAMED]:
        lines.append(f"set aside: {id}, {NAMES[name]} x{ratio:.2f} of what we say; check unit and counter")
    if len(found.set_aside) > MAX_NAMED:
        lines.append(f"set aside: {len(found.set_aside) - MAX_NAMED} more")
    if skipped:
        lines.append(f"skipped: {sum(skipped.values())} rows; `brimful runs score {args.runs}` says why")
    lines.append("")
    if not found.correction.factors:
        lines.append("nothing to keep: the estimates are as good without a correction")
    elif written:
        lines.append(f"written: {path}; `brimful fit` applies it from now on")
    else:
        lines.append(f"not written; --write keeps it in {path}, and `brimful fit` applies it")
    return "\n".join(lines)
