"""`brimful fit` in a language other than English: the same answer, told in sentences from the catalogs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from brimful.cli.render import bar, paint, table
from brimful.cli.spoken import terminal_width, wrapped
from brimful.language import Factor, Number, Percent, Seconds, Several, Size, say

if TYPE_CHECKING:
    from brimful.language import Language
    from brimful.predict.ladder import Rung
    from brimful.predict.readers.reading import Reading
    from brimful.specs.estimate import Estimate, Fix, Interval
    from brimful.specs.gpu import Gpu

_NANOGPT_PEAK_FLOPS_PER_S = 312e12  # nanoGPT divides by an A100 whatever it runs on


def show_spoken(
    answer: Estimate,
    gpu: Gpu,
    reading: Reading,
    tongue: Language,
    *,
    desktop: bool,
    rungs: Sequence[Rung] = (),
) -> str:
    """The whole answer; with a ladder, that instead of the details.

    `desktop`: whether to remind of what a screen takes, as nobody said what other programs hold.
    """
    details = [
        _items(answer, tongue),
        _counters(answer, tongue),
        _speed(answer, gpu, reading, tongue),
        _changes(answer, reading, tongue),
    ]
    blocks = [
        _verdict(answer, gpu, reading, tongue),
        *([_ladder(rungs, tongue)] if rungs else details),
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


def compare_spoken(rows: Sequence[tuple[str, Reading, Estimate]], gpu: Gpu, tongue: Language) -> str:
    """Side by side: bytes, verdict, sequences a step and speed, each against the first row."""
    from brimful.predict.explain.advice import verdict_words

    _, base, first = rows[0]
    head = say(
        "{model} on {gpu}, {usable} usable",
        model=base.model.name,
        gpu=gpu.title,
        usable=Size(first.usable_bytes),
    )
    titles = (say("needs"), say("change"), say("verdict"), say("seq/step"), say("tokens/s"), say("speed"))
    header = ("", *(tongue.text(title) for title in titles), "MFU")
    cells, names = [], []
    for number, (name, reading, answer) in enumerate(rows):
        letter = chr(ord("A") + number) if number < 26 else str(number)
        names.append(wrapped(name, first=f"{letter}  ", rest="   "))
        needs, rate = answer.memory.device_bytes.likely, answer.speed.tokens_per_s.likely
        change = _signed(needs - first.memory.device_bytes.likely, tongue)
        pace = tongue.text(Factor(rate / first.speed.tokens_per_s.likely))
        cells.append(
            (
                letter,
                tongue.text(Size(needs)),
                "" if answer is first else change,
                tongue.text(verdict_words(answer.verdict)),
                tongue.text(reading.training.effective_batch),
                tongue.text(Number(rate)),
                "" if answer is first else pace,
                tongue.text(Percent(answer.speed.mfu.likely)),
            )
        )
    notes = []
    whole = base.training.effective_batch
    others = [
        row[0] for row, (_, r, _) in zip(cells, rows, strict=True) if r.training.effective_batch != whole
    ]
    if others:
        other = say("another run, not {n} sequences a step: {rows}", n=whole, rows=", ".join(others))
        notes.append(wrapped(tongue.text(other)))
    notes += dict.fromkeys(note for _, reading, _ in rows for note in reading.warnings)
    shown = table(header, cells, right=(1, 2, 4, 5, 6, 7))
    return "\n".join([tongue.text(head), "", *names, "", shown, "", *notes]).rstrip()


def _ladder(rungs: Sequence[Rung], tongue: Language) -> str:
    """The rungs from the safest up, each with what it adds."""
    from brimful.predict.explain.advice import verdict_words

    lines = [
        wrapped(tongue.text(say("Ladder: start with what surely fits, then turn back one thing at a time")))
    ]
    if rungs[0].estimate.verdict != "fits":
        closest = tongue.text(say("no setting surely fits; this is the closest"))
        lines.append(wrapped(closest, first="  ", rest="  "))
    for number, rung in enumerate(rungs):
        change = ", ".join(f"{key} {then}" for key, (_, then) in rung.change.items())
        change = change or tongue.text(say("as configured"))
        if not rung.config_only:
            code = tongue.text(say("code"))
            change += f"   ({code})"
        device, speed = rung.estimate.memory.device_bytes, rung.estimate.speed
        parts = [
            say("{size} (up to {high})", size=Size(device.likely), high=Size(device.high)),
            *([_signed(rung.adds_bytes, tongue)] if number else []),
            verdict_words(rung.estimate.verdict),
            say("step: {time}", time=Seconds(speed.step_s.likely)),
            say("MFU: {mfu}", mfu=Percent(speed.mfu.likely)),
        ]
        lines.append(wrapped(change, first=f"  {number}. ", rest="     "))
        lines.append(wrapped(tongue.text(Several(tuple(parts))), first="     ", rest="     "))
    return "\n".join(lines)


def _signed(size: float, tongue: Language) -> str:
    return ("+" if size > 0 else "-" if size < 0 else "") + tongue.text(Size(abs(size)))


def _items(answer: Estimate, tongue: Language) -> str:
    from brimful.predict.explain.advice import part
    from brimful.predict.explain.phrases import known

    items = answer.memory.items
    total = answer.memory.device_bytes.likely
    largest = max(item.bytes for item in items)
    names = [tongue.text(part(item.name)) for item in items]
    width = max(map(len, names))
    blocks = 12 if terminal_width() >= 100 else 5
    lines = [paint(tongue.text(say("Memory at the peak")), "bold")]
    for name, item in zip(names, items, strict=True):
        size, share = tongue.text(Size(item.bytes)), tongue.text(Percent(item.bytes / total))
        head = f"  {name:<{width}}  {size:>9} {share:>5}  {bar(item.bytes / largest, blocks)}  "
        reason = tongue.text(known(item.why) or item.why)
        lines.append(wrapped(reason, first=head, rest=" " * len(head)))
    whole = tongue.text(say("total"))
    lines.append(f"  {whole:<{width}}  {tongue.text(Size(total)):>9}")
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
