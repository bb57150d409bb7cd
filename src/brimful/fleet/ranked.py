"""A set of jobs (waiting, or running), kept sorted in every order that was requested.

A key does not change while a job is in the set, so an order is sorted once and then only updated when a job
is added or removed. Within an order jobs are grouped, waiting ones by shape: if the first of a shape finds no
place, none after it does, so a decision looks at one job per shape, not at all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any, TypeVar

from brimful.fleet.lease import JobState

Key = Callable[[JobState], float | tuple[float, ...]]
Group = Callable[[JobState], Hashable]
Rank = Callable[[Any, Any], Any]
Entry = tuple[float | tuple[float, ...], int, JobState]
Rules = TypeVar("Rules")
As = TypeVar("As", bound=Hashable)


class Order:
    """Jobs by key, grouped."""

    def __init__(self, key: Key, group: Group) -> None:
        self._key, self._group = key, group
        self.groups: dict[Hashable, list[Entry]] = {}
        self._placed: dict[int, tuple[Hashable, Entry]] = {}  # serial -> its position
        self.as_of: Hashable = None  # when its keys were true, if they change

    def add(self, state: JobState) -> None:
        name, entry = self._group(state), (self._key(state), state.serial, state)
        self._placed[state.serial] = (name, entry)
        insort(self.groups.setdefault(name, []), entry)

    def remove(self, state: JobState) -> None:
        name, entry = self._placed.pop(state.serial)
        entries = self.groups[name]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self.groups[name]


class Heads:
    """Walks an order from its first job; a group can be skipped from here on.

    `rank` weighs (group, key) at this moment, if keys are comparable only within a group.
    """

    def __init__(self, groups: dict[Hashable, list[Entry]], rank: Rank | None = None) -> None:
        self._groups, self._rank = groups, rank
        # Serials differ, so states are never compared.
        self._heap: list[tuple[Any, int, JobState, int, Hashable]] = [
            (rank(name, entries[0][0]) if rank else entries[0][0], entries[0][1], entries[0][2], 0, name)
            for name, entries in groups.items()
        ]
        if len(self._heap) > 1:
            heapify(self._heap)

    def peek(self) -> JobState | None:
        return self._heap[0][2] if self._heap else None

    def next(self) -> None:
        """Advance to the next job."""
        _, _, _, at, name = self._heap[0]
        entries, at = self._groups[name], at + 1
        if at < len(entries):
            key, serial, state = entries[at]
            rank = self._rank
            heapreplace(self._heap, (rank(name, key) if rank else key, serial, state, at, name))
        else:
            heappop(self._heap)

    def skip_group(self) -> None:
        """This job's shape has no place, so skip all behind it."""
        heappop(self._heap)

    def __iter__(self) -> Iterator[JobState]:
        while (state := self.peek()) is not None:
            yield state
            self.next()


class Ranked:
    """Jobs by name in order of arrival, and every order built so far."""

    def __init__(self) -> None:
        self._states: dict[str, JobState] = {}
        self._orders: dict[Hashable, Order] = {}
        self._asked: tuple[object, Order] | None = None

    def __getstate__(self) -> tuple[dict[str, JobState]]:
        return (self._states,)  # orders hold functions, and are rebuilt on request

    def __setstate__(self, state: tuple[dict[str, JobState]]) -> None:
        (self._states,), self._orders, self._asked = state, {}, None

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __contains__(self, job: object) -> bool:
        return job in self._states

    def __getitem__(self, job: str) -> JobState:
        return self._states[job]

    def values(self) -> Iterator[JobState]:
        return iter(self._states.values())

    def add(self, state: JobState) -> None:
        self._states[state.job.job] = state
        for order in self._orders.values():
            order.add(state)

    def remove(self, state: JobState) -> None:
        del self._states[state.job.job]
        for order in self._orders.values():
            order.remove(state)

    def order(self, name: Hashable, key: Key, group: Group) -> Order:
        """The order of this name; sorted at the first call, kept sorted afterwards."""
        order = self._orders.get(name)
        if order is None:
            order = self._orders[name] = Order(key, group)
            for state in self._states.values():
                order.add(state)
        return order

    def order_as_of(self, as_of: Hashable, name: Hashable, key: Key, group: Group) -> Order:
        """The same with keys that change: sorted again when it is asked for as of another moment."""
        if name in self._orders and self._orders[name].as_of != as_of:
            del self._orders[name]
        order = self.order(name, key, group)
        order.as_of = as_of
        return order

    def forget_orders(self) -> None:
        """Orders are rebuilt on request."""
        self._orders, self._asked = {}, None

    def order_for(self, rules: Rules, make: Callable[[Ranked, Rules, As], Order], as_of: As) -> Order:
        """What `make` gives for these rules; cached while the rules are the same object."""
        asked = self._asked
        if asked is None or asked[0] is not rules or asked[1].as_of != as_of:
            asked = self._asked = (rules, make(self, rules, as_of))
        return asked[1]


def by_shape(state: JobState) -> Hashable:
    return state.shape
