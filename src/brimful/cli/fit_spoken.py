"""`brimful fit` in a language other than English: the same answer, told in sentences from the catalogs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from brimful.cli.render import bar, paint
from brimful.cli.spoken import wrapped
from brimful.language import Number, Percent, Seconds, Several, Size, say

if TYPE_CHECKING:
    from brimful.language import Language
    from brimful.predict.readers.reading import Reading
    from brimful.specs.estimate import Estimate, Fix, Interval
    from brimful.specs.gpu import Gpu

_NANOGPT_PEAK_FLOPS_PER_S = 312e12  # nanoGPT divides by an A100 whatever it runs on


def show_spoken(answer: Estimate, gpu: Gpu, reading: Reading, tongue: Language, *, desktop: bool) -> str:
    """`desktop`: whether to remind of what a screen takes, as nobody said what other programs hold."""
    blocks = [
        _verdict(answer, gpu, reading, tongue),
        _items(answer, tongue),
        _counters(answer, tongue),
        _speed(answer, gpu, reading, tongue),
        _changes(answer, reading, tongue),
        _notes(answer, tongue, desktop=desktop and "GeForce" in gpu.title),
    ]
    return "\n\n".join(block for block in blocks if block)


def _verdict(answer: Estimate, gpu: Gpu, reading: Reading, tongue: Language) -> str:
    from brimful.predict.explain.advice import verdict_words
    from brimful.predict.explain.phrases import phrase

    style = {"fits": "green", "does not fit": "red"}.get(answer.verdict, "yellow")
    word = tongue.text(verdict_words(answer.verdict)).upper()
    what = say("{model} on {gpu}", model=reading.model.name, gpu=gpu.title)
    device, gap = answer.memory.device_bytes, Size(abs(answer.short_bytes))
    needs = say(
        "needs {likely} ({low} to {high}) of {usable} usable",
        likely=Size(device.likely),
        low=Size(device.low),
        high=Size(device.high),
        usable=Size(answer.usable_bytes),
    )
    room = say("{size} to spare", size=gap) if answer.fits else say("short by {size}", size=gap)
    peak = say("peak: {where}", where=phrase(answer.memory.peak_at, between=", "))
    lines = [f"{paint(word, style)}  {tongue.text(what)}"]
    lines.append(wrapped(tongue.text(Several((needs, room), between="; ")), first="  ", rest="  "))
    lines.append(wrapped(tongue.text(peak), first="  ", rest="  "))
    return "\n".join(lines)


def _items(answer: Estimate, tongue: Language) -> str:
    from brimful.predict.explain.advice import part

    items = answer.memory.items
    total = answer.memory.device_bytes.likely
    largest = max(item.bytes for item in items)
    names = [tongue.text(part(item.name)) for item in items]
    width = max(map(len, names))
    lines = [paint(tongue.text(say("Memory at the peak")), "bold")]
    for name, item in zip(names, items, strict=True):
        size, share = tongue.text(Size(item.bytes)), tongue.text(Percent(item.bytes / total))
        lines.append(f"  {name:<{width}}  {size:>9} {share:>5}  {bar(item.bytes / largest, 12)}".rstrip())
    lines.append(f"  {tongue.text(say('total')):<{width}}  {tongue.text(Size(total)):>9}")
    return "\n".join(lines)


def _counters(answer: Estimate, tongue: Language) -> str:
    memory = answer.memory
    rows = [
        ("torch.cuda.max_memory_allocated()", memory.allocated_bytes),
        ("torch.cuda.max_memory_reserved()", memory.reserved_bytes),
        (tongue.text(say("nvidia-smi, whole card")), memory.device_bytes),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [paint(tongue.text(say("Where you see it")), "bold")]
    for name, span in rows:
        lines.append(
            f"  {name:<{width}}  {_between(tongue, Size(span.likely), Size(span.low), Size(span.high))}"
        )
    return "\n".join(lines)


def _speed(answer: Estimate, gpu: Gpu, reading: Reading, tongue: Language) -> str:
    speed = answer.speed

    def spread(interval: Interval, unit: Callable[[float], object]) -> str:
        return _between(tongue, *(unit(n) for n in (interval.likely, interval.low, interval.high)))

    lines = [
        say(
            "step: {spread}, {tokens} tokens",
            spread=spread(speed.step_s, Seconds),
            tokens=reading.training.step_tokens,
        ),
        say("tokens a second: {spread}", spread=spread(speed.tokens_per_s, Number)),
        say(
            "MFU: {spread} of this card's {peak} TFLOPS ({format})",
            spread=spread(speed.mfu, Percent),
            peak=Number(speed.peak_flops_per_s / 1e12, 1),
            format=speed.peak_format,
        ),
    ]
    if reading.dialect.name == "nanoGPT" and gpu.dense_flops_per_s.get("bf16") != _NANOGPT_PEAK_FLOPS_PER_S:
        printed = speed.mfu.likely * speed.peak_flops_per_s / _NANOGPT_PEAK_FLOPS_PER_S
        lines.append(
            say("nanoGPT prints about {mfu}: it divides by an A100's 312 TFLOPS", mfu=Percent(printed))
        )
    title = say("Speed") if answer.fits else say("Speed, if it fitted")
    told = [wrapped(tongue.text(line), first="  ", rest="    ") for line in lines]
    return "\n".join([paint(tongue.text(title), "bold"), *told])


def _changes(answer: Estimate, reading: Reading, tongue: Language) -> str:
    fixes = answer.fixes or answer.faster
    title = say("What to change") if answer.fixes else say("What would be faster")
    lines = []
    if fixes:
        keeping = say("keeping {n} sequences a step", n=reading.training.effective_batch)
        lines.append(paint(tongue.text(title), "bold") + ", " + tongue.text(keeping))
        lines += [line for number, fix in enumerate(fixes, start=1) for line in _fix(number, fix, tongue)]
    if answer.largest_batch is None:
        largest = say("not even batch_size 1 fits as configured")
    else:
        largest = say("largest batch_size that fits as configured: {n}", n=answer.largest_batch)
    return "\n".join([*lines, wrapped(tongue.text(largest), first="  ", rest="  ")])


def _fix(number: int, fix: Fix, tongue: Language) -> list[str]:
    from brimful.predict.explain.advice import fix_says
    from brimful.predict.explain.phrases import phrase

    return [
        wrapped(tongue.text(fix_says(fix)), first=f"  {number}. ", rest="     "),
        wrapped(tongue.text(phrase(fix.note)), first="     ", rest="     "),
    ]


def _notes(answer: Estimate, tongue: Language, *, desktop: bool) -> str:
    from brimful.predict.explain.phrases import phrase

    notes = [tongue.text(phrase(warning)) for warning in answer.warnings]
    if desktop:
        screen = say("a desktop holds 0.3 to 2.1 GiB of a card that drives a screen; say so with --other-mib")
        notes.append(tongue.text(screen))
    if answer.assumed:
        said = ", ".join(f"{one.name}={one.value}" for one in answer.assumed)
        notes.append(tongue.text(say("assumed, as nobody said: {settings}", settings=said)))
    return "\n".join(wrapped(note, rest="  ") for note in notes)


def _between(tongue: Language, likely: object, low: object, high: object) -> str:
    return tongue.text(say("{likely} ({low} to {high})", likely=likely, low=low, high=high))
