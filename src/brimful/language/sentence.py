"""A sentence is a code and its values until somebody reads it; `spoken.py` turns it into words.

Values keep their kind: bytes, seconds, money and counts are formatted as each language does it, and a program
that reads `--json` gets the code and the plain numbers.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from brimful.language.catalog import is_held
from brimful.language.printable import one_line

if TYPE_CHECKING:
    from brimful.language.spoken import Language

# Operating system errors that our catalog has words for.
_OS = frozenset(
    (
        *("ENOENT", "EACCES", "EPERM", "EISDIR", "ENOTDIR", "ENOSPC", "EROFS", "EADDRINUSE", "EADDRNOTAVAIL"),
        *("ECONNREFUSED", "ETIMEDOUT", "EMFILE", "ELOOP", "ENAMETOOLONG", "EIO", "EEXIST", "ENODEV", "ENXIO"),
    )
)


class Value:
    """Something a sentence shows: words in a language for people, a plain value for programs."""

    __slots__ = ()

    def text(self, tongue: Language) -> str:
        raise NotImplementedError

    def plain(self) -> Any:  # noqa: ANN401 - JSON
        """The number or word itself: the first field, unless a kind overrides it."""
        return getattr(self, self.__match_args__[0])  # type: ignore[attr-defined]

    def __str__(self) -> str:
        """In English: for logs, and wherever no language was chosen."""
        from brimful.language.spoken import language

        return self.text(language("en"))


@dataclass(frozen=True, slots=True)
class Size(Value):
    """Bytes, shown in GiB, MiB or KiB."""

    bytes: float

    def text(self, tongue: Language) -> str:
        return tongue.size(self.bytes)


@dataclass(frozen=True, slots=True)
class Percent(Value):
    frac: float
    digits: int = 0

    def text(self, tongue: Language) -> str:
        return f"{tongue.number(100 * self.frac, self.digits)}{tongue.space}%"


@dataclass(frozen=True, slots=True)
class Number(Value):
    value: float
    digits: int = 0

    def text(self, tongue: Language) -> str:
        return tongue.number(self.value, self.digits)


@dataclass(frozen=True, slots=True)
class Plain(Value):
    """A number that is a name: a line, a port, a process id. Never grouped: 8642, not 8,642."""

    value: object

    def text(self, tongue: Language) -> str:  # noqa: ARG002
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Quoted(Value):
    """Foreign words, shown in quotes with control characters escaped; programs get them unchanged."""

    value: object

    def text(self, tongue: Language) -> str:  # noqa: ARG002
        return repr(self.value)

    def plain(self) -> Any:  # noqa: ANN401 - JSON
        return plain_value(self.value)


@dataclass(frozen=True, slots=True)
class Seconds(Value):
    value: float

    def text(self, tongue: Language) -> str:
        return tongue.seconds(self.value)


@dataclass(frozen=True, slots=True)
class Usd(Value):
    microusd: int

    def text(self, tongue: Language) -> str:
        return tongue.usd(self.microusd)


@dataclass(frozen=True, slots=True)
class ExactUsd(Usd):
    """To the micro-dollar. For display only, never recorded, so that the log format does not change."""

    def text(self, tongue: Language) -> str:
        return tongue.usd(self.microusd, exact=True)


@dataclass(frozen=True, slots=True)
class Factor(Value):
    """'x1.23': how many times as much."""

    value: float

    def text(self, tongue: Language) -> str:
        return f"x{tongue.number(self.value, 2)}"


@dataclass(frozen=True, slots=True)
class Sentence(Value):
    """A catalog code (`room.name`) and its values; a value may itself be a sentence."""

    code: str
    values: Mapping[str, object]

    def text(self, tongue: Language) -> str:
        return tongue.sentence(self.code, self.values)

    def plain(self) -> dict[str, Any]:
        """The code and the plain numbers, for programs."""
        return {"code": self.code, **{name: plain_value(value) for name, value in self.values.items()}}

    as_dict = plain

    def hint(self) -> Sentence | None:
        """What to do about it, if the catalog has `room.name.hint`: with the same values."""
        code = f"{self.code}.hint"
        return Sentence(code, self.values) if is_held(code) else None


@dataclass(frozen=True, slots=True)
class Several(Value):
    """Sentences in a row: 'a, b, c'."""

    parts: tuple[object, ...]
    between: str = ", "

    def text(self, tongue: Language) -> str:
        parts = (one_line(part) if isinstance(part, str) else tongue.text(part) for part in self.parts)
        return tongue.joint(self.between).join(parts)

    def plain(self) -> list[Any]:
        return [plain_value(part) for part in self.parts]

    def as_dict(self) -> dict[str, Any]:
        return {"code": "several", "parts": self.plain()}

    def hint(self) -> None:
        """Each part has its own."""


def say(code: str, /, **values: object) -> Sentence:
    """A sentence to be read later. `code` must be a literal: a test compares the calls with the catalogs."""
    return Sentence(code, values) if values else _bare(code)


@cache
def _bare(code: str) -> Sentence:
    """One object each: formulas produce the same few thousands of times."""
    return Sentence(code, {})


def verbatim(text: str) -> Sentence:
    """Foreign words, shown unchanged: another program's, or a server's."""
    return Sentence("language.verbatim", {"text": text})


@dataclass(frozen=True, slots=True)
class Retold(Value):
    """A sentence that another brimful has already put into words: its words, and for programs its code."""

    words: str
    reason: dict[str, Any]

    def text(self, tongue: Language) -> str:  # noqa: ARG002
        return self.words

    def as_dict(self) -> dict[str, Any]:
        return self.reason

    plain = as_dict

    def hint(self) -> None:
        """It came with its own."""


def os_words(error: OSError) -> Sentence:
    """The operating system's message; its own words if we have none."""
    # A TLS error's number is OpenSSL's: its 1 does not mean "operation not permitted".
    name = "" if hasattr(error, "library") else errno.errorcode.get(error.errno or 0, "")
    if name in _OS:
        return Sentence(f"language.os_{name.lower()}", {})
    return verbatim(error.strerror or str(error))


def count(noun: str, n: int) -> Sentence:
    """'1 job', '2 jobs': `units.job` has a singular and a plural form."""
    return Sentence(f"units.{noun}", {"n": n})


def either(names: Sequence[str]) -> object:
    """'a, b or c'."""
    *first, last = names
    return say("language.or", some=", ".join(first), last=last) if first else last


def figures(value: float, shown: int = 3) -> Number:
    """This many significant digits, without trailing zeros: 58.3, 4, 1,234."""
    text = f"{value:.{shown}g}"
    return Number(value, 0 if "e" in text else len(text.partition(".")[2]))


def plain_value(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Value):
        return value.plain()
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no number for it
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
