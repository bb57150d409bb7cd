"""`brimful trace`: run your own script for two steps without a GPU and report what a GPU would hold."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.allocator import Settings
from brimful.allocator.timeline import LAYERS, OTHERS, Timeline, write_html, write_png
from brimful.cli.commands import NO, YES, Answer, integer
from brimful.cli.gpu.fit_text import chance_in_words
from brimful.cli.render import bar, columns_of, paint, paragraph, table
from brimful.language import (
    Number,
    Percent,
    Seconds,
    Sentence,
    Several,
    Size,
    count,
    figures,
    say,
    told,
    tongue,
    words,
)
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.parts import PARTS, part
from brimful.tracing.fixes import fix_name
from brimful.tracing.items import OUTSIDE, key
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
    if options.script.is_file():  # otherwise the missing script is the error
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
    """The timeline as charts, if requested."""

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


_WIDTH = 80
_OUTSIDE = ("rounding", "allocator_cache", "cuda_context", "workspaces", "kernel_buffers")  # not tensors
_PHASES = {
    "setup": say("gpu.set_up"),
    "forward": say("gpu.forward"),
    "backward": say("gpu.backward"),
    "optimizer": say("gpu.optimizer"),
}


_VERDICTS = {
    "fits": (say("gpu.fits"), "green"),
    "does_not_fit": (say("gpu.does_not_fit"), "red"),
    "cannot_tell": (say("gpu.trace_cannot_tell"), "yellow"),
}


def said_again(data: dict[str, Any]) -> Sentence:
    """A sentence that the traced process recorded: its code and its plain values."""
    return Sentence(data["code"], {name: value for name, value in data.items() if name != "code"})


def show(data: dict[str, Any], gpu: Gpu, script: str) -> str:
    blocks = [
        _verdict(data, gpu, script),
        _counters(data),
        _items(data),
        _timeline(data),
        _modules(data),
        _holders(data),
        _changes(data),
        _speed(data),
        _small_print(data),
    ]
    return "\n\n".join(block for block in blocks if block)


def _verdict(data: dict[str, Any], gpu: Gpu, script: str) -> str:
    word, style = _VERDICTS[data["verdict"]]
    gap = data["usable_bytes"] - data["device_bytes"]
    room = say("gpu.spare", size=Size(gap)) if gap >= 0 else say("gpu.more_than_it_has", size=Size(-gap))
    what = words("gpu.on", model=script, gpu=gpu.title)
    held = say(
        "gpu.trace_would_hold",
        held=Size(data["device_bytes"]),
        usable=Size(data["usable_bytes"]),
        room=room,
    )
    fused = data["peak_reserved_bytes"] - data["least"]["reserved_bytes"]
    if fused:
        low, high = sorted((data["device_bytes"] - fused, data["device_bytes"]))
        held = say("gpu.trace_between", low=Size(low), high=Size(high), usable=Size(data["usable_bytes"]))
    lines = [f"{paint(told(word).upper(), style)}  {what}"]
    lines += [paint(_filled(said_again(doubt), "  "), "yellow") for doubt in data["doubt_codes"]]
    lines += [_filled(one, "  ") for one in (_headline(data), held)]
    if data["chance_of_running_out"] is not None:
        odds = chance_in_words(data["chance_of_running_out"])
        lines.append(_filled(say("gpu.chance", chance=odds), "  "))
    failure = data["out_of_memory"]
    if failure:
        where = say("gpu.out_of_memory_in", step=failure["step"], where=_at(failure))
        wants = say(
            "gpu.wants_free",
            op=failure["op"],
            wanted=Size(failure["wanted_bytes"]),
            free=Size(failure["free_bytes"]),
        )
        lines += [paint(_filled(where, "  "), "red"), _filled(wants, "    ")]
    if data["mode"] == "rough":
        rough = say("gpu.trace_rough")
        lines.append(paint(_filled(rough, "  "), "yellow"))
    return "\n".join(lines)


def _headline(data: dict[str, Any]) -> Sentence:
    """The largest part of the tensors at the peak."""
    tensors = [item for item in data["items"] if item["code"] not in _OUTSIDE]
    total = sum(item["bytes"] for item in tensors)
    if not total:
        return say("gpu.nothing_held")
    largest = max(tensors, key=lambda item: item["bytes"])
    share = largest["bytes"] / total
    values = {"name": part(largest["code"]), "size": Size(largest["bytes"]), "frac": Percent(share)}
    if share > 0.5:
        return say("gpu.trace_most_of_it", **values)
    return say("gpu.trace_largest_part", **values)


def _counters(data: dict[str, Any]) -> str:
    names = ("requested", "allocated", "reserved")  # PyTorch's terms
    rows = []
    for title, step in ((say("gpu.first_step"), "first_step"), (say("gpu.steady_step"), "steady_step")):
        sizes = (told(Size(data[step][f"{name}_bytes"])) for name in names)
        rows.append((told(title), *sizes))
    whole = (told(Size(data[f"peak_{name}_bytes"])) for name in names)
    rows.append((words("gpu.whole_run"), *whole))
    body = table((words("gpu.peak"), *names), rows, right=(1, 2, 3))
    unit = tongue().byte_units[3]
    exact = "  ".join(
        f"{tongue().number(data[f'peak_{name}_bytes'], 0)} {unit} {name}"
        for name in ("allocated", "reserved")
    )
    return f"{body}\n{paint(exact, 'dim')}"


def _items(data: dict[str, Any]) -> str:
    whole = max(1, data["device_bytes"])
    rows = [
        (
            told(part(item["code"])),
            told(Size(item["bytes"])),
            told(Percent(item["bytes"] / whole)),
            bar(item["bytes"] / whole, 28),
        )
        for item in data["items"]
        if item["bytes"]
    ]
    peak = data["peak_at"]
    place = words("gpu.step_op", step=peak["step"], op=peak["op"])
    title = f"{paint(words('gpu.held_at_peak'), 'bold')}, {place}\n  {_at(peak)}"
    return f"{title}\n{table(('', '', '', ''), rows, right=(1, 2)).partition(chr(10))[2]}"


def _timeline(data: dict[str, Any]) -> str:
    """Allocated bytes over the events of the run, one column each for as many as fit."""
    points = data["timeline"]["allocated_bytes"]
    if not points:
        return ""
    columns = _WIDTH - 2
    width = max(1, -(-len(points) // columns))
    highest = [max(points[i : i + width]) for i in range(0, len(points), width)]
    top = max(highest) or 1
    rows = [f"  {line}" for line in columns_of([value / top for value in highest], 4)]
    line = words("gpu.timeline_top", events=count("event", data["events"]), size=Size(top))
    return "\n".join([paint(words("gpu.allocated_over_time"), "bold") + tongue().joint(": ") + line, *rows])


def _modules(data: dict[str, Any]) -> str:
    outside = {OUTSIDE: words("gpu.outside_module")}
    rows = [(size, outside.get(name, name)) for name, size in data["modules"].items()]
    return _listed("gpu.by_module", rows) if len(rows) > 1 else ""


def _holders(data: dict[str, Any]) -> str:
    rows = []
    for holder in data["top_holders"]:
        many = f"{holder['count']} x " if holder["count"] > 1 else ""
        rows.append((holder["bytes"], f"{many}{holder['op']}  {holder['line']}"))
    return _listed("gpu.top_holders", rows)


def _listed(title: str, rows: Sequence[tuple[int, str]]) -> str:
    lines = (f"  {told(Size(size)):>10}  {text}"[:_WIDTH] for size, text in rows[:8])
    return "\n".join([paint(words(title), "bold"), *lines])


def _changes(data: dict[str, Any]) -> str:
    lines = []
    for found in data["saving_settings"]:
        fits = say("gpu.fits_reserved", size=Size(found["peak_reserved_bytes"]))
        lines.append(f"  PYTORCH_CUDA_ALLOC_CONF={found['settings']}\n      {told(fits)}")
    for fix in data["fixes"]:
        line = say(
            "gpu.trace_fix",
            name=fix_name(fix["code"]),
            size=Size(fix["at_stake_bytes"]),
            change=Several(tuple(map(said_again, fix["change_codes"])), between="; "),
        )
        lines.append(_filled(line, "  ", "      "))
    title = paint(words("gpu.what_helps"), "bold")
    return title + "\n" + "\n".join(lines) if lines else ""


def _speed(data: dict[str, Any]) -> str:
    speed = data["speed"]
    if speed is None:
        return ""

    def between(kind: type, of: dict[str, float]) -> Sentence:
        return say("gpu.to", **{name: kind(of[name]) for name in ("likely", "low", "high")})

    line = say(
        "gpu.trace_speed",
        step=between(Seconds, speed["step_s"]),
        mfu=between(Percent, speed["mfu"]),
    )
    peak = say(
        "gpu.trace_peak",
        peak=Number(speed["peak_tflops"]),
        format=speed["peak_format"],
        work=figures(speed["flops"] / 1e12),
        bound=say(f"fit.bound_{speed['bound_by']}"),
    )
    title = words("gpu.speed")
    head = _filled(Several((title, line)), "", "  ").replace(title, paint(title, "bold"), 1)
    return f"{head}\n{_filled(peak, '  ')}"


def _small_print(data: dict[str, Any]) -> str:
    said: list[object] = []
    rules = ", ".join(f"{name} {times}" for name, times in data["rules_fired"].items())
    if rules:
        said.append(say("gpu.rules_fired", rules=rules))
    if data["values_invented"]:
        where = ", ".join(f"{line} {times}" for line, times in list(data["values_at"].items())[:3])
        said.append(
            say(
                "gpu.values_made_up",
                n=data["values_invented"],
                where=where,
            )
        )
    if data["steps"] < 2:
        said.append(say("gpu.steps_too_few", n=data["steps"]))
    said += [say("gpu.note", text=said_again(note)) for note in data["note_codes"]]
    context = data["context_bytes"]
    said.append(
        say(
            "gpu.context_estimated",
            low=Size(context["low"]),
            high=Size(context["high"]),
        )
    )
    return "\n".join(_filled(one, "", "  ") for one in said)


def _at(place: dict[str, Any]) -> str:
    phase = _PHASES.get(place["phase"], place["phase"])
    return told(Several((phase, *([place["line"]] if place["line"] else []))))


def _filled(said: object, first: str, rest: str | None = None) -> str:
    return paragraph(said, first, rest, columns=_WIDTH)
