"""Where the time of a step goes: marks as it passes from part to part, added up when the step is over.

Each mark holds the program's clock and, on a GPU, an event put into its queue. The GPU runs behind the
program, so the two differ: a wait for data that is hidden behind queued work costs the GPU nothing. Events
are read when the GPU has passed them, a step or two later; nothing ever waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

PAUSE = "pause "  # before the kind of a pause: "pause evaluation"


class Event(Protocol):
    """A point in the queue of a device, like torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds from this one to a later one."""


class Mark(NamedTuple):
    phase: str  # of the part that begins here
    host_s: float
    event: Event | None


@dataclass(frozen=True, slots=True)
class Lap:
    """One step between two marks, with its parts by either clock."""

    marks: list[Mark]  # the last one ends it

    @property
    def passed(self) -> bool:
        """Whether the device has reached its end, so that its times can be read."""
        last = self.marks[-1].event
        return last is None or last.query()

    def host_s(self) -> dict[str, float]:
        return self._sums(lambda begin, end: end.host_s - begin.host_s)

    def device_s(self) -> dict[str, float] | None:
        if any(mark.event is None for mark in self.marks):
            return None
        return self._sums(lambda begin, end: _elapsed_s(begin.event, end.event))

    def _sums(self, span: Callable[[Mark, Mark], float]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for begin, end in zip(self.marks, self.marks[1:], strict=False):
            sums[begin.phase] = sums.get(begin.phase, 0.0) + span(begin, end)
        return sums


class Timeline:
    """The marks of the current step."""

    def __init__(
        self, event: Callable[[], Event] | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._event, self.clock = event, clock
        self._marks: list[Mark] = []
        self.phase = "other"
        # Called with the part that ends, before the next begins.
        self.leaving: Callable[[str], None] | None = None
        self.switch("other")

    def switch(self, phase: str) -> str:
        """Begin this part; returns the previous one."""
        before, self.phase = self.phase, phase
        if self.leaving is not None:
            self.leaving(before)
        self._marks.append(Mark(phase, self.clock(), self._event() if self._event else None))
        return before

    @property
    def at(self) -> int:
        """The index of the newest mark, for `rename`."""
        return len(self._marks) - 1

    def rename(self, since: int, phase: str) -> None:
        """Everything since that mark was this part: the start of an evaluation shows only a little later."""
        # One mark is enough: an evaluation of many batches would otherwise rename them all at each.
        self._marks[since:] = [mark._replace(phase=phase) for mark in self._marks[since : since + 1]]

    def since_data(self) -> int:
        """The index where the newest wait for data began, if only the rest came after it; else `at`."""
        return self.at - 1 if self._marks[-2:][0].phase == "data" else self.at

    def cut(self) -> Lap:
        """The step is over; the next one begins at the same mark."""
        self.switch("other")
        lap = Lap(self._marks)
        self._marks = [self._marks[-1]]
        return lap


def _elapsed_s(begin: Event | None, end: Event | None) -> float:
    assert begin is not None
    return max(0.0, begin.elapsed_time(end) / 1000)
