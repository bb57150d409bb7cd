"""What `brimful fit` prints for people: the verdict first, then bytes, counters, speed and what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import TYPE_CHECKING

from brimful.cli.render import bar, paint, table
from brimful.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from brimful.predict.ladder import Rung
    from brimful.predict.readers.reading import Reading
    from brimful.predict.sanity import Check
    from brimful.specs.estimate import Estimate, Fix, Interval
    from brimful.specs.gpu import Gpu
    from brimful.specs.presets import Preset
    from brimful.specs.training import Training

_NARROWEST, _WIDEST = 72, 100  # columns the report is laid out for, as the terminal allows
_WIDE_BAR, _NARROW_BAR = 12, 5
_NANOGPT_PEAK_FLOPS_PER_S = 312e12  # nanoGPT divides by an A100 whatever it runs on


def width() -> int:
    """Columns to fill: the terminal's, within reason; all of them where there is no terminal."""
    return max(_NARROWEST, min(_WIDEST, get_terminal_size((_WIDEST, 24)).columns))


def show(answer: Estimate, gpu: Gpu, reading: Reading, *, other_mib: int, rungs: Sequence[Rung] = ()) -> str:
    """The whole answer; with a ladder, that instead of the details."""
    details = [_items(answer), _counters(answer), _speed(answer, gpu, reading), _changes(answer, reading)]
    blocks = [
        _verdict(answer, gpu, reading),
        *([_ladder(rungs)] if rungs else details),
        _small_print(answer, gpu, reading, other_mib=other_mib),
    ]
    return "\n\n".join(block for block in blocks if block)


def compare_text(rows: Sequence[tuple[str, Reading, Estimate]], gpu: Gpu) -> str:
    """Side by side: bytes, verdict, sequences a step and speed, each against the first row."""
    _, base, first = rows[0]
    letters = [chr(ord("A") + number) if number < 26 else str(number) for number in range(len(rows))]
    header = ("", "needs", "change", "verdict", "seq/step", "tokens/s", "speed", "MFU")
    cells = [
        (letter, *_compared(answer, first, reading.training.effective_batch))
        for letter, (_, reading, answer) in zip(letters, rows, strict=True)
    ]
    lines = [f"{paint(base.model.name, 'bold')} on {gpu.title}, {show_bytes(first.usable_bytes)} usable", ""]
    names = zip(letters, (name for name, _, _ in rows), strict=True)
    lines += [fill(f"{letter}  {name}", width(), subsequent_indent="   ") for letter, name in names]
    lines += ["", table(header, cells, right=(1, 2, 4, 5, 6, 7))]
    whole = base.training.effective_batch
    others = [x for x, (_, r, _) in zip(letters, rows, strict=True) if r.training.effective_batch != whole]
    notes = dict.fromkeys(note for _, reading, _ in rows for note in reading.warnings)
    if others:
        many = "is another run" if len(others) == 1 else "are other runs"
        notes = {f"{', '.join(others)} {many}: not {whole:,} sequences a step": None, **notes}
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes)]).rstrip()


def _compared(answer: Estimate, first: Estimate, sequences: int) -> tuple[str, ...]:
    needs, before = answer.memory.device_bytes.likely, first.memory.device_bytes.likely
    rate, rate_before = answer.speed.tokens_per_s.likely, first.speed.tokens_per_s.likely
    return (
        show_bytes(needs),
        "" if answer is first else _signed(needs - before),
        answer.verdict,
        f"{sequences:,}",
        f"{rate:,.0f}",
        "" if answer is first else f"x{rate / rate_before:.2f}",
        _percent(answer.speed.mfu.likely),
    )


def _ladder(rungs: Sequence[Rung]) -> str:
    """The rungs from the safest up, each with what it adds."""
    head = paint("Ladder", "bold") + ": start with what surely fits, then turn back one thing at a time"
    if rungs[0].estimate.verdict != "fits":
        head += "\n  no setting surely fits; this is the closest"
    lines = [head]
    for number, rung in enumerate(rungs):
        change = ", ".join(f"{key} {then}" for key, (_, then) in rung.change.items()) or "as configured"
        device = rung.estimate.memory.device_bytes
        added = "" if number == 0 else f", {_signed(rung.adds_bytes)}"
        where = "" if rung.config_only else "   (code)"
        speed = rung.estimate.speed
        needs = (
            f"{show_bytes(device.likely)} (up to {show_bytes(device.high)}){added}: {rung.estimate.verdict}"
        )
        pace = f"step {show_seconds(speed.step_s.likely)}, MFU {_percent(speed.mfu.likely)}"
        said = fill(f"  {number}. {change}{where}", width(), subsequent_indent="     ")
        lines += [said, f"     {needs}; {pace}"]
    return "\n".join(lines)


def checks_text(checks: Sequence[Check]) -> str:
    lines = []
    for check in checks:
        word = paint("unusual", "yellow") if check.unusual else paint("possible", "green")
        word = word if check.possible else paint("IMPOSSIBLE", "red")
        lines.append(fill(f"{word}  {check.name}: {check.why}", width(), subsequent_indent="  "))
    return "\n".join(lines)


def models_text(presets: Sequence[Preset]) -> str:
    from brimful.predict.count import parameters

    rows = [
        (
            p.model.name,
            _many(parameters(p.model)),
            str(p.model.layers),
            str(p.model.width),
            str(p.model.vocab),
            str(p.context_tokens),
            p.title,
        )
        for p in presets
    ]
    header = ("name", "parameters", "layers", "width", "vocabulary", "context", "published as")
    return "\n".join(
        [
            table(header, rows, right=(1, 2, 3, 4, 5)),
            "",
            f"{len(presets)} models. A config.json describes any other.",
        ]
    )


def _verdict(answer: Estimate, gpu: Gpu, reading: Reading) -> str:
    device = answer.memory.device_bytes
    style = {"fits": "green", "does not fit": "red"}.get(answer.verdict, "yellow")
    gpus = f"{reading.training.gpus} x " if reading.training.gpus > 1 else ""
    what = f"{reading.model.name} ({_many(answer.parameters)} parameters) on {gpus}{gpu.title}"
    gap = abs(answer.short_bytes)
    room = f"{show_bytes(gap)} to spare" if answer.fits else f"short by {show_bytes(gap)}"
    needs = f"needs {show_bytes(device.likely)} of {show_bytes(answer.usable_bytes)} usable, {room}"
    between = f"(between {show_bytes(device.low)} and {show_bytes(device.high)})"
    one_line = f"  {needs}   {between}"
    return "\n".join(
        [
            f"{paint(answer.verdict.upper(), style)}  {what}",
            one_line if len(one_line) <= width() else f"  {needs}\n  {between}",
            f"  peak at the {answer.memory.peak_at}",
        ]
    )


def _items(answer: Estimate) -> str:
    total = answer.memory.device_bytes.likely
    largest = max(item.bytes for item in answer.memory.items)
    named = max(len(item.name) for item in answer.memory.items)
    columns = width()
    blocks = _WIDE_BAR if columns == _WIDEST else _NARROW_BAR
    lines = [paint("Memory at the peak", "bold")]
    for item in answer.memory.items:
        share = f"{show_bytes(item.bytes):>9} {100 * item.bytes / total:3.0f} %"
        head = f"  {item.name:<{named}}  {share}  {bar(item.bytes / largest, blocks)}  "
        first, *rest = wrap(item.why, columns - len(head))
        lines += [head + first, *(" " * len(head) + more for more in rest)]
    lines.append(f"  {'total':<{named}}  {show_bytes(total):>9}")
    return "\n".join(lines)


def _counters(answer: Estimate) -> str:
    memory = answer.memory
    rows = [
        ("allocated", memory.allocated_bytes, "torch.cuda.max_memory_allocated()"),
        ("reserved", memory.reserved_bytes, "torch.cuda.max_memory_reserved()"),
        ("device", memory.device_bytes, "nvidia-smi, whole card"),
        ("first step", memory.first_step_bytes, "the card, no optimizer state yet"),
    ]
    lines = [paint(f"{'Counter':<12}{'low':>11}{'likely':>11}{'high':>11}  where you see it", "bold")]
    for label, counter, where in rows:
        cells = "".join(f"{show_bytes(n):>11}" for n in (counter.low, counter.likely, counter.high))
        lines.append(f"  {label:<10}{cells}  {where}")
    return "\n".join(lines)


def _speed(answer: Estimate, gpu: Gpu, reading: Reading) -> str:
    speed, training = answer.speed, reading.training
    work = f"{training.effective_batch:,} sequences, {training.step_tokens:,} tokens"
    peak = f"{speed.peak_flops_per_s / 1e12:g} TFLOPS dense {speed.peak_format}"
    said = [
        f"  step    {_between(speed.step_s, show_seconds)} for {work}",
        f"  tokens  {_between(speed.tokens_per_s, _whole)} a second",
        f"  MFU     {_between(speed.mfu, _percent)} of this card's {peak}; bound by {speed.bound_by}",
    ]
    lines = [paint("Speed" if answer.fits else "Speed, if it fitted", "bold")]
    lines += [fill(line, width(), subsequent_indent=" " * 10) for line in said]
    if reading.dialect.name == "nanoGPT" and gpu.dense_flops_per_s.get("bf16") != _NANOGPT_PEAK_FLOPS_PER_S:
        printed = speed.mfu.likely * speed.peak_flops_per_s / _NANOGPT_PEAK_FLOPS_PER_S
        lines.append(
            f"          nanoGPT prints about {_percent(printed)}: it divides by an A100's 312 TFLOPS"
        )
    return "\n".join(lines)


def _changes(answer: Estimate, reading: Reading) -> str:
    training: Training = reading.training
    if answer.largest_batch is None:
        largest = "  not even batch_size 1 fits as configured"
    else:
        largest = f"  largest batch_size that fits as configured: {answer.largest_batch:,}"
    whole = training.effective_batch
    keeping = f", keeping {whole:,} {'sequence' if whole == 1 else 'sequences'} a step"
    if answer.fixes:
        lines = [paint("What to change", "bold") + keeping]
        lines += [line for number, fix in enumerate(answer.fixes, start=1) for line in _fix(number, fix)]
        patch = "; --patch prints the config with the fix made" if reading.file else ""
        lines.append(
            fill(f"  --ladder starts from settings that surely fit{patch}", width(), subsequent_indent="  ")
        )
    elif answer.faster:
        lines = [paint("What would be faster", "bold") + keeping]
        lines += [line for number, fix in enumerate(answer.faster, start=1) for line in _gain(number, fix)]
    else:
        lines = [paint("Room", "bold")]
    return "\n".join([*lines, largest])


def _fix(number: int, fix: Fix) -> list[str]:
    outcome = fix.verdict if fix.fits else "still does not fit"
    return [
        f"  {number}. {_spelled(fix)}",
        f"     {outcome}: saves {show_bytes(fix.saves_bytes)}, step time x{fix.step_time_factor:.2f}",
        fill(fix.note, width(), initial_indent="     ", subsequent_indent="     "),
    ]


def _gain(number: int, fix: Fix) -> list[str]:
    pace = f"MFU {_percent(fix.mfu)}, step time x{fix.step_time_factor:.2f}"
    return [
        f"  {number}. {_spelled(fix)}",
        f"     {pace}, {_signed(-fix.saves_bytes)}: {fix.verdict}",
        fill(fix.note, width(), initial_indent="     ", subsequent_indent="     "),
    ]


def _spelled(fix: Fix) -> str:
    """'batch_size 16 -> 8, …', broken after a comma only."""
    parts = (
        (f"{key} {then}" if now is None else f"{key} {now} -> {then}").replace(" ", "\xa0")
        for key, (now, then) in fix.change.items()
    )
    text = fill(", ".join(parts), width() - 5, subsequent_indent="     ", break_on_hyphens=False)
    return text.replace("\xa0", " ")


def _small_print(answer: Estimate, gpu: Gpu, reading: Reading, *, other_mib: int) -> str:
    lines = [f"note: {warning}" for warning in answer.warnings]
    if reading.unsure:
        lines.append(f"note: the intervals are wider, as {reading.unsure} of its words had to be guessed")
    if "GeForce" in gpu.title and not other_mib:
        lines.append(
            "note: a desktop holds 0.3 to 2.1 GiB of a card that drives a screen; say so with --other-mib"
        )
    if answer.assumed:
        said = ", ".join(f"{a.name}={a.value}" for a in answer.assumed)
        lines.append(f"assumed, as nobody said: {said}")
    return "\n".join(fill(line, width(), subsequent_indent="  ") for line in lines)


def _many(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def _between(interval: Interval, show_one: Callable[[float], str]) -> str:
    return f"{show_one(interval.likely)} ({show_one(interval.low)} to {show_one(interval.high)})"


def _signed(n: float) -> str:
    return "0 B" if round(n) == 0 else f"{'+' if n > 0 else '-'}{show_bytes(abs(n))}"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _percent(frac: float) -> str:
    return f"{100 * frac:.0f} %"
