"""A program's clock that the test moves, so that no measured time depends on the machine."""

from __future__ import annotations


class Clock:
    """Stands still but for what `passes`, and for `look_s` at each look at it."""

    def __init__(self, look_s: float = 0.0) -> None:
        self.now_s, self._look_s = 1000.0, look_s

    def __call__(self) -> float:
        self.now_s += self._look_s
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
