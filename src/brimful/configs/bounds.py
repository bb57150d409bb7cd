"""What a setting may be, and the one error for a value that it may not be."""

from __future__ import annotations

from typing import TypeGuard

from brimful.errors import BadInput
from brimful.language import Number, Sentence, say

FRACTION = say("configs.fraction")


def whole_number(low: int, high: int) -> Sentence:
    return say("configs.whole_number", low=low, high=Number(high))


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_fraction(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1


def shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "..."


def out_of_range(key: str, value: object, allowed: object, where: object = "") -> BadInput:
    """`where` is the file, and its line if that is known; nothing for `--set`."""
    values = {"key": key, "shown": shown(value), "allowed": allowed}
    if where:
        return BadInput(say("configs.out_of_range_in", where=where, **values))
    return BadInput(say("configs.out_of_range", **values))
