"""User input made safe to show. Light: the command line uses it too."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

T = TypeVar("T")

MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text with a mark for every unprintable character.

    Names and commands come from users; newlines, control characters and changes of writing direction could
    make a line read as something else, or move a terminal's cursor. Non-breaking spaces do none of this, and
    languages need them.
    """
    if text.isprintable():  # as nearly all are
        return text
    together = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"
    return "".join(c if c.isprintable() or c in together else MARK for c in text)


# What starts another line, or moves on along it: for `str.splitlines`, a terminal or a log viewer.
_BREAK = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """With a mark for every line break and tab, so that a name cannot start a line that looks like ours."""
    return text if text.isprintable() else _BREAK.sub(MARK, text)


# What a log may do to a terminal: end a line, return to its start, colour text, erase the rest of it.
# Not: move around the screen, set titles, write to the clipboard, or make the terminal type an answer.
HARMLESS = re.compile(r"([\n\r\t]|\x1b\[[0-9;:]*m|\x1b\[[012]?K)")


def harmless(text: str) -> str:
    """A job's output, with a mark for every control character that could do more than show text."""
    if text.isprintable():
        return text
    return "".join(part if at % 2 else printable(part) for at, part in enumerate(HARMLESS.split(text)))


def for_spreadsheet(text: str) -> str:
    """As a cell of a table: a spreadsheet runs what starts like a formula, unless it is quoted."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def all_printable(data: T) -> T:
    """The same for every text in an API answer, keeping its shape."""
    shown: Any = data
    if isinstance(data, str):
        shown = printable(data)
    elif isinstance(data, list):
        shown = [all_printable(each) for each in data]
    elif isinstance(data, dict):
        shown = {key: all_printable(value) for key, value in data.items()}
    return cast("T", shown)
