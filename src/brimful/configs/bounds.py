"""The allowed values of a setting, and the one error for a value that is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from brimful.errors import BadInput
from brimful.language import Number, Sentence, Several, say

# Key, value, and where it is: the file, and its line if known; empty for `--set`. Returns the value, or
# raises.
Check = Callable[[str, object, object], Any]


def checked(is_good: Callable[[object], bool], allowed: Sentence | Several) -> Check:
    """A check, from a test and the description of what passes it."""

    def check(key: str, value: object, where: object) -> object:
        if is_good(value):
            return value
        values = {"key": key, "shown": shown(value), "allowed": allowed}
        if where:
            wants_set = isinstance(value, str) and "${" in value
            hint = say("configs.hint_interpolation", key=key) if wants_set else None
            raise BadInput(say("configs.out_of_range_in", where=where, **values), hint=hint)
        raise BadInput(say("configs.out_of_range", **values))

    return check


def whole_number(low: int, high: int) -> Sentence:
    return say("configs.whole_number", low=low, high=Number(high))


def whole_between(low: int, high: int) -> Check:
    return checked(lambda value: is_whole(value, low, high), whole_number(low, high))


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


fraction = checked(
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1,
    say("configs.fraction"),
)


def shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "..."
