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

    def next_s(self) -> int | None:
        """The next moment at which anything is due."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: int) -> list[What]:
        """Everything due now, taken out."""
        heap = self._heap
        found: list[What] = []
        while heap and heap[0][0] == now_s:
            found.append(heappop(heap)[2])
        return found
