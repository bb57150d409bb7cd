"""Sentences in four languages, with numbers in each language's own form.

A sentence is data: a template in English and its values. It becomes words only where people read, so that
what is found out never depends on the language it is told in. The templates are the keys of the catalogs in
`locale/`; `python -m tools.catalogs` gathers them. Only the standard library is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from brimful.units import GIB, KIB, MIB, show_seconds

LANGUAGES = ("en", "fr", "es", "de")
_SPACE = "\u00a0"  # keeps a number and its unit on one line; English output has always had a plain one
_NARROW = "\u202f"  # what French sets before ; ? and !


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, shown in GiB, MiB or KiB."""

    bytes: float


@dataclass(frozen=True, slots=True)
class Percent:
    frac: float
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Seconds:
    value: float


@dataclass(frozen=True, slots=True)
class Factor:
    """'x1.23': how many times as much."""

    value: float


@dataclass(frozen=True, slots=True)
class Sentence:
    """A template and its values; a value may be a sentence again."""

    text: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Several:
    """Sentences in a row: 'a, b, c'."""

    parts: tuple[object, ...]
    between: str = ", "


def say(text: str, /, **values: object) -> Sentence:
    """A sentence to be said later. `text` must be a literal: the catalogs are gathered from such calls."""
    return Sentence(text, values)


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """How one language writes sentences, numbers and units."""

    code: str
    decimal: str
    group: str
    least_grouped: int  # the smallest whole number that is written in groups
    space: str
    byte_units: tuple[str, str, str, str]
    catalog: Any  # a gettext catalog: of the standard library, whose types are not generic

    def text(self, said: object) -> str:
        """What people read."""
        match said:
            case Sentence(text, values):
                spoken = str(self.catalog.gettext(text))
                return spoken.format(**{name: self.text(value) for name, value in values.items()})
            case Several(parts, between):
                shown = self.joint(between).join(self.text(part) for part in parts)
            case Size(n):
                shown = self._size(n)
            case Percent(frac, digits):
                shown = f"{self.number(100 * frac, digits)}{self.space}%"
            case Seconds(value):
                shown = self._seconds(value)
            case Factor(value):
                shown = f"x{self.number(value, 2)}"
            case Number(value, digits):
                shown = self.number(value, digits)
            case int():
                shown = self.number(said, 0)
            case _:
                shown = str(said)
        return shown

    def joint(self, between: str) -> str:
        """What stands between two parts: French sets a space before a colon or semicolon too."""
        if self.code != "fr":
            return between
        return between.replace(";", f"{_NARROW};").replace(":", f"{_SPACE}:")

    def plain(self, value: float) -> str:
        """A figure of a data sheet, with as many decimals as it has: 58.3, 312."""
        return f"{value:g}".replace(".", self.decimal)

    def number(self, value: float, digits: int) -> str:
        shown = f"{value:,.{digits}f}"
        if float(shown.replace(",", "")) == 0:
            shown = shown.lstrip("-")
        group = self.group if abs(value) >= self.least_grouped else ""
        return shown.translate({ord(","): group, ord("."): self.decimal})

    def _seconds(self, value: float) -> str:
        """'512 ms', '42,3 s', '3 h 05 min': the signs are the same in all four languages, but for the day."""
        shown = show_seconds(value).replace(".", self.decimal).replace(" ", self.space)
        return (
            shown.replace(f"{self.space}d{self.space}", f"{self.space}j{self.space}")
            if self.code == "fr"
            else shown
        )

    def _size(self, n: float) -> str:
        for unit, size, digits in zip(self.byte_units, (GIB, MIB, KIB), (2, 0, 0), strict=False):
            if abs(n) >= size:
                return f"{self.number(n / size, digits)}{self.space}{unit}"
        return f"{self.number(n, 0)}{self.space}{self.byte_units[3]}"


# Separators as the Unicode CLDR gives them; a test compares with Babel.
_FORMS: dict[str, tuple[str, str, int]] = {
    "en": (".", ",", 1000),
    "fr": (",", "\u202f", 1000),
    "es": (",", ".", 10_000),
    "de": (",", ".", 1000),
}


@cache
def language(code: str) -> Language:
    """One of `LANGUAGES`. Its catalog is read when it is first asked for."""
    import gettext
    from pathlib import Path

    decimal, group, least = _FORMS[code]
    folder = Path(__file__).parent / "locale"
    return Language(
        code=code,
        decimal=decimal,
        group=group,
        least_grouped=least,
        space=" " if code == "en" else _SPACE,
        byte_units=("Gio", "Mio", "Kio", "o") if code == "fr" else ("GiB", "MiB", "KiB", "B"),
        catalog=gettext.NullTranslations()
        if code == "en"
        else gettext.translation("brimful", folder, languages=[code]),
    )


def language_of_locale(environment: Mapping[str, str]) -> str:
    """The language a shell asks for (POSIX: LC_ALL, then LC_MESSAGES, then LANG); English for any other."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environment.get(name):
            code = value[:2].lower()
            return code if code in LANGUAGES and not value[2:3].isalnum() else "en"
    return "en"
