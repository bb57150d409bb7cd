"""What a command says in the language of `--lang`, in paragraphs as wide as the terminal."""

from __future__ import annotations

import re
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

from brimful.language import told, tongue, words

__all__ = ["told", "tongue", "words"]

if TYPE_CHECKING:
    from brimful.errors import BrimfulError

_WIDEST = 100
KEPT = "\u2007"  # a space that textwrap does not break at
_UNIT = re.compile(r"(?<=\d) (?=%|[GMK]i[Bo]\b|TFLOPS|W\b|s\b)")


def error_text(error: BrimfulError) -> str:
    """The problem and the hint."""
    lines = [words("cli.error", problem=error.said)]
    if error.way_out is not None:
        lines += ["", words("cli.way_out", hint=error.way_out)]
    return "\n".join(lines)


def terminal_width() -> int:
    return max(40, get_terminal_size((_WIDEST, 24)).columns)


def wrapped(text: str, *, first: str = "", rest: str = "", width: int = 0) -> str:
    """One paragraph, `first` before its first line and `rest` before the others."""
    filled = fill(
        kept(text),
        width or min(_WIDEST, terminal_width()),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return released(filled)


def kept(text: str) -> str:
    """The text with numbers tied to their units, for textwrap; `released` unties them."""
    return _UNIT.sub(KEPT, text)


def released(text: str) -> str:
    return text.replace(KEPT, " ")
