"""What a statement is about: ideas by their words in four languages, quantities by their units.

Text is matched without accents and capitals, since people leave out both. An idea (`ideas.toml`) has the
words of all four languages, whatever the language of the text; names and units are never translated.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from functools import cache
from importlib import resources

_BETWEEN = (
    r"[,;:!?.](?=\s)|\s[—–→#]+\s|->|\(|\)"
    r"|\s(?:but|mais|pero|sondern|sino|and|et|y|und|because|car|parce|porque|weil|while|tandis|mientras)\s"
    r"|\s(?:at the (?:cost|expense|price)|in exchange|au prix|en echange|a (?:cambio|costa)|auf kosten)\s"
    r"|\s(?:whereas|im gegenzug|so that|thus|hence|which|ce qui|asi que|lo que|therefore|although|though)\s"
    r"|\s(?:aunque|obwohl)\s"
)
# A number has an end and is not read from its middle: a line of 8,000 digits would cost the square of that.
FIGURES = r"(?<!\d)(\d{1,20}(?:[.,]\d{1,20})?)"
_NUMBER = r"(?<!\d)(\d{1,3}(?:[.,\u202f ]\d{3}){1,6}(?!\d)|\d{1,20}(?:[.,]\d{1,20})?)"
_LIST = r"(?<!\d)(?<!\d[.,])\d[\d.,]{0,40}"
_SIZE = re.compile(rf"{_NUMBER}[\s-]?([kmgt])(i?)(?:b|(?<!t)o)\b", re.IGNORECASE)  # "16 to 12" is not a size
_PERCENT = re.compile(
    rf"{FIGURES}\s?(?:(?:-|–|—|to|a|bis|und|y|et)\s?{FIGURES}\s?)?"
    r"(?:%|percent|pour cent|por ciento|prozent)"
)
_FRACTIONS = (
    (1 / 3, re.compile(r"\b(?:a|one|un|ein) (?:third|tiers|tercio|drittel)\b")),
    (2 / 3, re.compile(r"\b(?:two|deux|dos|zwei) (?:thirds|tiers|tercios|drittel)\b")),
    (1 / 4, re.compile(r"\b(?:a|one|un|ein) (?:quarter|quart|cuarto|viertel)\b")),
    (3 / 4, re.compile(r"\b(?:three|trois|tres|drei)[ -]?(?:quarters|quarts|cuartos|viertel)\b")),
)
_MANY = (
    (3.0, re.compile(r"three times|trois fois|tres veces|dreimal|tripl|dreifach")),
    (4.0, re.compile(r"four times|quatre fois|cuatro veces|viermal|quadrupl|cuadrupl|vierfach")),
)
_TIMES = re.compile(
    rf"\b{FIGURES}\s?(?:times|fois|veces|mal|x\b|×)(?!\s?\d)|(?:x|×|factor|facteur|faktor)\s?{FIGURES}"
)
_PARAMETERS = re.compile(
    rf"\b{FIGURES}[\s-]?"
    r"(m\b|mio\b|million\w*|millones|b\b|mrd\b|billion\w*|milliard\w*|mil millones|g\b)"
)  # fmt: skip
_BYTES = re.compile(rf"\b{FIGURES}[\s-]?(?:bytes?|octets?)\b")
_WAYS = ("less", "same", "more")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FIGURE = re.compile(  # a number with what it counts, a unit, a setting
    rf"{_LIST}\s?[^\W\d_]{{1,40}}|\b(?:[kmgt]i?[bo]|bytes?|octets?|bits?|tokens?)\b"
    r"|[\w.]{0,80}[_=][\w.=]{0,80}"
)
_PRODUCT = re.compile(rf"{_LIST}(?:\s?[a-z]{{0,12}}\s?[x×*]\s?\d[\d.,]{{0,40}}){{1,8}}")
QUANTITIES = (_SIZE, _PERCENT, _TIMES, _PARAMETERS, _BYTES, _FIGURE, _PRODUCT)
_COMPARED_CHARACTERS = 80  # before an idea, what may say that it is only compared with


def says(idea: str, text: str) -> bool:
    return _pattern(idea).search(text) is not None


def says_all(every: str, text: str, *, none: str = "") -> bool:
    """Every idea of a list ('a|b' is either) is there, and none of another."""
    return all(any(says(one, text) for one in each.split("|")) for each in every.split()) and not any(
        says(idea, text) for idea in none.split()
    )


@cache
def _pattern(idea: str) -> re.Pattern[str]:
    return re.compile("|".join(_ideas()[idea]))


@cache
def _ideas() -> dict[str, list[str]]:
    text = resources.files("brimful.diagnose.claims").joinpath("ideas.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def fits_whole(text: str) -> bool:
    """Most of a sentence is understood: its words belong to an idea or a figure, or carry no meaning alone.

    Ideas that happen to occur in a sentence about something else are not a claim. Half is not a tuned figure:
    below it, more of the sentence is unknown than known.
    """
    words = [match for match in _WORD.finditer(text) if not says("grammar", match[0])]
    known = [span for idea in _ideas() if idea != "grammar" for span in _spans(idea, text)]
    for pattern in (_FIGURE, *(pattern for _, pattern in (*_FRACTIONS, *_MANY))):
        known += [match.span() for match in pattern.finditer(text)]
    read = sum(any(start < word.end() and word.start() < end for start, end in known) for word in words)
    return 2 * read > len(words) or not words


def _spans(idea: str, text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _pattern(idea).finditer(text)]


def directions(text: str) -> set[str]:
    """Which of less, same and more are said; not words inside longer ones ("plus" of "plus faible")."""
    found = [(end - start, start, end, idea) for idea in _WAYS for start, end in _spans(idea, text)]
    taken: list[tuple[int, int, str]] = []
    for _, start, end, idea in sorted(found, reverse=True):
        if not any(start < other_end and other < end for other, other_end, _ in taken):
            taken.append((start, end, idea))
    return {idea for _, _, idea in taken}


def mentions(text: str, *ideas: str) -> list[tuple[int, str]]:
    """Where each of the ideas is named, in the order of the text; not the other side of a comparison."""
    found = [(match.start(), idea) for idea in ideas for match in _pattern(idea).finditer(text)]
    free = ("batch", "accumulation")  # "from batch 12 to 6" is the change itself
    return sorted((at, idea) for at, idea in found if idea in free or not _is_compared(text, at))


def _is_compared(text: str, at: int) -> bool:
    return _comparison_pattern().search(text[max(0, at - _COMPARED_CHARACTERS) : at]) is not None


@cache
def _comparison_pattern() -> re.Pattern[str]:
    """ "fp16 instead of": what comes next is only the object of a comparison."""
    return re.compile(rf"(?:{'|'.join(_ideas()['against'])})\s+(?:\w+\s+)?$")


def denies(clause: str, *, of: str | None = None) -> bool:
    """A word that negates the clause; one inside the words of an idea ("does not return") does not count."""
    for idea in ("not_a_not", "same", *([of] if of else [])):
        clause = _pattern(idea).sub(" ", clause)
    return says("not", clause)


def clauses(text: str) -> list[str]:
    """Parts in which one "not" negates one thing."""
    return [part for part in re.split(_BETWEEN, text) if part.strip()]


def number(text: str) -> float:
    """'1.54', '1,54' and '50 304' as people write them; three digits after a separator are thousands."""
    plain = re.sub(r"[.,\u202f\s](?=\d{3}(?:\D|$))(?<!^0.)", "", text.strip())
    return float(plain.replace(",", "."))


def sizes(text: str) -> list[tuple[float, bool]]:
    """Each size in bytes as its unit says (GB by 1000), and whether it was GiB."""
    found = []
    for value, unit, binary in _SIZE.findall(text):
        base = 1024 if binary else 1000
        found.append(
            (
                float(value.replace(",", ".").replace(" ", "")) * base ** ("kmgt".index(unit.lower()) + 1),
                bool(binary),
            )
        )
    return found


def percents(text: str) -> list[tuple[float, float]]:
    """Each share as lowest and highest: '10-15 %' is (0.10, 0.15), 'a third' is a third."""
    words = [(share, share) for share, pattern in _FRACTIONS if pattern.search(text)]
    return words + [
        (float(low.replace(",", ".")) / 100, float((high or low).replace(",", ".")) / 100)
        for low, high in _PERCENT.findall(text)
    ]


def times(text: str) -> float | None:
    for factor, pattern in _MANY:
        if pattern.search(text):
            return factor
    match = _TIMES.search(text)
    return float((match[1] or match[2]).replace(",", ".")) if match else None


def parameters(text: str) -> float | None:
    match = _PARAMETERS.search(text)
    if match is None:
        return None
    thousand_million = match[2].startswith(("b", "mrd", "milliard", "mil ", "g"))
    return float(match[1].replace(",", ".")) * (1e9 if thousand_million else 1e6)


def says_bytes(text: str) -> bool:
    """Bytes per number, stated literally."""
    return _BYTES.search(text) is not None


def bytes_each(text: str) -> float | None:
    """Bytes per number: as stated, or those of the named format."""
    if match := _BYTES.search(text):
        return float(match[1].replace(",", "."))
    for size, pattern in (
        (0.5, r"\b4[- ]?bit|int4|nf4"),
        (1, r"\b8[- ]?bit|int8|fp8"),
        (2, r"16\b"),
        (4, r"32\b"),
    ):
        if re.search(pattern, text):
            return size
    return None


def products(text: str) -> list[list[float]]:
    """The factors of each product that is written out: '12 x 1024 x 50304'; not a list, '1,2,3 x 4'."""
    found = []
    for match in _PRODUCT.findall(text):
        with suppress(ValueError):
            found.append([number(each.rstrip(".,")) for each in re.findall(r"\d[\d.,]*", match)])
    return found
