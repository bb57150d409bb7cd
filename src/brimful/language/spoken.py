"""Languages: how each writes sentences, numbers and units. Needs only the standard library."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from brimful.language.catalog import Template, language_of_locale, template
from brimful.language.printable import one_line, printable
from brimful.language.sentence import Sentence, Several, Value, plain_value, say
from brimful.units import GIB, KIB, MIB, MICROUSD, show_seconds, show_usd

_SPACE = "\u00a0"  # keeps a number and its unit on one line; English output has always had a plain space
_NARROW = "\u202f"  # French: before ; ? and !


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """How one language writes sentences, numbers and units."""

    code: str
    decimal: str
    group: str
    least_grouped: int  # the smallest whole number written with separators
    space: str
    byte_units: tuple[str, str, str, str]
    template: Callable[[str], Template]

    def text(self, said: object) -> str:
        """What people read."""
        if isinstance(said, Value):
            return said.text(self)
        if isinstance(said, str):
            return said
        if isinstance(said, int) and not isinstance(said, bool):
            return self.number(said, 0)
        return printable(str(said))  # a file path or a library's error: one line

    def sentence(self, code: str, values: Mapping[str, Any]) -> str:
        shown = {name: _Shown(self, value) for name, value in values.items()}
        try:
            text = self.template(code)
            if not isinstance(text, str):
                n = plain_value(values["n"])
                one = n == 1 or (self.code == "fr" and n == 0)
                text = text["one" if one else "other"]
            return text.format_map(shown)
        except KeyError:  # from a log or server of another version: its code and values, without the words
            return " ".join([code, *(f"{name}={value}" for name, value in shown.items())])

    def joint(self, between: str) -> str:
        """What goes between two parts: French also puts a space before a colon or semicolon."""
        if self.code != "fr":
            return between
        return between.replace(";", f"{_NARROW};").replace(":", f"{_SPACE}:")

    def plain(self, value: float) -> str:
        """A data sheet figure, with as many decimals as it has: 58.3, 312."""
        return f"{value:g}".replace(".", self.decimal)

    def number(self, value: float, digits: int) -> str:
        shown = f"{value:,.{digits}f}"
        if float(shown.replace(",", "")) == 0:
            shown = shown.lstrip("-")
        group = self.group if abs(value) >= self.least_grouped else ""
        return shown.translate({ord(","): group, ord("."): self.decimal})

    def seconds(self, value: float) -> str:
        """'512 ms', '42,3 s', '3 h 05 min': the units are the same in all four languages, except the day."""
        shown = show_seconds(value).replace(".", self.decimal).replace(" ", self.space)
        day = f"{self.space}d{self.space}"
        return shown.replace(day, f"{self.space}j{self.space}") if self.code == "fr" else shown

    def usd(self, microusd: int, *, exact: bool = False) -> str:
        """'$12.34' in English; elsewhere the sign comes after."""
        shown = show_usd(microusd, exact=exact)
        if self.code == "en":
            return shown
        group = self.group if abs(microusd) >= self.least_grouped * MICROUSD else ""
        digits = shown.replace("$", "").translate({ord(","): group, ord("."): self.decimal})
        return f"{digits}{self.space}$"

    def size(self, n: float) -> str:
        for unit, size, digits in zip(self.byte_units, (GIB, MIB, KIB), (2, 0, 0), strict=False):
            if abs(n) >= size:
                return f"{self.number(n / size, digits)}{self.space}{unit}"
        return f"{self.number(n, 0)}{self.space}{self.byte_units[3]}"


class _Shown(str):
    """A value in words; with a noun behind it, as in `{gpus:gpu}`, it is a count: '1 GPU', '2 GPUs'."""

    __slots__ = ("_count",)
    _count: Callable[[str], str]

    def __new__(cls, tongue: Language, value: object) -> _Shown:
        text = tongue.text(value)  # a sentence keeps the line breaks of its catalog
        shown = super().__new__(cls, text if isinstance(value, Sentence | Several) else one_line(text))
        shown._count = lambda noun: tongue.sentence(f"units.{noun}", {"n": value})
        return shown

    def __format__(self, noun: str) -> str:
        return self._count(noun) if noun else str(self)


# Separators from the Unicode CLDR; a test compares with Babel.
_FORMS: dict[str, tuple[str, str, int]] = {
    "en": (".", ",", 1000),
    "fr": (",", "\u202f", 1000),
    "es": (",", ".", 10_000),
    "de": (",", ".", 1000),
}


@cache
def language(code: str) -> Language:
    """One of `LANGUAGES`."""
    decimal, group, least = _FORMS[code]
    return Language(
        code=code,
        decimal=decimal,
        group=group,
        least_grouped=least,
        space=" " if code == "en" else _SPACE,
        byte_units=("Gio", "Mio", "Kio", "o") if code == "fr" else ("GiB", "MiB", "KiB", "B"),
        template=lambda sentence: template(sentence, code),
    )


# Per command line or request: a server uses several at once.
_chosen: ContextVar[Language] = ContextVar("language")


def choose(code: str) -> Language:
    """Use this language from here on, in this command or request."""
    _chosen.set(language(code))
    return _chosen.get()


def tongue() -> Language:
    """The language of this command line or request; the locale's until one is chosen."""
    return _chosen.get(None) or language(language_of_locale(os.environ))


def told(said: object) -> str:
    """A sentence or a value in the current language."""
    return tongue().text(said)


def as_asked(said: object) -> str:
    """For `as_dict`: in the language of this command line or request, in English for a Python program."""
    return (_chosen.get(None) or language("en")).text(said)


def words(code: str, /, **values: object) -> str:
    return told(say(code, **values)) if values else _fixed(code, tongue())


@lru_cache(maxsize=10_000)
def _fixed(code: str, spoken: Language) -> str:
    """A text without values never changes; a page has hundreds of these."""
    return spoken.text(say(code))
