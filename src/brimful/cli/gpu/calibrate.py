"""`brimful runs calibrate`: correct the estimates with runs you measured yourself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from brimful.accuracy.calibrate import Calibration, calibrate, enough
from brimful.accuracy.runs import read_rows
from brimful.accuracy.score import report, score
from brimful.cli.commands import NO, YES, Answer
from brimful.cli.render import table
from brimful.errors import BadInput
from brimful.fit.correction import calibration_path, write_correction
from brimful.language import Factor, Percent, say, told, tongue, words
from brimful.language.failures import os_errors_as

EXAMPLE = """brimful runs calibrate my_runs.csv
brimful runs calibrate my_runs.csv --write
brimful runs calibrate --forget"""

MAX_NAMED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUNS.csv", nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--forget", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    path = calibration_path(os.environ)
    if args.forget:
        return _forget(path, dry_run=args.dry_run, asked=args.runs or args.write)
    if args.runs is None:
        raise BadInput(say("gpu.no_runs_named"))
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
        "skipped": {str(reason): n for reason, n in skipped},
        "skipped_codes": [{"reason": reason.as_dict(), "runs": n} for reason, n in skipped],
        "gpus": list(found.gpus),
        "file": str(path),
        "written": written,
    }
    return Answer(
        data, _text(args, found, sum(n for _, n in skipped), path, written=written), YES if helps else NO
    )


def _forget(path: Path, *, dry_run: bool, asked: object) -> Answer:
    if asked:
        raise BadInput(say("gpu.forget_goes_alone"))
    there = path.is_file()
    if there and not dry_run:
        with os_errors_as("gpu.cannot_remove", path=path):
            path.unlink()
    said = words("gpu.calibrate_nothing_kept")
    if there:
        said = words("gpu.calibrate_would_remove" if dry_run else "gpu.calibrate_removed", path=path)
    return Answer({"file": str(path), "removed": there and not dry_run}, said)


def _text(args: argparse.Namespace, found: Calibration, skipped: int, path: Path, *, written: bool) -> str:
    rows = [
        [
            words(f"gpu.calibrate_{name}"),
            told(f.runs),
            *(f"x{tongue().number(x, digits)}" for x, digits in ((f.factor, 3), (f.low, 2), (f.high, 2))),
            told(Percent(f.error_before, 1)),
            told(Percent(f.error_after, 1)),
            words("gpu.calibrate_used" if f.helps else "gpu.calibrate_not_used"),
        ]
        for name, f in found.factors.items()
    ]
    names = ("ratio", "least", "most", "error_now", "corrected")
    header = ["", words("gpu.runs"), *(words(f"gpu.calibrate_{name}") for name in names), ""]
    lines = [table(header, rows, right=(1, 2, 3, 4, 5, 6)), "", words("gpu.calibrate_how")]
    for name, runs in found.too_few.items():
        lines.append(words("gpu.calibrate_too_few", counter=say(f"gpu.calibrate_{name}"), runs=runs))
    for id, name, ratio in found.set_aside[:MAX_NAMED]:
        counter = say(f"gpu.calibrate_{name}")
        lines.append(words("gpu.calibrate_set_aside", id=id, counter=counter, ratio=Factor(ratio)))
    if len(found.set_aside) > MAX_NAMED:
        lines.append(words("gpu.calibrate_set_aside_more", n=len(found.set_aside) - MAX_NAMED))
    if skipped:
        lines.append(words("gpu.calibrate_skipped", n=skipped, file=args.runs))
    code = "gpu.calibrate_written" if written else "gpu.calibrate_not_written"
    if not found.correction.factors:
        code = "gpu.calibrate_no_better"
    return "\n".join([*lines, "", words(code, path=path)])
