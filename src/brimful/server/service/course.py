"""What a lease measured over time, in few points: when there are too many, every second one is dropped."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

POINTS = 60
GAP_S = 5.0  # between two points at first


class Course:
    """Points of `width` numbers, the first of which is the time; unknown numbers are NaN."""

    def __init__(self, width: int) -> None:
        self._width, self._gap_s = width, GAP_S
        self._numbers = array("d")

    def __len__(self) -> int:
        return len(self._numbers) // self._width

    def __iter__(self) -> Iterator[Sequence[float]]:
        for at in range(0, len(self._numbers), self._width):
            yield self._numbers[at : at + self._width]

    def as_record(self) -> list[Any]:
        return [self._gap_s, base64.b64encode(self._numbers.tobytes()).decode()]

    @staticmethod
    def from_record(record: Sequence[Any], width: int) -> Course:
        """The inverse of `as_record`; ValueError if it does not have this width."""
        course, (gap_s, text) = Course(width), record
        course._numbers.frombytes(base64.b64decode(text, validate=True))
        if len(course._numbers) % width or len(course) > POINTS or not gap_s >= GAP_S:
            raise ValueError(text[:40])
        course._gap_s = float(gap_s)
        return course

    def add(self, point: Sequence[float]) -> None:
        """If it is far enough from the previous one; points come in order of time."""
        assert len(point) == self._width
        if self._numbers and point[0] < self._numbers[-self._width] + self._gap_s:
            return
        self._numbers.extend(point)
        if len(self) > POINTS:
            kept = [each for i, each in enumerate(self) if i % 2 == 0]
            self._numbers = array("d", [number for each in kept for number in each])
            self._gap_s *= 2
