"""Words that come from users, made safe to show. Light: the command line uses it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from brimful.units import show_bytes, show_seconds

T = TypeVar("T")

MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text with a mark for every character that would not print.

    Names and commands come from users; line ends, control characters and changes of writing direction in
    them could make a line read as something else, or move the cursor of a terminal. Spaces that keep words
    together do none of this, and languages need them.
    """
    return text if text.isprintable() else "".join(c if _prints(c) else MARK for c in text)


def _prints(character: str) -> bool:
    return character.isprintable() or character in "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"


def command_line(command: Sequence[str]) -> str:
    """A job's command in one line: of a script that a shell was handed whole, its name and what it does.

    Comments say nothing of that (`#SBATCH` lines are), and only the first line of several is shown. Line ends
    may have been marked already (`all_printable`).
    """
    flag = command.index("-c") if "-c" in command[1:4] and command[0].endswith("sh") else len(command)
    script, *named = command[flag + 1 :] or [""]
    lines = [line.strip() for line in script.replace(MARK, "\n").splitlines()]
    if len(lines) < 2:
        return printable(" ".join(command))
    work = [line for line in lines if line and not line.startswith("#")]
    name = f"{named[0]}: " if named else ""
    more = len(work) - 1
    rest = f" … and {more} more line{'s' if more > 1 else ''}" if more > 0 else ""
    return printable(f"{name}{work[0] if work else 'nothing'}{rest}")


def all_printable(data: T) -> T:
    """The same for every text in an answer of the API, whose shape stays."""
    shown: Any = data
    if isinstance(data, str):
        shown = printable(data)
    elif isinstance(data, list):
        shown = [all_printable(each) for each in data]
    elif isinstance(data, dict):
        shown = {key: all_printable(value) for key, value in data.items()}
    return cast("T", shown)


def measured_words(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a job measured of itself (`measured` of the API), as pairs of a name and a short text."""
    age_s = found["age_s"]
    age = f"{age_s} s" if age_s < 60 else show_seconds(age_s)
    yield "Measured", f"{age} ago" + (", its last" if found["over"] else "" if found["fresh"] else ", stale")
    if found["step"] is None:
        yield "Step", "none yet"
        return
    yield "Step", f"{found['step']:,}, {show_seconds(found['step_s'])}"
    if found["tokens_per_s"] is not None:
        yield "Speed", f"{found['tokens_per_s']:,.0f} tokens/s"
    yield "MFU", _mfu_words(found)
    memory = [
        f"{show_bytes(found[name])} {word}"
        for name, word in (
            ("allocated_bytes", "allocated"),
            ("reserved_bytes", "reserved"),
            ("peak_allocated_bytes", "at its peak"),
        )
        if found[name] is not None
    ]
    yield "Memory", ", ".join(memory) or f"not counted on {found['device']}"
    if found["world"] > 1:
        yield "Of", f"process {found['rank']} of {found['world']:,}"


def _mfu_words(found: Mapping[str, Any]) -> str:
    peak = found["peak_flops_per_s"]
    if found["mfu"] is None:
        return f"unknown ({found['peak_source']})" if peak is None else "unknown: FLOPs of a step not known"
    shown = f"{(peak or 0) / 1e12:.4g} TFLOPS" if (peak or 0) >= 1e12 else f"{(peak or 0) / 1e9:.4g} GFLOPS"
    return f"{found['mfu']:.1%} of {shown} {found['peak_format'] or 'as declared'}"
