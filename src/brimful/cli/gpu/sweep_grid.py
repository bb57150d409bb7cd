"""`brimful sweep` over batch sizes and lengths: for each length the largest batch that fits, and its pace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu.others import other_bytes
from brimful.cli.gpu.sweep import as_dict
from brimful.cli.options import own_correction
from brimful.cli.render import paint, paragraph, table
from brimful.configs.read import read
from brimful.diagnose.advice import assumed_notes
from brimful.errors import BadInput
from brimful.fit.advice.sweep import Sweep, sweep
from brimful.language import Number, Percent, Size, say, told, tongue, words
from brimful.specs.gpu import find_gpu

_MOST_POINTS = 2048


def grid(args: argparse.Namespace, batches: Sequence[int], lengths: Sequence[int]) -> Answer:
    """One sweep of the batch for each length, told in one line each."""

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
        reading = read(args.config, overrides=[*args.set, f"seq_len={length}"])
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
    """With the smallest batch where none fits: by how much it does not."""
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
