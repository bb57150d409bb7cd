"""Where the GPU time in the log went; also runs as a process (`log_reader.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from brimful.adapters.stores.sql import SqlStore
from brimful.audit.readers.own import OwnLog
from brimful.audit.records import Records
from brimful.audit.report import as_csv, report
from brimful.audit.sweep import Swept, sweep
from brimful.audit.tree import Tree
from brimful.fleet.events import Event
from brimful.server.service.log_reader import answer_lines


class Sweeper:
    """The log so far. What was read is kept, so that the next question reads only what came after."""

    def __init__(self, since: Callable[[int], Sequence[Event]]) -> None:
        self._since = since
        self._log, self._seq = OwnLog(Records()), 0
        self._last: tuple[tuple[int, int, int], tuple[Records, Swept]] | None = None

    def read(self) -> Iterator[int]:
        """Read what is new; yields the number of events so far after each piece."""
        while more := self._since(self._seq):
            self._log.add(more)
            self._seq += len(more)
            yield self._seq

    def answer(self, asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """A report or its CSV, for a window and these tenants (None: everything)."""
        start_s, end_s, now_s = asked["start_s"], asked["end_s"], asked["now_s"]
        # A past window never changes; one that reaches until now changes with every event.
        key = (start_s, end_s, self._seq if end_s >= now_s else 0)
        if self._last is None or self._last[0] != key:
            records = self._log.until(now_s)
            self._last = (key, (records, sweep(records, start_s=start_s, end_s=end_s)))
        records, found = _only(*self._last[1], tenants=asked["tenants"], user=asked["user"])
        return as_csv(found.tree) if asked["as_csv"] else report(records, found)


def _only(
    records: Records, found: Swept, *, tenants: Collection[str] | None, user: str | None
) -> tuple[Records, Swept]:
    """What these tenants or one of their users held."""
    if tenants is None and user is None:
        return records, found
    runs = [r for r in records.runs if (tenants is None or r.team in tenants) and user in (None, r.user)]
    if user is not None:
        mine = replace(records, runs=runs)
        swept = sweep(replace(mine, waits=[]), start_s=found.start_s, end_s=found.end_s)
        return mine, replace(swept, tree=_held(swept.tree, tenants), demand={}, left_out=Counter())
    tree = _held(found.tree, tenants)
    return replace(records, runs=runs), replace(found, tree=tree, demand={}, left_out=Counter())


def _held(tree: Tree, tenants: Collection[str] | None) -> Tree:
    cells = {
        c: n
        for c, n in tree.cells.items()
        if c.leaf.startswith("allocated.") and (tenants is None or c.team in tenants)
    }
    return Tree(cells, tree.lots, {cell: tree.money[cell] for cell in cells if cell in tree.money})


def begin(store: SqlStore) -> Callable[[dict[str, Any]], Iterator[dict[str, Any]]]:
    sweeper = Sweeper(store.since)

    def answers(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for read in sweeper.read():
            yield {"read": read}
        yield {"data": sweeper.answer(asked)}

    return answers


if __name__ == "__main__":
    answer_lines(begin)
