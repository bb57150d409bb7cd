"""`brimful fit`: the verdict first, then where the bytes are, how fast it runs, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.render import bar, paint
from brimful.errors import BadInput
from brimful.units import MIB, show_bytes, show_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from brimful.specs.estimate import Estimate, Fix, Interval
    from brimful.specs.gpu import Gpu
    from brimful.specs.training import Training

EXAMPLE = """brimful fit examples/nanogpt/train_fineweb.py --gpu rtx-4070
brimful fit examples/nanogpt/train_fineweb.py --gpu 4070 --other-mib 2100 --set batch_size=8"""

_WIDTH = 100
_MAX_OTHER_MIB = 1_000_000
_NANOGPT_PEAK_FLOPS_PER_S = 312e12  # nanoGPT divides by an A100 whatever it runs on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a nanoGPT-style .py config; it is parsed, never executed")
    parser.add_argument(
        "--gpu", required=True, metavar="NAME", help="the card, however you write it; see `brimful gpus`"
    )
    parser.add_argument(
        "--other-mib",
        type=int,
        default=0,
        metavar="N",
        help="MiB of the card that a desktop or other programs hold",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="overrule one line of the config; may be repeated",
    )


def run(args: argparse.Namespace) -> Answer:
    from pathlib import Path

    from brimful.predict.fit import fit
    from brimful.predict.readers.nanogpt import read_nanogpt
    from brimful.specs.gpu import find_gpu

    if not 0 <= args.other_mib <= _MAX_OTHER_MIB:
        raise BadInput(
            f"--other-mib {args.other_mib} is out of range",
            hint="give the MiB that nvidia-smi shows as used before your run starts",
        )
    gpu = find_gpu(args.gpu)
    reading = read_nanogpt(Path(args.config), args.set)
    answer = fit(
        reading.model,
        reading.training,
        gpu,
        args.other_mib * MIB,
        assumed=reading.assumed,
        warnings=reading.warnings,
    )
    text = _show(answer, gpu, reading.training, name=reading.model.name, other_mib=args.other_mib)
    return Answer(answer.as_dict(), text, YES if answer.fits else NO)


def _show(answer: Estimate, gpu: Gpu, training: Training, *, name: str, other_mib: int) -> str:
    blocks = [
        _verdict(answer, gpu, name=name),
        _items(answer),
        _counters(answer),
        _speed(answer, training),
        _changes(answer, training),
        _small_print(answer, gpu, other_mib=other_mib),
    ]
    return "\n\n".join(block for block in blocks if block)


def _verdict(answer: Estimate, gpu: Gpu, *, name: str) -> str:
    device = answer.memory.device_bytes
    style = {"fits": "green", "does not fit": "red"}.get(answer.verdict, "yellow")
    what = f"{name} ({answer.parameters / 1e6:.1f} M parameters) on {gpu.title}"
    gap = abs(answer.short_bytes)
    room = f"{show_bytes(gap)} to spare" if answer.fits else f"short by {show_bytes(gap)}"
    needs = f"needs {show_bytes(device.likely)} of {show_bytes(answer.usable_bytes)} usable, {room}"
    return "\n".join(
        [
            f"{paint(answer.verdict.upper(), style)}  {what}",
            f"  {needs}   (between {show_bytes(device.low)} and {show_bytes(device.high)})",
            f"  peak at the {answer.memory.peak_at}",
        ]
    )


def _items(answer: Estimate) -> str:
    total = answer.memory.device_bytes.likely
    largest = max(item.bytes for item in answer.memory.items)
    width = max(len(item.name) for item in answer.memory.items)
    lines = [paint("Memory at the peak", "bold")]
    for item in answer.memory.items:
        share = f"{show_bytes(item.bytes):>9} {100 * item.bytes / total:3.0f} %"
        lines.append(f"  {item.name:<{width}}  {share}  {bar(item.bytes / largest, 12)}  {item.why}".rstrip())
    lines.append(f"  {'total':<{width}}  {show_bytes(total):>9}")
    return "\n".join(lines)


def _counters(answer: Estimate) -> str:
    memory = answer.memory
    rows = [
        ("allocated", memory.allocated_bytes, "torch.cuda.max_memory_allocated()"),
        ("reserved", memory.reserved_bytes, "torch.cuda.max_memory_reserved()"),
        ("device", memory.device_bytes, "nvidia-smi, whole card"),
        ("first step", memory.first_step_bytes, "whole card, before AdamW has state"),
    ]
    lines = [paint(f"{'Counter':<12}{'low':>11}{'likely':>11}{'high':>11}   where you see it", "bold")]
    for label, counter, where in rows:
        cells = "".join(f"{show_bytes(n):>11}" for n in (counter.low, counter.likely, counter.high))
        lines.append(f"  {label:<10}{cells}   {where}")
    return "\n".join(lines)


def _speed(answer: Estimate, training: Training) -> str:
    speed = answer.speed
    work = f"{training.effective_batch} sequences, {training.step_tokens:,} tokens"
    peak = f"{speed.peak_flops_per_s / 1e12:g} TFLOPS dense {speed.peak_format}"
    printed = speed.mfu.likely * speed.peak_flops_per_s / _NANOGPT_PEAK_FLOPS_PER_S
    head = "Speed" if answer.fits else "Speed, if it fitted"
    return "\n".join(
        [
            paint(head, "bold") + " (a first estimate: the interval is wide)",
            f"  step    {_between(speed.step_s, show_seconds)} for {work}",
            f"  tokens  {_between(speed.tokens_per_s, _whole)} a second",
            f"  MFU     {_between(speed.mfu, _percent)} of this card's {peak}; bound by {speed.bound_by}",
            f"          nanoGPT prints about {_percent(printed)}: it divides by an A100's 312 TFLOPS",
        ]
    )


def _between(interval: Interval, show: Callable[[float], str]) -> str:
    return f"{show(interval.likely)} ({show(interval.low)} to {show(interval.high)})"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _percent(frac: float) -> str:
    return f"{100 * frac:.0f} %"


def _changes(answer: Estimate, training: Training) -> str:
    if answer.largest_batch is None:
        largest = "  not even batch_size 1 fits as configured"
    else:
        largest = f"  largest batch_size that fits as configured: {answer.largest_batch}"
    if not answer.fixes:
        return "\n".join([paint("Room", "bold"), largest])
    lines = [paint("What to change", "bold") + f", keeping {training.effective_batch} sequences a step"]
    for number, fix in enumerate(answer.fixes, start=1):
        lines += _fix(number, fix)
    return "\n".join([*lines, largest])


def _fix(number: int, fix: Fix) -> list[str]:
    change = ", ".join(f"{key} {now} -> {then}" for key, (now, then) in fix.change.items())
    outcome = "fits" if fix.fits else "still does not fit"
    return [
        f"  {number}. {change}",
        f"     {outcome}: saves {show_bytes(fix.saves_bytes)}, step time x{fix.step_time_factor:.2f}",
        f"     {fix.note}",
    ]


def _small_print(answer: Estimate, gpu: Gpu, *, other_mib: int) -> str:
    from textwrap import fill

    lines = [f"note: {warning}" for warning in answer.warnings]
    if "GeForce" in gpu.title and not other_mib:
        lines.append(
            "note: a desktop holds 0.3 to 2.1 GiB of a card that drives a screen; say so with --other-mib"
        )
    if answer.assumed:
        said = ", ".join(f"{a.name}={a.value}" for a in answer.assumed)
        lines.append(f"assumed, as the config does not say: {said}")
    return "\n".join(fill(line, _WIDTH, subsequent_indent="  ") for line in lines)
