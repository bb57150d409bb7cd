"""`--lang`, and paragraphs as wide as the terminal."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

from brimful.language import LANGUAGES, Language, language, language_of_locale

if TYPE_CHECKING:
    import argparse

    from brimful.errors import BrimfulError

_WIDEST = 100
KEPT = "\u2007"  # a space that textwrap does not break at
_UNIT = re.compile(r"(?<=\d) (?=%|[GMK]i[Bo]\b|TFLOPS|W\b|s\b)")


def add_language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang", choices=LANGUAGES, help="language of the answer; else that of your locale, else English"
    )


def spoken(args: argparse.Namespace) -> Language:
    return language(args.lang or language_of_locale(os.environ))


def spoken_of(words: list[str]) -> Language:
    """The language of a command line that could not be understood: errors are told in it too."""
    asked = [after for word, after in pairwise(words) if word == "--lang"]
    asked += [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    return language(next((code for code in asked if code in LANGUAGES), language_of_locale(os.environ)))


def error_text(error: BrimfulError, tongue: Language) -> str:
    """The problem and the hint. JSON keeps them in English: programs match the code."""
    from brimful.diagnose.phrases import warned
    from brimful.language import say

    lines = [tongue.text(say("error: {problem}", problem=warned(error.problem)))]
    if error.hint:
        lines += ["", tongue.text(say("hint: {hint}", hint=warned(error.hint)))]
    return "\n".join(lines)


def terminal_width() -> int:
    return max(40, get_terminal_size((_WIDEST, 24)).columns)


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """One paragraph, `first` before its first line and `rest` before the others."""
    width = min(_WIDEST, terminal_width())
    filled = fill(
        kept(text),
        width,
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
