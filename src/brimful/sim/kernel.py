"""The event heap: the smallest core of a deterministic simulation."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

What = TypeVar("What")


class Kernel(Generic[What]):
    """Things due at a time. The serial number returns equal times in insertion order."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, What]] = []
        self._serial = 0
        self._gone: set[What] = set()

    def at(self, at_s: int, what: What) -> None:
        heappush(self._heap, (at_s, self._serial, what))
        self._serial += 1

    def forget(self, what: What) -> None:
        """Cancel it: it is no longer a reason to look."""
        self._gone.add(what)

    def next_s(self) -> int | None:
        """The next moment at which anything is due."""
        heap, gone = self._heap, self._gone
        while gone and heap and heap[0][2] in gone:
            gone.discard(heappop(heap)[2])
        return heap[0][0] if heap else None

    def due(self, now_s: int) -> list[What]:
        """Remove and return everything due now."""
        heap, gone = self._heap, self._gone
        found: list[What] = []
        while heap and heap[0][0] == now_s:
            what = heappop(heap)[2]
            if gone and what in gone:
                gone.discard(what)
            else:
                found.append(what)
        return found
