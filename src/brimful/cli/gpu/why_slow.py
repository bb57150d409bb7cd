"""`brimful why-slow`: from samples to the cause, its evidence, and the change that helps."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from brimful.cli.commands import NO, YES, Answer, integer
from brimful.cli.options import own_correction
from brimful.cli.render import paint, wrapped
from brimful.configs.read import read
from brimful.diagnose.findings import CANNOT_TELL, HEALTHY, Diagnosis, cause_words
from brimful.diagnose.slow import diagnose
from brimful.errors import BadInput
from brimful.fit.fit import fit_reading
from brimful.language import Percent, Seconds, say, told, words
from brimful.meter.nvml import NvidiaDriver
from brimful.meter.samples import Sample, read_samples
from brimful.specs.gpu import find_gpu

EXAMPLE = """\
brimful why-slow run.jsonl
brimful why-slow run.jsonl run.rank1.jsonl
brimful why-slow run.jsonl --look 10
brimful why-slow run.jsonl --config examples/nanogpt/train_fineweb.py --gpu rtx-4070"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("samples", nargs="+", type=Path)
    parser.add_argument("--look", type=integer, metavar="SECONDS")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(args: argparse.Namespace) -> Answer:
    looks = _look(args.look) if args.look else []
    files = [list(read_samples(path)) for path in args.samples] + [looks]
    found = diagnose(files, estimate=_estimate(args))
    return Answer(found.as_dict(), _text(found), NO if found.cause == CANNOT_TELL else YES)


def _look(seconds: int) -> list[Sample]:
    """What the driver says while the run continues; its steps of that time are read afterwards."""

    found: list[Sample] = []
    with closing(NvidiaDriver()) as driver:
        for _ in range(seconds):
            found += driver.look(time.time())
            time.sleep(1)
    return found


def _estimate(args: argparse.Namespace) -> dict[str, Any] | None:
    if args.config is None and args.model is None:
        if args.set or args.gpu:
            raise BadInput(say("gpu.gpu_needs_config"))
        return None
    if args.gpu is None:
        raise BadInput(say("gpu.no_card"), hint=say("gpu.hint_name_card"))

    reading = read(args.config, model=args.model, overrides=args.set)
    return fit_reading(reading, find_gpu(args.gpu), correction=own_correction()).as_dict()


def _text(found: Diagnosis) -> str:
    lines = []
    if not found.findings:
        style = "green" if found.verdict == HEALTHY else "yellow"
        verdict = told(cause_words(found.verdict)).upper()
        lines += wrapped(paint(verdict, style) + "  ", found.says)
    for number, finding in enumerate(found.findings):
        cause = cause_words(finding.cause)
        head = words("slow.also", cause=cause) if number else told(cause).upper()
        lines += [head if number else paint(head, "bold"), *wrapped("  ", finding.says)]
        for evidence in finding.evidence:
            lines += wrapped("  - ", evidence)
        lines += [*wrapped(f"  {words('slow.to_do')} ", finding.change), ""]
    if found.step_s is not None:
        looked = {"steps": found.steps, "step": Seconds(found.step_s)}
        said = say("slow.looked_at", **looked)
        if found.mfu is not None:
            said = say("slow.looked_at_mfu", mfu=Percent(found.mfu, 1), **looked)
        lines.append(paint(told(said), "dim"))
    if found.missing:
        lines.append(paint(words("slow.to_tell_more"), "dim"))
        lines += [line for what in found.missing for line in wrapped("  - ", what)]
    return "\n".join(lines).rstrip()
