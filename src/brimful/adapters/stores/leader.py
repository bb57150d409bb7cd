"""Leader election: one server acts at a time, and a deposed one writes nothing.

The leader increments a counter while it lives. Other servers watch the counter on their own clocks and take
over, with the next token, once it has stood still for longer than the leader may act without incrementing it.
So no two clocks are compared, and none that can be set back is read. If the leader is known to be dead (its
process on this machine is gone), nobody waits.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from brimful.adapters.clock import awake_s
from brimful.adapters.engines.processes import born
from brimful.adapters.stores.schema import leader
from brimful.adapters.stores.sql import LEADER, LostLead, SqlStore
from brimful.fleet.events import Event
from brimful.language import say

LEASE_S = 5.0  # a leader that has not moved the counter for this long may not act
MARGIN_S = 0.5  # others wait a little longer


class Leadership:
    """This server's role. `seek` is called every second or two; everything else only reads."""

    def __init__(
        self, store: SqlStore, *, lease_s: float = LEASE_S, clock: Callable[[], float] = awake_s
    ) -> None:
        self.store = store
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._token: int | None = None
        self._until = 0.0
        self._seen: tuple[tuple[int, int], float] | None = None  # the leader's counter, and since when
        self._me = json.dumps({"machine": _machine(), "pid": os.getpid(), "born": born(os.getpid())})

    @property
    def leads(self) -> bool:
        return self._token is not None and self._clock() < self._until

    @property
    def token(self) -> int:
        """Our token, while we may act."""
        token = self._token
        if token is None or self._clock() >= self._until:
            raise LostLead(say("adapters.does_not_lead"))
        return token

    def seek(self) -> bool:
        """Renew our lead, or try to take over; returns whether we lead now."""
        with self._lock:
            asked = self._clock()
            # A power cut also ends the leader, so none of this must survive it.
            with self.store.writing(flushed=False) as connection:
                token = self._sought(connection)
            self._token, self._until = token, asked + self._lease_s
            return token is not None

    def give_back(self) -> None:
        """Let the next server start at once."""
        with self._lock:
            if self._token is None:
                return
            mine = (leader.c.name == LEADER) & (leader.c.token == self._token)
            self._token = None
            with self.store.writing() as connection:
                connection.execute(leader.update().where(mine).values(holder=""))

    def fenced_log(self) -> FencedStore:
        return FencedStore(self.store, self)

    def _sought(self, connection: sa.Connection) -> int | None:
        row = connection.execute(
            sa.select(leader).where(leader.c.name == LEADER).with_for_update()
        ).one_or_none()
        if row is None:
            statement = sa.text(
                "INSERT INTO leader (name, token, beat, holder) VALUES (:name, 1, 0, :me)"
                " ON CONFLICT (name) DO NOTHING"
            )
            return 1 if connection.execute(statement, {"name": LEADER, "me": self._me}).rowcount else None
        here = leader.update().where(leader.c.name == LEADER)
        if row.token == self._token:
            connection.execute(here.values(beat=row.beat + 1))
            return self._token
        if row.holder and not _is_dead(row.holder) and not self._stood_still(row.token, row.beat):
            return None
        connection.execute(here.values(token=row.token + 1, beat=0, holder=self._me))
        return int(row.token) + 1

    def _stood_still(self, token: int, beat: int) -> bool:
        now = self._clock()
        if self._seen is None or self._seen[0] != (token, beat):
            self._seen = ((token, beat), now)
        return now - self._seen[1] > self._lease_s + MARGIN_S


class FencedStore:
    """The log as the leader writes it: with its token."""

    def __init__(self, store: SqlStore, leadership: Leadership) -> None:
        self._store, self._leadership = store, leadership

    def since(self, seq: int) -> Sequence[Event]:
        return self._store.since(seq)

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        return self._store.append(events, after=after, fence=self._leadership.token)


def _machine() -> str:
    """This boot of this machine and the namespace of its pids; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - the link's target is not a path
    except OSError:
        return ""


def _is_dead(holder: str) -> bool:
    """Whether its process was on this machine and is gone; never true for another machine."""
    try:
        who = json.loads(holder)
        machine, pid, birth = who["machine"], int(who["pid"]), who["born"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(machine) and machine == _machine() and birth is not None and born(pid) != birth
