"""What an hour in a market pool has cost, second by second: a lease is billed at the price of its time.

One line for all leases of a pool. It keeps running sums, so that what a lease owes takes two searches,
however often the price changed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

from brimful.fleet.events import PoolPriced


@dataclass(slots=True)
class PriceLine:
    points: list[PoolPriced] = field(default_factory=list)
    _at_s: list[int] = field(default_factory=list)
    _sums: list[int] = field(default_factory=list)  # price x seconds, up to each point

    @property
    def last(self) -> PoolPriced:
        return self.points[-1]

    def add(self, point: PoolPriced) -> None:
        if self.points:
            before = self.points[-1]
            if point.at_s < before.at_s:  # the clock was set back; time in the log does not run backwards
                point = replace(point, at_s=before.at_s)
            self._sums.append(self._sums[-1] + before.microusd_per_gpu_hour * (point.at_s - before.at_s))
        else:
            self._sums.append(0)
        self.points.append(point)
        self._at_s.append(point.at_s)

    def between(self, start_s: int, end_s: int, *, granted_s: int, granted: int) -> int:
        """Price x seconds over a lease: `granted` at first, then the line from its first change on."""
        if end_s <= start_s:
            return 0
        first = bisect_left(self._at_s, granted_s)
        if first == len(self._at_s) or self._at_s[first] >= end_s:
            return granted * (end_s - start_s)
        change_s = max(start_s, self._at_s[first])
        return granted * (change_s - start_s) + self._until(end_s) - self._until(change_s)

    def forget_before(self, at_s: int) -> None:
        """Drop what no bill can need any more; the sums continue unchanged."""
        cut = max(0, bisect_right(self._at_s, at_s) - 1)
        del self.points[:cut], self._at_s[:cut], self._sums[:cut]

    def _until(self, at_s: int) -> int:
        i = bisect_right(self._at_s, at_s) - 1
        return self._sums[i] + self.points[i].microusd_per_gpu_hour * (at_s - self._at_s[i])
