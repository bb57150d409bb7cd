"""The exact optimum over units: which bids together are worth most, for every number of units at once.

A dynamic programme over (bids in rank order) x (units). Gangs are all or nothing; an elastic bid takes any
number between its bounds, or one of its choices. Of equally good sets, the one with the first bid of the
ranking is chosen, then the one with the second, and so on, and an elastic bid gets as much as it can: so the
answer does not depend on how the book was written.

Two implementations give the same answer: plain lists, and NumPy columns if it is installed and the book is
large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import ge, lt
from typing import Any, NamedTuple

# From this size on, importing NumPy costs less than using lists.
LARGE = 50_000
_CHECK_EVERY = 16
_SAFE = 2**62  # the largest safe sum in an int64 column


class Item(NamedTuple):
    """A bid as the optimum sees it: `low` to `high` units, each worth `weight`; or one of `choices`."""

    low: int
    high: int
    weight: int  # with choices: the most that a unit is worth
    choices: tuple[tuple[int, int], ...] = ()  # (units, worth), the preferred one last


class Optimum:
    """`worth[c]`: the most that at most `c` units can be worth; `chosen(c)`: who has how many of them.

    Both hold for every `c` from `since` on: asking for fewer numbers is faster.
    """

    def __init__(
        self, items: Sequence[Item], units: int, *, since: int = 0, columns: bool | None = None
    ) -> None:
        assert all(a.weight >= b.weight for a, b in pairwise(items)), "items come in rank order"
        self._kept = list(_undominated(items, units))
        self._items = [items[i] for i in self._kept]
        if columns is None:
            columns = len(self._items) * units > LARGE
        numpy = _numpy() if columns and _fits_a_column(self._items, units) else None
        if since:
            many = _enough(self._items, units, since, numpy)
            del self._kept[many:], self._items[many:]
        self.worth: list[int]
        self._steps: list[Any] = []
        worth = _zeros(units, numpy)
        for item in reversed(self._items):
            worth, step = _add(worth, item, numpy)
            self._steps.append(step)
        self._steps.reverse()
        self.worth = worth if numpy is None else worth.tolist()

    def chosen(self, units: int) -> dict[int, int]:
        """Item -> its units, in the best use of at most `units`."""
        taken: dict[int, int] = {}
        left = units
        for i, item, step in zip(self._kept, self._items, self._steps, strict=True):
            if not left:
                break
            if left < item.low:
                continue
            if item.low == item.high and not item.choices:
                many = item.high if step[left - item.low] else 0
            else:
                many = _how_many(item, step, left)
            if many:
                taken[i] = many
                left -= many
        return taken


def _how_many(item: Item, rest: Sequence[int], left: int) -> int:
    """The largest, or the preferred, number of units for this elastic bid that is part of an optimum."""
    best, many = int(rest[left]), 0
    choices = item.choices or ((n, n * item.weight) for n in range(item.low, min(item.high, left) + 1))
    for n, gain in choices:
        if n <= left and (worth := int(rest[left - n]) + gain) >= best:
            best, many = worth, n
    return many


def _undominated(items: Sequence[Item], units: int) -> Iterator[int]:
    """Drop bids that cannot be in any optimum, even if one other bid is taken away.

    A bid that ranks higher and could use the same units goes first. Once those together leave no room, even
    without the largest of them, a later bid of that kind never wins. Compares only bids with equal bounds,
    which is where thousands of bids pile up, and none with choices.
    """
    ahead: dict[tuple[int, int], int] = {}
    for i, item in enumerate(items):
        if item.low > units:
            continue
        if item.choices:
            yield i
            continue
        key = (item.low, item.high)
        count = ahead.get(key, 0)
        if (count - 1) * item.low + item.low > units:
            continue
        ahead[key] = count + 1
        yield i


def _enough(items: Sequence[Item], units: int, since: int, numpy: Any) -> int:  # noqa: ANN401 - a module
    """How many of the first items can be in an optimum of `since` units or more: no later one can.

    Later items are worth at most `weight` per unit. Once every number of units from `since` on is worth
    strictly more than any smaller number with the rest filled up at `weight`, they cannot even draw level.
    """
    smallest = min((item.low for item in items), default=1)
    worth = _zeros(units, numpy)
    for i, item in enumerate(items):
        if i % _CHECK_EVERY == 0 and _is_packed(worth, item.weight, since, smallest, numpy):
            return i
        worth, _ = _add(worth, item, numpy)
    return len(items)


def _is_packed(worth: Any, weight: int, since: int, smallest: int, numpy: Any) -> bool:  # noqa: ANN401
    first = max(since, smallest)
    if numpy is not None:
        over = worth - numpy.arange(len(worth), dtype=numpy.int64) * weight
        before = numpy.maximum.accumulate(over)
        return bool((before[first - smallest : len(worth) - smallest] < over[first:]).all())
    over = [w - c * weight for c, w in enumerate(worth)]
    before = list(accumulate(over, max))
    return all(map(lt, before[first - smallest :], over[first:]))


def _zeros(units: int, numpy: Any) -> Any:  # noqa: ANN401
    return [0] * (units + 1) if numpy is None else numpy.zeros(units + 1, dtype=numpy.int64)


def _add(worth: Any, item: Item, numpy: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """(worth with one more item, the data from which its share is found later)."""
    low, high, weight, choices = item
    if choices:
        return _best_choice(worth, choices, numpy), worth
    if low < high:
        slide = _slide if numpy is None else _slide_columns
        return slide(worth, low, high, weight), worth
    without = worth[low:]
    if numpy is not None:
        with_it = worth[: len(worth) - low] + low * weight
        return numpy.concatenate((worth[:low], numpy.maximum(with_it, without))), with_it >= without
    gain = low * weight
    with_it = [w + gain for w in worth[: len(worth) - low]]
    return worth[:low] + list(map(max, with_it, without)), bytes(map(ge, with_it, without))


def _best_choice(rest: Any, choices: Sequence[tuple[int, int]], numpy: Any) -> Any:  # noqa: ANN401
    """max(rest[c], max over choices of rest[c - n] + gain)."""
    worth = rest[:] if numpy is None else rest.copy()
    for n, gain in choices:
        before = rest[: max(0, len(rest) - n)]
        if numpy is None:
            worth[n:] = [max(w, b + gain) for w, b in zip(worth[n:], before, strict=True)]
        else:
            worth[n:] = numpy.maximum(worth[n:], before + gain)
    return worth


def _slide(rest: list[int], low: int, high: int, weight: int) -> list[int]:
    """max(rest[c], max over n of rest[c - n] + n * weight), with a sliding window."""
    worth = list(rest[:low])
    window: deque[tuple[int, int]] = deque()  # (units, rest - units * weight), best first
    for c in range(low, len(rest)):
        new = c - low
        value = rest[new] - new * weight
        while window and window[-1][1] < value:
            window.pop()
        window.append((new, value))
        if window[0][0] < c - high:
            window.popleft()
        worth.append(max(rest[c], window[0][1] + c * weight))
    return worth


def _slide_columns(rest: Any, low: int, high: int, weight: int) -> Any:  # noqa: ANN401
    """The same: the best of each window of `high - low + 1`, by doubling."""
    import numpy as np

    index = np.arange(len(rest), dtype=np.int64) * weight
    best, reach, width = rest - index, 1, high - low + 1
    while reach < width:
        shift = min(reach, width - reach)
        if shift < len(rest):
            best[shift:] = np.maximum(best[shift:], best[:-shift])
        reach += shift
    worth = rest.copy()
    worth[low:] = np.maximum(rest[low:], best[: len(rest) - low] + index[low:])
    return worth


def _fits_a_column(items: Sequence[Item], units: int) -> bool:
    return max((item.weight for item in items), default=0) * (units + 1) * 4 < _SAFE


def _numpy() -> Any:  # noqa: ANN401
    """NumPy, or None if it is not installed."""
    try:
        import numpy
    except ModuleNotFoundError:
        return None
    return numpy
