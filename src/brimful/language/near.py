"""Which known word somebody meant: what "did you mean" suggests, and when a word is surely a slip."""

from __future__ import annotations

from collections.abc import Iterable


def similar(word: str, known: Iterable[str], *, n: int = 1) -> list[str]:
    """Up to `n` known words spelled much like this one; those one keystroke away first."""
    from difflib import get_close_matches

    word, words = word[:80], list(known)
    return list(dict.fromkeys([*slips_of(word, words), *get_close_matches(word, words, cutoff=0.7)]))[:n]


def slips_of(word: str, known: Iterable[str]) -> list[str]:
    """The known words one keystroke away: a character more, one fewer, another one, or two swapped.

    Stricter than `similar`: for where a word we do not know is allowed, and only a slip is refused.
    """
    return [each for each in known if word != each and _one_keystroke(word, each)]


def _one_keystroke(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1:
        return False
    short, long = sorted((one, other), key=len)
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    swapped = short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
    return swapped or short[at + 1 :] == long[at + 1 :]
