"""`brimful watch`: this machine's GPUs, live: memory, useful work, and who uses them."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections import deque
from pathlib import Path

from brimful.cli.commands import Answer, integer
from brimful.cli.render import bar, live, paint, spark, wrapped
from brimful.diagnose.slow import why_line
from brimful.language import Number, Plain, Seconds, Size, count, told, tongue, words
from brimful.language.failures import os_errors_as
from brimful.language.printable import printable
from brimful.meter.machine import Holder, Looker, Machine, SeenGpu
from brimful.meter.nvml import meaning, problem_said, throttle_said
from brimful.meter.runtime import Live
from brimful.meter.samples import GpuSample, RunSample, StepSample, as_line
from brimful.meter.sinks import peak_said
from brimful.units import GIB

EXAMPLE = """brimful watch
brimful watch --once --json
brimful watch --jsonl cards.jsonl"""
KEPT, STEPS, ENOUGH = 600, 60, 8  # looks kept; steps kept per run, and how many explain a slow one


class History:
    """What `watch` has seen so far: how busy each card was, and the steps of each run."""

    def __init__(self) -> None:
        self.compute: dict[str, deque[float]] = {}
        self.runs: dict[int, tuple[RunSample, deque[StepSample]]] = {}

    def curve(self, card: SeenGpu) -> list[float]:
        return list(self.compute.get(card.label, ()))

    def why(self, each: Live, gpu: GpuSample) -> str | None:
        """Why the run is slow, in a few words, once there are enough steps."""
        if each.pid not in self.runs:
            return None
        run, steps = self.runs[each.pid]
        said = why_line([run, *steps, gpu]) if len(steps) >= ENOUGH else None
        return None if said is None else told(said)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=integer, default=1, metavar="S")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--jsonl", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> Answer:
    looker, history = Looker(), History()
    if args.once or args.json or not sys.stdout.isatty():
        machine = looker.look(time.time())
        looker.close()
        write(args.jsonl, machine)
        if machine.problem and not machine.elsewhere:
            raise machine.problem
        return Answer(machine.as_dict(), screen(machine, history, *shutil.get_terminal_size((100, 60))))

    def draw(columns: int, lines: int) -> str:
        machine = looker.look(time.time())
        remember(history, machine)
        write(args.jsonl, machine)
        return screen(machine, history, columns, lines - 1)

    with contextlib.closing(looker):
        live(draw, every_s=args.every)
    return Answer(None, "")


def write(path: Path | None, machine: Machine) -> None:
    """The card readings, for `brimful why-slow`, which needs them to see a throttled clock."""
    if path is None:
        return
    with os_errors_as("language.cannot_write", path=path), path.open("a", encoding="utf-8") as file:
        file.writelines(as_line(card.sample) + "\n" for card in machine.cards)


def remember(history: History, machine: Machine) -> None:
    """How busy each card is, look by look; a card that is gone is forgotten."""
    labels = {card.label for card in machine.cards}
    for gone in history.compute.keys() - labels:
        del history.compute[gone]
    for card in machine.cards:
        history.compute.setdefault(card.label, deque(maxlen=KEPT)).append(card.compute[0] or 0.0)
    runs = {each.pid: each for card in machine.cards for holder in card.holders if (each := holder.live)}
    for ended in history.runs.keys() - runs.keys():
        del history.runs[ended]
    for pid, each in runs.items():
        _run, steps = history.runs.setdefault(pid, (each.run, deque(maxlen=STEPS)))
        if each.step and not each.step.warmup and (not steps or steps[-1].step != each.step.step):
            steps.append(each.step)


def screen(machine: Machine, history: History, columns: int, lines: int) -> str:
    """Everything on one screen of this size: a block per card, or a line if blocks would not fit."""
    when = time.strftime("%H:%M:%S", time.localtime(machine.at_s))
    driver = words("operate.watch_no_driver")
    if machine.driver:
        driver = words("operate.watch_driver", version=machine.driver)
    gpus = told(count("gpu", sum(card.sample.mig is None for card in machine.cards)))
    out = [f"{paint('brimful watch', 'bold')}  {gpus}  {driver}  {when}", ""]
    if problem := machine.problem:
        seen = paint(words("operate.watch_no_gpu"), "yellow") + tongue().joint(": ")
        out += [seen + told(problem.said), words("cli.way_out", hint=problem.way_out or ""), ""]
    blocks = [_block(card, history, columns) for card in machine.cards]
    about = wrapped("", words("operate.watch_about"), columns=columns)
    tail = [*_elsewhere(machine, columns), *(paint(line, "dim") for line in about)]
    if sum(map(len, blocks)) + len(out) + len(tail) > lines:
        blocks = _compact(machine.cards, history, columns, most=max(4, lines - len(out) - len(tail)))
    lines_shown = [*out, *(line for block in blocks for line in block), *tail]
    return "\n".join(line.rstrip() for line in lines_shown)


def _block(card: SeenGpu, history: History, columns: int) -> list[str]:
    sample = card.sample
    head = f"{card.label:>3}  {printable(sample.name) or words('operate.watch_nameless')}"
    if sample.problem:
        silent = paint(words("operate.watch_silent"), "red")
        return [f"{head}  {silent}", *wrapped(" " * 5, _problem(sample), columns=columns), ""]
    facts = "  ".join(_facts(card))
    gap = columns - len(head) - len(facts)
    out = [f"{head}{' ' * gap}{facts}".rstrip()] if gap >= 2 else [head, f"     {facts}"]
    width = max(10, min(40, columns - 56))
    curve = spark(history.curve(card), max(0, columns - width - 50), top=1.0)
    memory, compute = words("operate.watch_memory"), words("operate.watch_compute")
    out.append(f"     {memory:<9}{_memory_bar(card, width)}  {_memory_words(card)}")
    work = f"{_compute_bar(card, width)}  {_compute_words(card):<32}"
    out.append(f"     {compute:<9}{work}  {paint(curve, 'dim')}".rstrip())
    if sample.throttle:
        held = paint(words("operate.watch_held_down"), "yellow") + tongue().joint(": ")
        out.append(f"     {held}{', '.join(map(_throttle, sample.throttle))}")
    if sample.ecc_errors:
        out.append(f"     {paint(words('operate.watch_memory_errors', n=sample.ecc_errors), 'red')}")
    for field, why in sample.gaps.items():
        out.append(f"     {paint(words('operate.watch_gap', field=field, why=meaning(why)), 'dim')}")
    for holder in _by_size(card):
        out += _process(holder, card, history, columns)
    return [*out, ""]


def _facts(card: SeenGpu) -> list[str]:
    sample = card.sample
    readings: tuple[tuple[float | None, float | None, float, str], ...] = (
        (sample.power_w, sample.power_limit_w, 1, "W"),
        (sample.sm_clock_hz, sample.sm_clock_max_hz, 1e6, "MHz"),
        (sample.temperature_c, None, 1, "°C"),
    )
    return [
        f"{_of(Plain(round(now / scale)), most and Plain(round(most / scale)))} {unit}"
        for now, most, scale, unit in readings
        if now is not None
    ]


def _of(now: object, most: object) -> str:
    return words("operate.watch_of", n=now, most=most) if most else told(now)


def _share(frac: float, digits: int = 0) -> str:
    """As compact as in nvidia-smi, in every language: a column is four wide."""
    return f"{told(Number(100 * frac, digits))}%"


def _memory(card: SeenGpu) -> float | None:
    used, total = card.sample.memory_used_bytes, card.sample.memory_total_bytes
    return None if used is None or not total else used / total


def _memory_bar(card: SeenGpu, width: int) -> str:
    frac = _memory(card)
    return " " * width if frac is None else paint(bar(frac, width), "cyan")


def _memory_words(card: SeenGpu) -> str:
    used, total, frac = card.sample.memory_used_bytes, card.sample.memory_total_bytes, _memory(card)
    if frac is None:
        return words("operate.watch_unknown")
    return f"{_share(frac)}  {_of(Number((used or 0) / GIB, 2), Size(total or 0))}"


def _compute_bar(card: SeenGpu, width: int) -> str:
    """Solid for known useful work, hatched if we only know that a kernel ran."""
    frac, kind = card.compute
    if frac is None:
        return " " * width
    if kind == "mfu":
        return paint(bar(frac, width), "green")
    return paint(("░" * round(min(1.0, frac) * width)).ljust(width), "yellow")


def _compute_words(card: SeenGpu) -> str:
    frac, kind = card.compute
    if frac is None:
        return words("operate.watch_unknown")
    if kind == "busy":
        return words("operate.watch_busy", share=_share(frac))
    run = next(holder.live.run for holder in card.holders if holder.live and holder.works_here)
    return words("operate.watch_mfu", share=_share(frac, 1), peak=peak_said(run))


def _process(holder: Holder, card: SeenGpu, history: History, columns: int) -> list[str]:
    process = holder.process
    held = "  ?"
    if process.used_bytes is not None:
        held = f"{told(Number(process.used_bytes / GIB, 2))} {tongue().byte_units[0]}"
    who = f"{printable(process.user)} " if process.user else ""
    name = printable(process.name) or ("" if process.user else words("operate.watch_container"))
    out = [f"     {process.pid:>7}  {held:>9}  {who}{_job(holder.job)}{name}"[:columns]]
    if holder.idle:
        out.append(f"              {paint(told(holder.idle), 'yellow')}"[: columns + 9])
    if holder.live and holder.live.step:
        out.append(f"              {paint(_step_words(holder.live.step)[: columns - 14], 'green')}")
        why = history.why(holder.live, card.sample) if holder.works_here else None
        lines = wrapped(" " * 14, why or "", columns=columns)[:2]
        out += [paint(line, "dim") for line in lines]
    return out


def _step_words(step: StepSample) -> str:
    parts = [words("operate.watch_step", n=step.step), told(Seconds(step.step_s))]
    if step.tokens_per_s is not None:
        parts.append(f"{told(Number(step.tokens_per_s))} {words('gpu.tokens_s')}")
    waits = step.data_s / step.step_s if step.step_s else 0.0
    if waits >= 0.1:
        parts.append(words("operate.watch_waits", share=_share(waits)))
    if step.pauses_s:
        parts.append(f"{', '.join(step.pauses_s)} {told(Seconds(sum(step.pauses_s.values())))}")
    if step.malloc_retries:
        parts.append(words("operate.watch_retries", n=step.malloc_retries))
    return "  ".join(parts)


def _job(name: str | None) -> str:
    return words("operate.watch_job", name=printable(name)) + "  " if name else ""


def _compact(cards: tuple[SeenGpu, ...], history: History, columns: int, *, most: int) -> list[list[str]]:
    """One line per card. What does not fit is counted, not silently dropped."""
    narrow = columns < 110
    width, named = (7, 11) if narrow else (14, 24)
    titles = ("memory", "compute", "power", "who")
    memory, compute, power, who = (words(f"operate.watch_{title}") for title in titles)
    bars = f"{memory:<{width + 5}}  {compute:<{width + 10}}"
    title = f"{'GPU':>4}  {words('gpu.name'):<{named}}  {bars}  {power:>6}  {'°C':>3}  {who}"
    out = [[paint(title[:columns], "dim")]]
    shown = cards if len(cards) < most else cards[: most - 2]
    out += [[_line(card, history, columns, width=width, named=named)] for card in shown]
    if hidden := cards[len(shown) :]:
        busy = sum((card.compute[0] or 0.0) >= 0.05 for card in hidden)
        out.append(["      " + words("operate.watch_more", gpus=count("gpu", len(hidden)), busy=busy)])
    return [*out, [""]]


def _line(card: SeenGpu, history: History, columns: int, *, width: int, named: int) -> str:
    sample = card.sample
    name = printable(sample.name).removeprefix("NVIDIA ").removeprefix("GeForce ")[:named]
    left = f"{card.label:>4}  {name:<{named}}  "
    if sample.problem:
        return left + paint(_problem(sample)[: columns - len(left)], "red")
    held = _memory(card)
    share = "?" if held is None else _share(held)
    frac, kind = card.compute
    word = "MFU" if kind == "mfu" else words(f"operate.watch_short_{kind}")
    compute = word if frac is None else f"{_share(frac):>4} {word}"
    watts = "" if sample.power_w is None else f"{sample.power_w:.0f} W"
    heat = "" if sample.temperature_c is None else str(sample.temperature_c)
    plain = len(left) + 2 * width + 36
    flag = f"{paint('!', 'yellow')} " if sample.throttle else "  "
    who = _who(card)[: max(0, columns - plain)]
    rest = max(0, columns - plain - len(who) - 2)
    curve = spark(history.curve(card), min(rest, 40), top=1.0) if rest >= 8 else ""
    return (
        f"{left}{_memory_bar(card, width)} {share:>4}  {_compute_bar(card, width)} {compute:<9}  "
        f"{watts:>6}  {heat:>3}{flag}{who}{'  ' if curve else ''}{paint(curve, 'dim')}"
    ).rstrip()


def _who(card: SeenGpu) -> str:
    """What throttles the clock; the process with the most memory, and how many others there are."""
    held = f"{_throttle(card.sample.throttle[0])}; " if card.sample.throttle else ""
    holders = _by_size(card)
    if not holders:
        return held
    first = holders[0]
    parts = [first.job or "", _program(printable(first.process.name)), first.process.user]
    more = f" +{len(holders) - 1}" if len(holders) > 1 else ""
    return held + " ".join(filter(None, map(printable, parts))) + more


def _problem(sample: GpuSample) -> str:
    return told(problem_said(printable(sample.problem)))


def _throttle(name: str) -> str:
    return told(throttle_said(name))


def _by_size(card: SeenGpu) -> list[Holder]:
    return sorted(card.holders, key=lambda each: -(each.process.used_bytes or 0))


def _program(name: str) -> str:
    """'train.py' of 'python3 train.py config/x.py'."""
    parts = [word for word in name.split() if not word.startswith("-")]
    scripts = [word for word in parts[:4] if word.endswith(".py")]
    return (scripts or parts or [""])[0].rsplit("/", 1)[-1]


def _elsewhere(machine: Machine, columns: int) -> list[str]:
    """Runs that hold no card the driver shows: on a CPU, another vendor's card, in a container."""
    out = [_elsewhere_line(each, machine.at_s)[:columns] for each in machine.elsewhere]
    return [paint(words("operate.watch_elsewhere"), "dim"), *out, ""] if out else []


def _elsewhere_line(each: Live, now_s: float) -> str:
    model = words("gpu.on", model=printable(each.run.model), gpu=each.run.device)
    head = f"     {each.pid:>7}  {_job(each.run.job)}{model}  "
    age = Seconds(round(each.age_s(now_s)))
    if each.step is None:
        return head + words("operate.watch_no_step_yet", age=age)
    if not each.fresh(now_s):
        return head + words("operate.watch_no_step", age=age)
    if each.step.mfu is not None:
        share = _share(each.step.mfu, 1)
        head += words("operate.watch_mfu", share=share, peak=peak_said(each.run)) + "  "
    return head + _step_words(each.step)
