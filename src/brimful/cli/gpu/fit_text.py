"""What `brimful fit` prints for people: the verdict first, then bytes, counters, speed and what to change.

One layout for every language: sentences come from the catalogs, and numbers and units follow the language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING

from brimful.cli.render import KEPT, bar, paint, paragraph, table
from brimful.configs.reading import Reading, change_text
from brimful.diagnose.advice import assumed_notes, verdict_words
from brimful.diagnose.sanity import Check
from brimful.fit.count import A100_FLOPS_PER_S, parameters
from brimful.language import Factor, Number, Percent, Seconds, Sentence, Several, Size, count, say
from brimful.language.spoken import told, tongue, words
from brimful.specs.estimate import Estimate, Fix, Interval
from brimful.specs.gpu import Gpu
from brimful.specs.presets import Preset
from brimful.specs.training import Training

if TYPE_CHECKING:
    from brimful.fit.advice.ladder import Rung

_NARROWEST, _WIDEST = 72, 100  # layout columns, depending on the terminal
_WIDE_BAR, _NARROW_BAR = 12, 5


def width() -> int:
    """Columns to use: the terminal's, within limits; the maximum without a terminal."""
    return max(_NARROWEST, min(_WIDEST, get_terminal_size((_WIDEST, 24)).columns))


def show(
    answer: Estimate,
    gpu: Gpu,
    reading: Reading,
    *,
    rungs: Sequence[Rung] = (),
) -> str:
    """The whole answer; with a ladder, that instead of the details."""
    details = [
        _items(answer),
        _counters(answer),
        _speed(answer, gpu, reading),
        _changes(answer, reading),
    ]
    blocks = [
        _verdict(answer, gpu, reading),
        *([_ladder(rungs, reading.training)] if rungs else details),
        _small_print(answer, reading),
    ]
    return "\n\n".join(block for block in blocks if block)


def compare_text(rows: Sequence[tuple[str, Reading, Estimate]], gpu: Gpu) -> str:
    """Side by side: bytes, verdict, sequences per step and speed, each relative to the first row."""

    _, base, first = rows[0]
    letters = [chr(ord("A") + number) if number < 26 else str(number) for number in range(len(rows))]
    titles = ("gpu.needs", "gpu.change", "gpu.verdict", "gpu.seq_step", "gpu.tokens_s", "gpu.speed_column")
    header = ("", *map(words, titles), "MFU")
    cells = [
        (letter, *_compared(answer, first, reading.training.effective_batch))
        for letter, (_, reading, answer) in zip(letters, rows, strict=True)
    ]
    head = say(
        "gpu.usable",
        model=paint(base.model.name, "bold"),
        gpu=gpu.title,
        usable=Size(first.usable_bytes),
    )
    names = zip(letters, (name for name, _, _ in rows), strict=True)
    lines = [told(head), ""]
    lines += [_filled(name, f"{letter}  ", "   ") for letter, name in names]
    lines += ["", table(header, cells, right=(1, 2, 4, 5, 6, 7))]
    whole = base.training.effective_batch
    others = [x for x, (_, r, _) in zip(letters, rows, strict=True) if r.training.effective_batch != whole]
    notes = list(dict.fromkeys(note for _, reading, _ in rows for note in map(told, reading.warnings)))
    if others:
        said = (
            say("gpu.other_run", rows=others[0], n=whole)
            if len(others) == 1
            else say("gpu.other_runs", rows=", ".join(others), n=whole)
        )
        notes.insert(0, told(said))
    lines += ["", *map(_note, notes)]
    lines += [_filled(note, "", "  ") for note in assumed_notes(first.others)]
    return "\n".join(lines).rstrip()


def _compared(answer: Estimate, first: Estimate, sequences: int) -> tuple[str, ...]:
    needs, before = answer.memory.device_bytes.likely, first.memory.device_bytes.likely
    rate, rate_before = answer.speed.tokens_per_s.likely, first.speed.tokens_per_s.likely
    return (
        told(Size(needs)),
        "" if answer is first else _signed(needs - before),
        told(verdict_words(answer.verdict)),
        told(sequences),
        told(Number(rate)),
        "" if answer is first else told(Factor(rate / rate_before)),
        told(Percent(answer.speed.mfu.likely)),
    )


def _ladder(rungs: Sequence[Rung], wanted: Training) -> str:
    """The rungs from the safest up to what is wanted, each with what it adds."""

    lines = _headed(say("gpu.ladder"), say("gpu.ladder_head"), ": ")
    if rungs[0].estimate.verdict != "fits":
        lines.append("  " + words("gpu.ladder_closest"))
    for number, rung in enumerate(rungs):
        change = ", ".join(f"{key} {then}" for key, (_, then) in rung.change.items())
        change = change or words("gpu.configured")
        device, speed = rung.estimate.memory.needed_bytes, rung.estimate.speed
        where = "" if rung.config_only else f"   ({words('gpu.code')})"
        needs = say("gpu.up_to", size=Size(device.likely), high=Size(device.high))
        added = (_signed(rung.adds_bytes),) if number else ()
        line = say(
            "gpu.compared_row",
            needs=Several((needs, *added)),
            verdict=verdict_words(rung.estimate.verdict),
            time=Seconds(speed.step_s.likely),
            mfu=Percent(speed.mfu.likely),
        )
        lines.append(_filled(f"{change}{where}", f"  {number}. ", "     "))
        lines.append(_filled(line, "     "))
    if rungs[-1].training != wanted and rungs[-1].estimate.verdict == "fits":
        lines.append(_filled(say("gpu.ladder_ends"), "  "))
    return "\n".join(lines)


def checks_text(checks: Sequence[Check]) -> str:
    lines = []
    for check in checks:
        word = paint(words("gpu.possible"), "green")
        if check.unusual:
            word = paint(words("gpu.unusual"), "yellow")
        if not check.possible:
            word = paint(words("gpu.impossible").upper(), "red")
        name = "MFU" if check.name == "mfu" else check.name
        lines.append(_filled(f"{word}  {name}: {told(check.why)}", "", "  "))
    return "\n".join(lines)


def models_text(presets: Sequence[Preset]) -> str:
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
    facts = ("gpu.parameters", "gpu.layers", "gpu.width", "gpu.vocabulary", "gpu.context", "gpu.published")
    header = [*map(words, ("gpu.name", *facts))]
    many = words("gpu.models_legend", n=len(presets))
    return "\n".join([table(header, rows, right=(1, 2, 3, 4, 5)), "", many])


_RARE = 0.01  # smaller chances are not distinguished


def _verdict(answer: Estimate, gpu: Gpu, reading: Reading) -> str:
    device, gap = answer.memory.needed_bytes, Size(abs(answer.short_bytes))
    style = {"fits": "green", "does_not_fit": "red"}.get(answer.verdict, "yellow")
    word = paint(told(verdict_words(answer.verdict)).upper(), style)
    gpus = f"{reading.training.gpus} x " if reading.training.gpus > 1 else ""
    values = {
        "model": reading.model.name,
        "many": _many(answer.parameters),
        "gpu": f"{gpus}{gpu.title}",
    }
    what = say("gpu.model_on", **values)
    if answer.active_parameters is not None:
        few = _many(answer.active_parameters)
        what = say("gpu.model_on_active", few=few, **values)
    room = say("gpu.spare", size=gap) if answer.fits else say("gpu.short", size=gap)
    needs = words(
        "gpu.needs_of_usable",
        likely=Size(device.likely),
        usable=Size(answer.usable_bytes),
        room=room,
    )
    between = words("gpu.between", low=Size(device.low), high=Size(device.high))
    peak = say("gpu.peak_at", where=answer.memory.peak_at.says())
    one_line = f"  {needs}   {between}"
    return "\n".join(
        [
            f"{word}  {told(what)}",
            one_line if len(one_line) <= width() else f"  {needs}\n  {between}",
            f"  {words('gpu.chance', chance=chance_in_words(answer.chance))}",
            _filled(peak, "  "),
        ]
    )


def chance_in_words(chance: float) -> Sentence | Percent:
    """No more digits than are known."""
    if chance < _RARE:
        return say("gpu.less_than", frac=Percent(_RARE))
    return say("gpu.more_than", frac=Percent(1 - _RARE)) if chance > 1 - _RARE else Percent(chance)


def _items(answer: Estimate) -> str:
    total = answer.memory.device_bytes.likely
    largest = max(item.bytes for item in answer.memory.items)
    names = [told(item.name) for item in answer.memory.items]
    named = max(map(len, names))
    columns = width()
    blocks = _WIDE_BAR if columns == _WIDEST else _NARROW_BAR
    lines = [paint(words("gpu.memory_at_peak"), "bold")]
    for name, item in zip(names, answer.memory.items, strict=True):
        share = f"{told(Size(item.bytes)):>9} {told(Percent(item.bytes / total)):>5}"
        head = f"  {name:<{named}}  {share}  {bar(item.bytes / largest, blocks)}  "
        first, *rest = wrap(told(item.why), max(16, columns - len(head)))
        lines += [head + first, *(" " * len(head) + more for more in rest)]
    whole = words("gpu.total")
    lines.append(f"  {whole:<{named}}  {told(Size(total)):>9}")
    return "\n".join(lines)


def _counters(answer: Estimate) -> str:
    memory = answer.memory
    rows = [
        ("allocated", memory.allocated_bytes, "torch.cuda.max_memory_allocated()"),
        ("reserved", memory.reserved_bytes, "torch.cuda.max_memory_reserved()"),
        (say("gpu.device"), memory.device_bytes, say("gpu.in_nvidia_smi")),
        (say("gpu.first_step"), memory.first_step_bytes, say("gpu.before_optimizer_state")),
    ]
    labels = [told(label) for label, _, _ in rows]
    named = max(10, *map(len, labels))
    titles = "".join(f"{words(code):>11}" for code in ("gpu.low", "gpu.likely", "gpu.high"))
    head = f"{words('gpu.counter'):<{named + 2}}{titles}  {words('gpu.where_you_see_it')}"
    lines = [paint(head, "bold")]
    for label, (_, counter, where) in zip(labels, rows, strict=True):
        cells = "".join(f"{told(Size(n)):>11}" for n in (counter.low, counter.likely, counter.high))
        lines.append(f"  {label:<{named}}{cells}  {told(where)}")
    return "\n".join(lines)


def _speed(answer: Estimate, gpu: Gpu, reading: Reading) -> str:
    speed, training = answer.speed, reading.training
    said: list[tuple[object, Sentence]] = [
        (
            say("gpu.step"),
            say(
                "gpu.step_tokens",
                spread=_between(speed.step_s, Seconds),
                sequences=count("sequence", training.effective_batch),
                tokens=training.step_tokens,
            ),
        ),
        (say("gpu.tokens"), say("gpu.per_second", spread=_between(speed.tokens_per_s, Number))),
    ]
    if (images := answer.images_per_s) is not None:
        said.append((say("gpu.images"), say("gpu.per_second", spread=_between(images, Number))))
    of_peak = say(
        "gpu.of_peak",
        spread=_between(speed.mfu, Percent),
        peak=tongue().plain(speed.peak_flops_per_s / 1e12),
        format=speed.peak_format,
        bound=say(f"fit.bound_{speed.bound_by}"),
    )
    said.append(("MFU", of_peak))
    if reading.dialect.name == "nanoGPT" and gpu.dense_flops_per_s.get("bf16") != A100_FLOPS_PER_S:
        printed = Percent(speed.mfu.likely * speed.peak_flops_per_s / A100_FLOPS_PER_S)
        said.append(("", say("gpu.nanogpt_mfu", mfu=printed)))
    labels = [told(label) for label, _ in said]
    named = max(map(len, labels)) + 2
    lines = [paint(told(say("gpu.speed") if answer.fits else say("gpu.speed_if_it_fit")), "bold")]
    for label, (_, sentence) in zip(labels, said, strict=True):
        lines.append(_filled(sentence, f"  {label:<{named}}", " " * (named + 2)))
    return "\n".join(lines)


def _changes(answer: Estimate, reading: Reading) -> str:
    keeping = say("gpu.keeping_step", sequences=count("sequence", reading.training.effective_batch))
    lines = [paint(words("gpu.room"), "bold")]
    if ways := answer.fixes or answer.faster:
        saves = bool(answer.fixes)
        lines = _headed(say("gpu.what_to_change") if saves else say("gpu.what_is_faster"), keeping, ", ")
        lines += [line for i, fix in enumerate(ways, start=1) for line in _fix(i, fix, saves=saves)]
    if answer.fixes:
        more = [say("gpu.hint_ladder"), *([say("gpu.hint_patch")] if reading.file else [])]
        if not any(fix.fits for fix in answer.fixes):
            more = [say("gpu.hint_all_cards")]
        lines.append(_filled(Several(tuple(more), between="; "), "  "))
    if answer.largest_batch is None:
        largest = say("gpu.not_even_batch_1")
    else:
        code = f"gpu.largest_batch_as_configured{answer.batch_risk}"
        largest = Sentence(code, {"n": answer.largest_batch, "sure": answer.sure_batch})
    return "\n".join([*lines, _filled(largest, "  ")])


def _headed(title: Sentence, more: Sentence, joint: str) -> list[str]:
    head = told(title)
    filled = _filled(f"{head}{tongue().joint(joint)}{told(more)}", "", "  ")
    return [filled.replace(head, paint(head, "bold"), 1)]


def _fix(number: int, fix: Fix, *, saves: bool) -> list[str]:
    """One change, its effect, and why: a fix saves memory, a speed-up may take more."""

    verdict = verdict_words(fix.verdict) if fix.fits else say("gpu.still_not_fit")
    time = Factor(fix.step_time_factor)
    if saves:
        line = say(
            "gpu.saves_step_time",
            verdict=verdict,
            size=Size(fix.saves_bytes),
            time=time,
        )
    else:
        line = say(
            "gpu.ladder_rung",
            mfu=Percent(fix.mfu),
            time=time,
            size=_signed(-fix.saves_bytes),
            verdict=verdict,
        )
    # 'batch_size 16 -> 8, …', wrapped only after a comma.
    change = ", ".join(change_text({key: pair}).replace(" ", KEPT) for key, pair in fix.change.items())
    return [
        _filled(change, f"  {number}. ", "     "),
        _filled(line, "     "),
        _filled(fix.says(), "     "),
    ]


def _small_print(answer: Estimate, reading: Reading) -> str:
    notes = [told(warning) for warning in answer.warnings]
    if reading.unsure:
        notes.append(words("gpu.intervals_wider", n=reading.unsure))
    lines = list(map(_note, notes))
    lines += [_filled(note, "", "  ") for note in assumed_notes(answer.others)]
    if answer.assumed:
        settings = ", ".join(f"{a.name}={a.value}" for a in answer.assumed)
        lines.append(_filled(say("gpu.assumed", settings=settings), "", "  "))
    return "\n".join(lines)


def _note(text: str) -> str:
    return _filled(say("gpu.note", text=text), "", "  ")


def _filled(said: object, first: str, rest: str | None = None) -> str:
    """One paragraph; a number stays with its unit."""
    return paragraph(said, first, rest, columns=width())


def _many(parameters: int) -> str:
    if parameters >= 1e9:
        return words("gpu.billions", n=Number(parameters / 1e9, 2))
    return words("gpu.millions", n=Number(parameters / 1e6, 1))


def spread(of: Interval, unit: Callable[[float], object]) -> dict[str, object]:
    return {name: unit(value) for name, value in of.as_dict().items()}


def _between(interval: Interval, unit: Callable[[float], object]) -> Sentence:
    return say("gpu.to", **spread(interval, unit))


def _signed(n: float) -> str:
    sign = "" if round(n) == 0 else "+" if n > 0 else "-"
    return sign + told(Size(0 if round(n) == 0 else abs(n)))
