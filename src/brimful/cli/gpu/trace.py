"""`brimful trace`: run your own script for two steps without a GPU and say what a GPU would hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from brimful.allocator import Settings
from brimful.allocator.timeline import LAYERS, OTHERS, Timeline, write_html, write_png
from brimful.cli.commands import NO, YES, Answer, integer
from brimful.cli.gpu.trace_text import show
from brimful.language import told, tongue, words
from brimful.specs.gpu import find_gpu
from brimful.specs.parts import PARTS, part
from brimful.tracing.items import key
from brimful.tracing.launch import trace_script
from brimful.tracing.program import need_torch

EXAMPLE = """\
brimful trace examples/train_gpt2.py --gpu rtx-4070
brimful trace examples/train_gpt2.py --gpu rtx-4070 -- --batch 8
brimful trace examples/train_gpt2.py --gpu h100 --conf expandable_segments:True --json"""

TAKES_COMMAND = True
LIMIT_S = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", type=Path)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--steps", type=integer, default=2)
    parser.add_argument("--conf", metavar="SETTINGS")
    parser.add_argument("--gpus", metavar="N", type=integer, default=1)
    parser.add_argument("--limit", metavar="SECONDS", type=integer, default=LIMIT_S)
    parser.add_argument("--html", metavar="FILE", type=Path)
    parser.add_argument("--png", metavar="FILE", type=Path)
    parser.add_argument("--rough", action="store_true")


def run(options: argparse.Namespace) -> Answer:
    gpu = find_gpu(options.gpu)
    Settings.parse(options.conf or "")
    if options.script.is_file():  # else that is what is wrong, whatever else is missing
        need_torch()
    data = trace_script(
        options.script,
        options.command,
        gpu=gpu.name,
        steps=options.steps,
        limit_s=options.limit,
        settings=options.conf,
        rough=options.rough,
        world=options.gpus,
    )
    _draw(data, options)
    return Answer(data, show(data, gpu, options.script.name), YES if data["fits"] else NO)


def _draw(data: dict[str, Any], options: argparse.Namespace) -> None:
    """The timeline as pictures, where asked for."""

    if not (options.html or options.png):
        return
    names = {key(code): part(code) for code in PARTS}
    line, failure = data["timeline"], data["out_of_memory"]
    layers = sorted(line["by_category"].items(), key=lambda pair: -max(pair[1]))
    if len(layers) > LAYERS:
        rest = [sum(values) for values in zip(*(values for _, values in layers[LAYERS:]), strict=True)]
        layers = [*layers[:LAYERS], (OTHERS, rest)]
    picture = Timeline(
        title=words(
            "gpu.trace_title",
            script=options.script.name,
            gpu=data["gpu"],
            steps=data["steps"],
        ),
        tongue=tongue(),
        x=tuple(line["event"]),
        layers=tuple(
            (name if name == OTHERS else told(names[name]), tuple(values)) for name, values in layers
        ),
        reserved=tuple(zip(line["event"], line["reserved_bytes"], strict=True)),
        capacity_bytes=data["usable_bytes"],
        failed_at=failure["event"] if failure else None,
        failure=words("gpu.out_of_memory", op=failure["op"], line=failure["line"]) if failure else "",
    )
    if options.html:
        write_html(picture, options.html)
    if options.png:
        write_png(picture, options.png)
