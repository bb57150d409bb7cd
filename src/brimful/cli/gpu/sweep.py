"""`brimful sweep`: memory, MFU and tokens per second over a range of batch sizes or lengths."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu.others import add_others, other_bytes
from brimful.cli.options import own_correction
from brimful.cli.render import KEPT, page_columns, paint, paragraph, table
from brimful.configs.read import read
from brimful.diagnose.advice import assumed_notes
from brimful.errors import BadInput
from brimful.fit.advice.sweep import TITLES, Point, Sweep, Swept, parse_range, sweep
from brimful.language import Number, Percent, Size, say, told, tongue, words
from brimful.language.printable import one_line
from brimful.specs.gpu import find_gpu

EXAMPLE = """brimful sweep --model gpt2 --gpu rtx-4070 --batch-size 1:16
brimful sweep examples/nanogpt/train_fineweb.py --gpu rtx-4070 --batch-size 1:64
brimful sweep examples/nanogpt/train_fineweb.py --gpu rtx-4070 --seq-len 256,512,1024,2048,4096
brimful sweep examples/nanogpt/train_fineweb.py --gpu rtx-4070 --batch-size 1:64 --seq-len 256,512,1024
brimful sweep examples/nanogpt/train_fineweb.py --gpu rtx-4070 --batch-size 1:64 --plot sweep.svg"""

_MOST_ROWS = 20
_FILLS = {"states": "█", "activations": "▓", "logits": "▒", "cache": "░", "outside": "·", "rest": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?")
    parser.add_argument("--gpu", metavar="NAME", required=True)
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--batch-size", metavar="RANGE")
    parser.add_argument("--seq-len", metavar="RANGE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_others(parser)
    parser.add_argument("--plot", metavar="FILE")


def run(args: argparse.Namespace) -> Answer:
    overrides = list(args.set)
    swept: Swept
    if args.seq_len is not None and args.batch_size is None:
        swept, values = "seq_len", parse_range(args.seq_len, "seq_len")
    else:
        swept, values = "batch_size", parse_range(args.batch_size or "1:64", "batch_size")
        if args.seq_len is not None:
            lengths = parse_range(args.seq_len, "seq_len")
            if len(lengths) != 1:
                return grid(args, values, lengths)
            overrides.append(f"seq_len={lengths[0]}")
    reading, gpu = read(args.config, model=args.model, overrides=overrides), find_gpu(args.gpu)
    if swept == "seq_len" and args.model is not None:  # a config's own position table grows with its length
        read(None, model=args.model, overrides=[*overrides, f"seq_len={max(values)}"])
    done = sweep(reading, gpu, swept, values, other_bytes(args), correction=own_correction())
    title = one_line(f"{reading.model.name}, {gpu.title}")
    if args.plot is not None:
        from brimful.cli.gpu.sweep_plot import write_plot

        write_plot(args.plot, done, title)
    others = done.points[0].estimate.others
    says = [told(sentence) for sentence in done.says()]
    data = {
        "language": tongue().code,
        "swept": done.swept,
        "gpu": gpu.name,
        "usable_bytes": done.usable_bytes,
        "other_programs": others.as_dict(),
        **as_dict(done),
        "says": says,
        "says_codes": [sentence.as_dict() for sentence in done.says()],
        "plot": args.plot,
    }
    below = map(paragraph, (*says, *assumed_notes(others)))
    text = "\n".join([paint(title, "bold"), "", _chart(done), "", *below])
    if args.plot is not None:
        text += "\n" + words("gpu.plot_wrote", file=args.plot)
    return Answer(data, text)


def _chart(done: Sweep) -> str:
    """A stacked bar per value, as wide as the terminal allows, with a mark at the card's limit."""
    rows = _rows(done)
    cells = [_cells(point) for point in rows]
    widths = [max(len(cell[i]) for cell in cells) for i in range(4)]
    name = max(len(done.swept), widths[0])
    room = max(20, min(60, page_columns() - name - sum(widths[1:]) - 16))
    whole = max(done.usable_bytes, *(point.device_bytes for point in rows))
    edge = round(room * done.usable_bytes / whole)
    rate_title = words("gpu.tokens_s")
    widths[2], widths[3] = max(widths[2], len("MFU")), max(widths[3], len(rate_title))
    blank = " " * (room + widths[1] + 3)
    lines = [paint(f"{done.swept:>{name}} {blank}  {'MFU':>{widths[2]}}  {rate_title:>{widths[3]}}", "dim")]
    for point, (value, size, mfu, rate) in zip(rows, cells, strict=True):
        bar = _bar(point, whole, room)
        marked = bar[:edge] + "|" + bar[edge:]
        mark = "*" if point.value == done.knee else ">" if point.value == done.largest else " "
        line = f"{value:>{name}} {mark}{marked} {size:>{widths[1]}}  {mfu:>{widths[2]}}  {rate:>{widths[3]}}"
        lines.append(line if point.estimate.fits else paint(line, "red"))
    used = [group for group in TITLES if any(point.groups()[group] for point in rows)]
    keys = [f"{_FILLS[group]} {words(TITLES[group])}" for group in used]
    keys += words("gpu.sweep_marks").split("   ")
    legend = paragraph("   ".join(key.replace(" ", KEPT) for key in keys))
    return "\n".join([*lines, "", legend])


def as_dict(done: Sweep) -> dict[str, Any]:
    points = [point.as_dict() for point in done.points]
    return {"largest": done.largest, "sure": done.sure, "knee": done.knee, "points": points}


def _rows(done: Sweep) -> list[Point]:
    """At most this many values, evenly spaced, including the ends, the largest that fits and the knee."""
    points = done.points
    if len(points) <= _MOST_ROWS:
        return list(points)
    step = (len(points) - 1) / (_MOST_ROWS - 3)
    kept = {round(i * step) for i in range(_MOST_ROWS - 2)}
    kept |= {i for i, point in enumerate(points) if point.value in (done.largest, done.knee)}
    return [points[i] for i in sorted(kept)]


def _cells(point: Point) -> tuple[str, str, str, str]:
    return (
        told(point.value),
        told(Size(point.device_bytes)),
        told(Percent(point.mfu)),
        told(Number(point.tokens_per_s)),
    )


def _bar(point: Point, whole: int, room: int) -> str:
    """Characters per part, out of `room` for the whole; rounding never exceeds the sum."""
    bar, total = "", 0
    for group, size in point.groups().items():
        total += size
        bar += _FILLS[group] * (round(room * total / whole) - len(bar))
    return bar.ljust(room)


_MOST_POINTS = 2048


def grid(args: argparse.Namespace, batches: Sequence[int], lengths: Sequence[int]) -> Answer:
    """One batch sweep per length, one line each."""

    if args.plot is not None:
        raise BadInput(say("gpu.plot_one_range"))
    if len(batches) * len(lengths) > _MOST_POINTS:
        raise BadInput(
            say(
                "gpu.sweep_too_large",
                batches=Number(len(batches)),
                lengths=Number(len(lengths)),
                most=Number(_MOST_POINTS),
            )
        )
    gpu, correction = find_gpu(args.gpu), own_correction()
    found = []
    for length in lengths:
        reading = read(args.config, model=args.model, overrides=[*args.set, f"seq_len={length}"])
        done = sweep(reading, gpu, "batch_size", batches, other_bytes(args), correction=correction)
        found.append((length, done))
    others = found[0][1].points[0].estimate.others
    head = say(
        "gpu.usable",
        model=reading.model.name,
        gpu=gpu.title,
        usable=Size(found[0][1].usable_bytes),
    )
    titles = (say("gpu.largest_batch"), say("gpu.needs"), "MFU", say("gpu.tokens_s"), say("gpu.knee"))
    rows = [_row(length, done) for length, done in found]
    shown = table(("seq_len", *map(told, titles)), rows, right=range(6))
    note = say("gpu.sweep_legend", first=batches[0], last=batches[-1])
    data = {
        "language": tongue().code,
        "gpu": gpu.name,
        "usable_bytes": found[0][1].usable_bytes,
        "other_programs": others.as_dict(),
        "lengths": [{"seq_len": length, **as_dict(done)} for length, done in found],
    }
    notes = [paragraph(one) for one in (note, *assumed_notes(others))]
    text = "\n".join([paint(told(head), "bold"), "", shown, "", *notes])
    return Answer(data, text, YES if any(done.largest for _, done in found) else NO)


def _row(length: int, done: Sweep) -> tuple[str, ...]:
    """With the smallest batch if none fits: by how much it does not."""
    point = next((p for p in done.points if p.value == done.largest), done.points[0])
    fits = done.largest is not None
    return (
        told(length),
        told(done.largest) if fits else words("gpu.none"),
        told(Size(point.device_bytes)),
        told(Percent(point.mfu)) if fits else "",
        told(Number(point.tokens_per_s)) if fits else "",
        told(done.knee) if done.knee is not None and fits else "",
    )
