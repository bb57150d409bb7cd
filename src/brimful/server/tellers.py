"""The log as the service hands it on: told of, and with the leader's token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event
from brimful.scheduler.ports import Store


class Told:
    """The log, as a Store that tells of all that is read from it and written to it."""

    def __init__(self, store: Store, tell: Callable[..., None]) -> None:
        self._store, self._tell = store, tell

    def since(self, seq: int) -> Sequence[Event]:
        events = self._store.since(seq)
        self._tell(events, after=seq, written=False)
        return events

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        if not self._store.append(events, after=after):
            return False
        self._tell(events, after=after, written=True)
        return True


class Fenced:
    """The log, as the leader writes it: with its token."""

    def __init__(self, store: Store, leadership: Leadership) -> None:
        assert isinstance(store, SqlStore), "who leads stands in the database"
        self._store, self._leadership = store, leadership

    def since(self, seq: int) -> Sequence[Event]:
        return self._store.since(seq)

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        return self._store.append(events, after=after, fence=self._leadership.token)
