"""Whether spot stays, stated every hour by how its spells went before, and scored once that is known. Pure.

Causal: a chance is stated from what was seen until then, and the usual rate beside it from the chances that
were decided by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brimful.market.forecast import BrierScore
from brimful.market.spells import Spells
from brimful.units import HOUR_S

STAYS_H = (1, 6, 24)


class Stated(NamedTuple):
    at_s: int
    chance: float
    usual: float


@dataclass(slots=True)
class Horizon:
    """Chances that spot stays for so many hours more."""

    hours: int
    score: BrierScore = field(default_factory=BrierScore)
    stayed: int = 0  # of the cases that were scored
    due: deque[Stated] = field(default_factory=deque)

    def state(self, chance: float, *, at_s: int) -> None:
        # The usual rate begins at one half, with the weight of two cases.
        self.due.append(Stated(at_s, chance, (self.stayed + 1) / (self.score.cases + 2)))

    def settle(self, until_s: int, *, ended: bool) -> None:
        """Spot was there until then."""
        while self.due and (ended or self.due[0].at_s + self.hours * HOUR_S <= until_s):
            told = self.due.popleft()
            stayed = told.at_s + self.hours * HOUR_S <= until_s
            self.score.add(told.chance, told.usual, stayed=stayed)
            self.stayed += stayed


@dataclass(slots=True)
class StayRecord:
    """One spot pool, fed with the changes of its record: it came (1st, 3rd, ...) and went (2nd, 4th, ...)."""

    spells: Spells = field(default_factory=Spells)
    horizons: list[Horizon] = field(default_factory=lambda: [Horizon(hours) for hours in STAYS_H])
    _is_up: bool = False
    _since_s: int | None = None  # when it came or went; None: never seen
    _at_that_s: int = 0  # how many changes had that time
    _seen_s: int = 0

    def tell(self, changes: Sequence[int], *, now_s: int) -> None:
        """Take in the changes that are new, and the time until now. Older ones may be forgotten in pairs."""
        first = 0
        if self._since_s is not None:
            first = bisect_left(changes, self._since_s) + self._at_that_s
        for i in range(first, len(changes)):
            at_s = changes[i]
            self._watch(at_s, ended=True)
            self._at_that_s = self._at_that_s + 1 if at_s == self._since_s else 1
            self._is_up, self._since_s, self._seen_s = i % 2 == 0, at_s, at_s
        self._watch(now_s, ended=False)

    def _watch(self, until_s: int, *, ended: bool) -> None:
        if self._since_s is None:
            return
        until_s = max(until_s, self._seen_s)  # another clock may be behind
        if self._is_up:
            for mark_s in range((self._seen_s // HOUR_S + 1) * HOUR_S, until_s + 1, HOUR_S):
                self._look(mark_s)
            for each in self.horizons:
                each.settle(until_s, ended=ended)
        self._learn(until_s, ended=ended)

    def _look(self, at_s: int) -> None:
        """State the chances of an hour, from what is known at its beginning."""
        assert self._since_s is not None
        self._learn(at_s, ended=False)
        for each in self.horizons:
            each.settle(at_s, ended=False)
            each.state(self.spells.stays(at_s - self._since_s, each.hours), at_s=at_s)

    def _learn(self, until_s: int, *, ended: bool) -> None:
        assert self._since_s is not None
        seen_s, end_s = self._seen_s - self._since_s, until_s - self._since_s
        self.spells.watch_from(seen_s, end_s, is_up=self._is_up, ended=ended)
        self._seen_s = until_s
