"""`brimful watch`: this machine's GPUs, live: memory beside useful work, and who is on them."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import deque
from pathlib import Path

from brimful.cli.commands import Answer, whole
from brimful.cli.render import ALTERNATE, CLEAR_BELOW, HIDE, HOME, NORMAL, SHOW, bar, paint, spark
from brimful.diagnose.slow import why_line
from brimful.errors import WorldFailed
from brimful.language import os_words, say, told
from brimful.language.printable import printable
from brimful.meter.machine import Holder, Looker, Machine, SeenGpu
from brimful.meter.nvml import meaning, problem_said, throttle_said
from brimful.meter.runtime import Live
from brimful.meter.samples import GpuSample, RunSample, StepSample, as_line
from brimful.meter.sinks import peak_said
from brimful.units import GIB, counted, show_bytes, show_seconds

EXAMPLE = """brimful watch
brimful watch --once --json
brimful watch --jsonl cards.jsonl"""
KEPT, STEPS, ENOUGH = 600, 60, 8  # looks of history; steps of each run, and how many tell why it is slow
ABOUT = (
    "MFU: useful FLOPs of the card's own peak, where a process has a Meter. "
    "busy ░: some kernel ran, not how much useful work it did."
)


class History:
    """What `watch` has seen since it began: how hard each card worked, and the steps of each run."""

    def __init__(self) -> None:
        self.compute: dict[str, deque[float]] = {}
        self.runs: dict[int, tuple[RunSample, deque[StepSample]]] = {}

    def curve(self, card: SeenGpu) -> list[float]:
        return list(self.compute.get(card.label, ()))

    def why(self, each: Live, gpu: GpuSample) -> str | None:
        """Why the run is slow, in a few words, once it has shown enough steps."""
        if each.pid not in self.runs:
            return None
        run, steps = self.runs[each.pid]
        said = why_line([run, *steps, gpu]) if len(steps) >= ENOUGH else None
        return None if said is None else told(said)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=whole, default=1, metavar="S")
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
    sys.stdout.write(ALTERNATE + HIDE)
    try:
        while True:
            machine = looker.look(time.time())
            remember(history, machine)
            write(args.jsonl, machine)
            size = shutil.get_terminal_size((100, 30))
            lines = screen(machine, history, size.columns, size.lines - 1).splitlines()
            rows = [f"{line}\x1b[K" for line in lines[: size.lines - 1]]
            sys.stdout.write(HOME + "\n".join(rows) + CLEAR_BELOW)
            sys.stdout.flush()
            time.sleep(args.every)
    except KeyboardInterrupt:
        return Answer(None, "")
    finally:
        looker.close()
        sys.stdout.write(SHOW + NORMAL)
        sys.stdout.flush()


def write(path: Path | None, machine: Machine) -> None:
    """The looks at the cards, for `brimful why-slow`: it knows by them whether a clock was held down."""
    if path is None:
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(as_line(card.sample) + "\n" for card in machine.cards)
    except OSError as error:
        raise WorldFailed(say("gpu.cannot_written", path=path, error=os_words(error))) from error


def remember(history: History, machine: Machine) -> None:
    """How hard each card works, look by look; a card that is gone is forgotten."""
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
    """Everything on one screen of this size: a block for each card, or a line where blocks would not fit."""
    when = time.strftime("%H:%M:%S", time.localtime(machine.at_s))
    driver = f"driver {machine.driver}" if machine.driver else "no driver"
    whole_cards = sum(card.sample.mig is None for card in machine.cards)
    out = [f"{paint('brimful watch', 'bold')}  {counted(whole_cards, 'GPU')}  {driver}  {when}", ""]
    if machine.problem:
        out += [
            f"{paint('no GPU is seen', 'yellow')}: {machine.problem.problem}",
            f"hint: {machine.problem.hint}",
            "",
        ]
    blocks = [_block(card, history, columns) for card in machine.cards]
    tail = [*_elsewhere(machine, columns), *(paint(line, "dim") for line in _wrapped(ABOUT, columns))]
    if sum(map(len, blocks)) + len(out) + len(tail) > lines:
        blocks = _compact(machine.cards, history, columns, most=max(4, lines - len(out) - len(tail)))
    lines_shown = [*out, *(line for block in blocks for line in block), *tail]
    return "\n".join(line.rstrip() for line in lines_shown)


def _block(card: SeenGpu, history: History, columns: int) -> list[str]:
    sample = card.sample
    head = f"{card.label:>3}  {printable(sample.name) or 'a card without a name'}"
    if sample.problem:
        return [
            f"{head}  {paint('does not answer', 'red')}",
            *_wrapped(_problem(sample), columns, 5),
            "",
        ]
    facts = "  ".join(_facts(card))
    gap = columns - len(head) - len(facts)
    out = [f"{head}{' ' * gap}{facts}".rstrip()] if gap >= 2 else [head, f"     {facts}"]
    width = max(10, min(40, columns - 56))
    curve = spark(history.curve(card), max(0, columns - width - 50), top=1.0)
    out.append(f"     memory   {_memory_bar(card, width)}  {_memory_words(card)}")
    words = _compute_words(card)
    out.append(f"     compute  {_compute_bar(card, width)}  {words:<32}  {paint(curve, 'dim')}".rstrip())
    if sample.throttle:
        out.append(f"     {paint('clock held down', 'yellow')}: {', '.join(map(_throttle, sample.throttle))}")
    if sample.ecc_errors:
        out.append(f"     {paint(f'{sample.ecc_errors} uncorrected memory errors', 'red')}")
    for field, why in sample.gaps.items():
        out.append(f"     {paint(f'{field} is unknown: {told(meaning(why))}', 'dim')}")
    for holder in _by_size(card):
        out += _process(holder, card, history, columns)
    return [*out, ""]


def _facts(card: SeenGpu) -> list[str]:
    sample = card.sample
    out = []
    if sample.power_w is not None:
        limit = f" of {sample.power_limit_w:.0f}" if sample.power_limit_w else ""
        out.append(f"{sample.power_w:.0f}{limit} W")
    if sample.sm_clock_hz is not None:
        most = f" of {sample.sm_clock_max_hz / 1e6:.0f}" if sample.sm_clock_max_hz else ""
        out.append(f"{sample.sm_clock_hz / 1e6:.0f}{most} MHz")
    if sample.temperature_c is not None:
        out.append(f"{sample.temperature_c} °C")
    return out


def _memory_bar(card: SeenGpu, width: int) -> str:
    used, total = card.sample.memory_used_bytes, card.sample.memory_total_bytes
    return " " * width if used is None or not total else paint(bar(used / total, width), "cyan")


def _memory_words(card: SeenGpu) -> str:
    used, total = card.sample.memory_used_bytes, card.sample.memory_total_bytes
    if used is None or not total:
        return "unknown"
    return f"{used / total:.0%}  {used / GIB:.2f} of {show_bytes(total)}"


def _compute_bar(card: SeenGpu, width: int) -> str:
    """Solid where the work is known to be useful, hatched where only a kernel is known to have run."""
    frac, kind = card.compute
    if frac is None:
        return " " * width
    if kind == "mfu":
        return paint(bar(frac, width), "green")
    return paint(("░" * round(min(1.0, frac) * width)).ljust(width), "yellow")


def _compute_words(card: SeenGpu) -> str:
    frac, kind = card.compute
    if frac is None:
        return "unknown"
    if kind == "busy":
        return f"{frac:.0%} busy, not useful work"
    run = next(holder.live.run for holder in card.holders if holder.live and holder.works_here)
    return f"{frac:.1%} MFU of {_peak(run)}"


def _process(holder: Holder, card: SeenGpu, history: History, columns: int) -> list[str]:
    process = holder.process
    held = "  ?" if process.used_bytes is None else f"{process.used_bytes / GIB:.2f} GiB"
    who = f"{printable(process.user)} " if process.user else ""
    job = f"job {printable(holder.job)}  " if holder.job else ""
    name = printable(process.name) or ("another container" if not process.user else "")
    out = [f"     {process.pid:>7}  {held:>9}  {who}{job}{name}"[:columns]]
    if holder.idle:
        out.append(f"              {paint(told(holder.idle), 'yellow')}"[: columns + 9])
    if holder.live and holder.live.step:
        out.append(f"              {paint(_step_words(holder.live.step)[: columns - 14], 'green')}")
        why = history.why(holder.live, card.sample) if holder.works_here else None
        out += [paint(line, "dim") for line in _wrapped(why, columns, 14)[:2]] if why else []
    return out


def _step_words(step: StepSample) -> str:
    parts = [f"step {step.step:,}", show_seconds(step.step_s)]
    if step.tokens_per_s is not None:
        parts.append(f"{step.tokens_per_s:,.0f} tokens/s")
    waits = step.data_s / step.step_s if step.step_s else 0.0
    if waits >= 0.1:
        parts.append(f"{waits:.0%} waiting for data")
    if step.pauses_s:
        parts.append(f"{', '.join(step.pauses_s)} {show_seconds(sum(step.pauses_s.values()))}")
    if step.malloc_retries:
        parts.append(f"{step.malloc_retries} cudaMalloc retries")
    return "  ".join(parts)


def _compact(cards: tuple[SeenGpu, ...], history: History, columns: int, *, most: int) -> list[list[str]]:
    """One line for each card. What does not fit is counted, not dropped silently."""
    narrow = columns < 110
    width, named = (7, 11) if narrow else (14, 24)
    bars = f"{'memory':<{width + 5}}  {'compute':<{width + 10}}"
    title = f"{'GPU':>4}  {'name':<{named}}  {bars}  {'power':>6}  {'°C':>3}  who"
    out = [[paint(title[:columns], "dim")]]
    shown = cards if len(cards) < most else cards[: most - 2]
    out += [[_line(card, history, columns, width=width, named=named)] for card in shown]
    hidden = cards[len(shown) :]
    if hidden:
        busy = sum((card.compute[0] or 0.0) >= 0.05 for card in hidden)
        out.append(
            [f"      {counted(len(hidden), 'GPU')} more, {busy} of them at work: make the window taller"]
        )
    return [*out, [""]]


def _line(card: SeenGpu, history: History, columns: int, *, width: int, named: int) -> str:
    sample = card.sample
    name = _short(printable(sample.name))[:named]
    if sample.problem:
        head = f"{card.label:>4}  {name:<{named}}  "
        return head + paint(_problem(sample)[: columns - len(head)], "red")
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    share = "   ?" if used is None or not total else f"{used / total:>4.0%}"
    frac, kind = card.compute
    word = {"mfu": " MFU", "busy": " busy", "unknown": "unknown"}[kind]
    compute = word if frac is None else f"{frac:>4.0%}{word}"
    watts = "" if sample.power_w is None else f"{sample.power_w:.0f} W"
    heat = "" if sample.temperature_c is None else str(sample.temperature_c)
    left = f"{card.label:>4}  {name:<{named}}  "
    plain = len(left) + 2 * width + 36
    flag = f"{paint('!', 'yellow')} " if sample.throttle else "  "
    who = _who(card)[: max(0, columns - plain)]
    rest = max(0, columns - plain - len(who) - 2)
    curve = spark(history.curve(card), min(rest, 40), top=1.0) if rest >= 8 else ""
    return (
        f"{left}{_memory_bar(card, width)} {share}  {_compute_bar(card, width)} {compute:<9}  "
        f"{watts:>6}  {heat:>3}{flag}{who}{'  ' if curve else ''}{paint(curve, 'dim')}"
    ).rstrip()


def _who(card: SeenGpu) -> str:
    """The process that holds the most, and how many others there are."""
    if card.sample.throttle:
        return f"{_throttle(card.sample.throttle[0])}; {_holders(card)}"
    return _holders(card)


def _holders(card: SeenGpu) -> str:
    holders = _by_size(card)
    if not holders:
        return ""
    first = holders[0]
    name, user = _program(printable(first.process.name)), printable(first.process.user)
    words = [printable(first.job or ""), name, user]
    more = f" +{len(holders) - 1}" if len(holders) > 1 else ""
    return " ".join(word for word in words if word) + more


def _problem(sample: GpuSample) -> str:
    return printable(told(problem_said(sample.problem)))


def _peak(run: RunSample) -> str:
    return told(peak_said(run))


def _throttle(name: str) -> str:
    return told(throttle_said(name))


def _by_size(card: SeenGpu) -> list[Holder]:
    return sorted(card.holders, key=lambda each: -(each.process.used_bytes or 0))


def _program(name: str) -> str:
    """'train.py' of 'python3 train.py config/x.py'."""
    words = [word for word in name.split() if not word.startswith("-")]
    scripts = [word for word in words[:4] if word.endswith(".py")]
    return (scripts or words or [""])[0].rsplit("/", 1)[-1]


def _short(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _elsewhere(machine: Machine, columns: int) -> list[str]:
    """Runs that hold no card the driver shows: on a CPU, another vendor's card, in a container."""
    out = [_elsewhere_line(each, machine.at_s)[:columns] for each in machine.elsewhere]
    return [paint("runs that hold no GPU seen here", "dim"), *out, ""] if out else []


def _elsewhere_line(each: Live, now_s: float) -> str:
    job = f"job {printable(each.run.job)}  " if each.run.job else ""
    head = f"     {each.pid:>7}  {job}{printable(each.run.model)} on {each.run.device}"
    if each.step is None:
        return f"{head}  no step yet, for {show_seconds(round(each.age_s(now_s)))}"
    if not each.fresh(now_s):
        return f"{head}  no step for {show_seconds(round(each.age_s(now_s)))}"
    mfu = "" if each.step.mfu is None else f"  {each.step.mfu:.1%} MFU of {_peak(each.run)}"
    return f"{head}{mfu}  {_step_words(each.step)}"


def _wrapped(text: str, columns: int, indent: int = 0) -> list[str]:
    import textwrap

    pad = " " * indent
    return textwrap.wrap(text, width=columns, initial_indent=pad, subsequent_indent=pad)
