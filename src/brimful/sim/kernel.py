"""The event heap: the smallest core a deterministic simulation can stand on."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

What = TypeVar("What")


class Kernel(Generic[What]):
    """Things due at a time. The serial number makes equal times come out in the order they went in."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, What]] = []
        self._serial = 0

    def at(self, at_s: int, what: What) -> None:
        heappush(self._heap, (at_s, self._serial, what))
        self._serial += 1

    def next(self) -> tuple[int, list[What]] | None:
        """The next moment at which anything is due, and everything due then."""
        if not self._heap:
            return None
        at_s = self._heap[0][0]
        due = []
        while self._heap and self._heap[0][0] == at_s:
            due.append(heappop(self._heap)[2])
        return at_s, due
