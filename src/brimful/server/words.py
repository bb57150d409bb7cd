"""Words that come from users, made safe to show. Light: the command line uses it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text with a mark for every character that would not print.

    Names and commands come from users; line ends, control characters and changes of writing direction in
    them could make a line read as something else, or move the cursor of a terminal.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else MARK for c in text)


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


def all_printable(data: Any) -> Any:  # noqa: ANN401 - JSON
    """The same for every text in an answer of the API."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [all_printable(each) for each in data]
    if isinstance(data, dict):
        return {key: all_printable(value) for key, value in data.items()}
    return data
