"""How a range of sizes and a scaling curve are written: `2..16` and `4:1.9,8:3.5,16:6`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from brimful.errors import BadInput
from brimful.language import Quoted, say

MAX_GPUS = 1024  # per gang
RANGE = r"[1-9]\d{0,3}\.\.[1-9]\d{0,3}"
_POINT = re.compile(r"([1-9]\d{0,3}):(\d{1,6}(?:\.\d{1,6})?)")


def range_from(text: str) -> tuple[int, int]:
    """'2..16' -> (2, 16)."""
    if not re.fullmatch(RANGE, text):
        raise BadInput(say("fleet.not_a_range", given=Quoted(text[:40])))
    least, most = map(int, text.split(".."))
    if not least < most <= MAX_GPUS:
        raise BadInput(say("fleet.not_a_range", given=Quoted(text)))
    if most % least:
        raise BadInput(say("fleet.range_not_divisible", least=least, most=most))
    return least, most


def scaling_from(text: str) -> dict[int, float]:
    """'4:1.9,8:3.5' -> {4: 1.9, 8: 3.5}."""
    points = [_POINT.fullmatch(word.strip()) for word in text.split(",")]
    if not all(points):
        raise BadInput(say("fleet.not_scaling", given=Quoted(text[:60])))
    return {int(point[1]): float(point[2]) for point in points if point is not None}


def points_from(given: Mapping[int, float], *, least: int, most: int) -> tuple[tuple[int, float], ...]:
    """A curve as a job stores it: from its minimum size, which is 1.0, and never decreasing."""
    points = sorted(given.items())
    sizes, factors = [gpus for gpus, _ in points], [factor for _, factor in points]
    if factors != sorted(factors) or not all(least <= gpus <= most for gpus in sizes) or factors[0] < 1.0:
        raise BadInput(say("fleet.bad_scaling", least=least, most=most))
    return ((least, 1.0), *[point for point in points if point[0] > least])
