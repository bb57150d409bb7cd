"""`brimful check` (`runs check`): five short runs on your own GPU, predicted against measured."""

from __future__ import annotations

import argparse
import re
import socket
import time
from os import getpid
from pathlib import Path
from statistics import fmean
from typing import Any

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.render import paragraph, table
from brimful.configs.reading import Reading
from brimful.diagnose.record import append_rows, rows_of
from brimful.errors import WorldFailed
from brimful.language import Percent, Size, say, told, tongue, words
from brimful.meter.samples import RunSample, Sample, StepSample
from brimful.specs.estimate import Interval
from brimful.specs.gpu import Gpu, find_gpu
from brimful.tracing.check import Measured, ShortRun, card_here, measure, short_runs
from brimful.tracing.program import need_torch

EXAMPLE = """\
brimful runs check
brimful runs check --to my_runs.csv
brimful runs check --gpu rtx-4070 --json"""

COUNTED = ("allocated", "reserved", "step", "mfu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--to", type=Path, metavar="FILE")
    parser.add_argument("--source", metavar="NAME")


def run(args: argparse.Namespace) -> Answer:
    need_torch()
    name, free = card_here()
    gpu = find_gpu(args.gpu or name)
    runs = short_runs(gpu, free)
    if not runs:
        raise WorldFailed(say("gpu.check_no_room", gpu=gpu.title, free=Size(free)), code="no_room")
    done = [(each, measure(each, time.perf_counter)) for each in runs]
    shown = [_compared(each, measured) for each, measured in done]
    source = re.sub(r"[^\w.]", "_", args.source or socket.gethostname() or "own")
    rows = [row for each, measured in done if measured for row in _rows(each, measured, gpu, name, source)]
    written = append_rows(args.to, rows) if args.to else []
    off = [f"{each['run']}:{what}" for each in shown for what in each["outside"]]
    data = {
        "gpu": gpu.name,
        "card": name,
        "runs": shown,
        "verdict": "agrees" if not off else "disagrees",
        "outside": off,
        "file": str(args.to) if args.to else None,
        "written": written,
        "rows": [{key: value for key, value in row.items() if value} for row in rows],
    }
    return Answer(data, _text(data, gpu), NO if off else YES)


def _compared(short: ShortRun, measured: Measured | None) -> dict[str, Any]:
    """Each counter, predicted and measured, and which measurements are outside their interval."""
    memory, speed = short.predicted.memory, short.predicted.speed
    found: dict[str, Any] = {
        "run": short.code,
        "model": short.model.name,
        "batch_size": short.training.batch_size,
        "ran_out": measured is None,
        "outside": ["memory"] if measured is None else [],
    }
    if measured is None:
        return found
    step_s = fmean(measured.steps_s)
    pairs: dict[str, tuple[Interval, float]] = {
        "allocated": (memory.allocated_bytes, measured.allocated_bytes),
        "reserved": (memory.reserved_bytes, measured.reserved_bytes),
        "step": (speed.step_s, step_s),
        # Both use the same FLOPs, so MFU differs as the times do.
        "mfu": (speed.mfu, speed.mfu.likely * speed.step_s.likely / step_s),
    }
    for what, (predicted, value) in pairs.items():
        found[what] = {"predicted": predicted.as_dict(), "measured": value}
        found[what]["error"] = predicted.likely / value - 1
        if not predicted.low <= value <= predicted.high:
            found["outside"].append(what)
    return found


def _rows(short: ShortRun, measured: Measured, gpu: Gpu, card: str, source: str) -> list[dict[str, str]]:
    """The run in the format that `score` and `calibrate` read."""
    import torch

    training, now = short.training, time.time()
    mfu = short.predicted.speed.mfu.likely * short.predicted.speed.step_s.likely
    samples: list[Sample] = [
        RunSample(
            at_s=now, pid=getpid(), host=source, model=short.model.name, gpu=card, torch=torch.__version__,
            flops_source="formula", tokens_per_step=training.step_tokens,
        ),
        *(
            StepSample(
                at_s=now, step=i, step_s=s, tokens=training.step_tokens, mfu=mfu / s,
                peak_allocated_bytes=measured.allocated_bytes, peak_reserved_bytes=measured.reserved_bytes,
            )
            for i, s in enumerate(measured.steps_s)
        ),
    ]  # fmt: skip
    reading = Reading(model=short.model, training=training, assumed=(), warnings=())
    found = rows_of(samples, reading, gpu, source=f"{source}-{short.code}")
    return list(found.rows)


def _text(data: dict[str, Any], gpu: Gpu) -> str:
    header = ["", *(words(f"gpu.check_{what}") for what in COUNTED[:-1]), "MFU"]
    titles = [words(f"gpu.check_run_{each['run']}", batch=each["batch_size"]) for each in data["runs"]]
    rows = [
        [title, *("-" if each["ran_out"] else _cell(what, each[what]) for what in COUNTED)]
        for title, each in zip(titles, data["runs"], strict=True)
    ]
    lines = [words("gpu.check_head", gpu=gpu.title, card=data["card"]), ""]
    lines += [table(header, rows, right=(1, 2, 3, 4)), "", paragraph(words("gpu.check_how"))]
    for title, each in zip(titles, data["runs"], strict=True):
        if each["ran_out"]:
            lines.append(paragraph(words("gpu.check_ran_out", run=title)))
    outside = len(data["outside"])
    lines.append(paragraph(words("gpu.check_disagrees", n=outside) if outside else words("gpu.check_agrees")))
    if data["file"]:
        lines.append(words("gpu.check_wrote", file=data["file"], n=len(data["written"])))
    else:
        lines.append(paragraph(words("gpu.check_share")))
    return "\n".join(lines)


def _cell(what: str, pair: dict[str, Any]) -> str:
    """The measurement, and the error of the prediction; not for MFU, whose error is the step's."""
    value, error = pair["measured"], pair["error"]
    if what == "mfu":
        return told(Percent(value, 1))
    shown = f"{tongue().number(1000 * value, 1)} ms" if what == "step" else told(Size(value))
    return f"{shown} ({'+' if error >= 0 else '-'}{told(Percent(abs(error)))})"
