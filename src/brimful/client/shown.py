"""Sentences about a job, made from a server's answer, for the command line and the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from brimful.errors import Said
from brimful.language import (
    Number,
    Percent,
    Plain,
    Seconds,
    Sentence,
    Several,
    Size,
    count,
    say,
    verbatim,
    words,
)
from brimful.language.printable import MARK, printable

if TYPE_CHECKING:
    from brimful.client.answers import JobAnswer, MeasuredAnswer

# Beginnings of the codes of reasons that waiting does not change: only more or other GPUs, or another quota.
STUCK = tuple(
    f"scheduler.{name}"
    for name in ("too_wide_", "too_large_for_", "no_such_gpus", "too_little_memory", "above_queue")
)


def is_stuck(job: JobAnswer) -> bool:
    """Whether it waits for what the fleet does not have, and not for other jobs to end."""
    why = job["why_code"] if job["phase"] == "waiting" else None
    return why is not None and str(why.get("code", "")).startswith(STUCK)


def command_line(command: Sequence[str]) -> str:
    """A job's command on one line: for an inline shell script, its name and what it does.

    Comments do not say that (`#SBATCH` lines are comments), and only the first of several lines is shown.
    Newlines may already be marked (`all_printable`).
    """
    flag = command.index("-c") if "-c" in command[1:4] and command[0].endswith("sh") else len(command)
    script, *named = command[flag + 1 :] or [""]
    lines = [line.strip() for line in script.replace(MARK, "\n").splitlines()]
    if len(lines) < 2:
        return printable(" ".join(command).rstrip(f"\n{MARK}"))
    work = [line for line in lines if line and not line.startswith("#")]
    first = work[0] if work else words("client.script_is_empty")
    if len(work) > 1:
        first = words("client.script_goes_on", first=first, more=count("more_line", len(work) - 1))
    return printable(f"{named[0]}: {first}" if named else first)


def measured_said(found: MeasuredAnswer) -> Iterator[tuple[str, Said]]:
    """What a job measured about itself, as pairs of a row's code and its text; `age` always comes first."""
    state = "last" if found["over"] else "fresh" if found["fresh"] else "stale"
    yield "age", say(f"client.measured_{state}", age=Seconds(found["age_s"]))
    if found["step"] is None:
        yield "step", say("client.no_step_yet")
        return
    yield "step", say("client.step_took", step=found["step"], took=Seconds(found["step_s"] or 0))
    if found["tokens_per_s"] is not None:
        yield "speed", say("client.tokens_per_s", rate=Number(found["tokens_per_s"]))
    yield "mfu", _mfu_said(found)
    memory = [
        say(f"client.bytes_{kind}", size=Size(n))
        for kind, n in (
            ("allocated", found["allocated_bytes"]),
            ("reserved", found["reserved_bytes"]),
            ("peak", found["peak_allocated_bytes"]),
        )
        if n is not None
    ]
    yield "memory", Several(tuple(memory)) if memory else say("client.not_counted", device=found["device"])
    if found["world"] > 1:
        yield "rank", say("client.process_of", rank=Plain(found["rank"]), world=found["world"])


def _mfu_said(found: MeasuredAnswer) -> Sentence:
    peak, mfu = found["peak_flops_per_s"], found["mfu"]
    if mfu is None:
        return say("client.mfu_no_flops") if peak else say("client.mfu_no_peak", why=found["peak_source"])
    if not peak:
        return say("client.mfu_of_unknown", mfu=Percent(mfu, 1))
    unit = 1e12 if peak >= 1e12 else 1e9
    shown = verbatim(f"{peak / unit:.4g} {'TFLOPS' if unit > 1e9 else 'GFLOPS'}")
    what = found["peak_format"] or say("client.as_declared")
    return say("client.mfu_of", mfu=Percent(mfu, 1), peak=shown, format=what)
