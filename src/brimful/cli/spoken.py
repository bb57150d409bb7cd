"""`--lang`, and paragraphs as wide as the terminal."""

from __future__ import annotations

import os
import re
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

from brimful.language import LANGUAGES, Language, language, language_of_locale

if TYPE_CHECKING:
    import argparse

_WIDEST = 100
KEPT = "\u2007"  # a space that textwrap does not break at
_UNIT = re.compile(r"(?<=\d) (?=%|[GMK]i[Bo]\b|TFLOPS|W\b|s\b)")


def add_language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang", choices=LANGUAGES, help="language of the answer; else that of your locale, else English"
    )


def spoken(args: argparse.Namespace) -> Language:
    return language(args.lang or language_of_locale(os.environ))


def terminal_width() -> int:
    return max(40, get_terminal_size((_WIDEST, 24)).columns)


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """One paragraph, `first` before its first line and `rest` before the others."""
    width = min(_WIDEST, terminal_width())
    together = _UNIT.sub(KEPT, text)
    filled = fill(
        together,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(KEPT, " ")
