"""Words that come from users, made safe to show. Light: the command line uses it too."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

T = TypeVar("T")

MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text with a mark for every character that would not print.

    Names and commands come from users; line ends, control characters and changes of writing direction in
    them could make a line read as something else, or move the cursor of a terminal. Spaces that keep words
    together do none of this, and languages need them.
    """
    if text.isprintable():  # as nearly all are
        return text
    together = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"
    return "".join(c if c.isprintable() or c in together else MARK for c in text)


# What a log may do to a terminal: end a line, go back to its beginning, colour text, erase its rest.
# Not: move about the screen, set titles, write to the clipboard, or have the terminal type an answer.
HARMLESS = re.compile(r"([\n\r\t]|\x1b\[[0-9;:]*m|\x1b\[[012]?K)")


def harmless(text: str) -> str:
    """What a job printed, with a mark for every control character that could do more than show it."""
    if text.isprintable():
        return text
    return "".join(part if at % 2 else printable(part) for at, part in enumerate(HARMLESS.split(text)))


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
