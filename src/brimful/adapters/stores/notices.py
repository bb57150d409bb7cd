"""Notification rules and the delivery queue, stored beside the log, which holds no addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from brimful.adapters.stores.prepare import keep_first
from brimful.adapters.stores.schema import meta as _meta
from brimful.adapters.stores.schema import notify_queue as _queue
from brimful.adapters.stores.schema import notify_rules as _rules
from brimful.adapters.stores.sql import SqlStore

PLACE = "notify_seq"  # events up to this one are processed
MONTH = "audit_month"  # months up to this second have been reported


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyRule:
    rule: str
    owner: str  # whose jobs; empty: all jobs of the tenant
    tenant: str  # "*": all
    target: str  # https://…, http://… or mailto:…
    kinds: str  # comma-separated
    secret: str  # signs webhook deliveries
    created_s: int

    def wants(self, *, kind: str, tenant: str, user: str) -> bool:
        return (
            kind in self.kinds.split(",")
            and self.tenant in (tenant, "*")
            and (not self.owner or self.owner == user)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    note: str  # its id, to recognise a second delivery
    rule: str
    body: str  # JSON
    tries: int
    next_s: int
    is_dead: bool = False


class NotifyStore:
    def __init__(self, store: SqlStore) -> None:
        self._store = store

    # -- rules -----------------------------------------------------------------------------------------

    def rules(self) -> list[NotifyRule]:
        with self._store.reading() as connection:
            found = connection.execute(sa.select(_rules).order_by(_rules.c.created_s, _rules.c.rule))
            return [NotifyRule(**row._mapping) for row in found]

    def add(self, rule: NotifyRule) -> None:
        with self._store.writing() as connection:
            connection.execute(_rules.insert(), asdict(rule))

    def remove(self, rule: str) -> None:
        """Also drops its queued notices."""
        with self._store.writing() as connection:
            connection.execute(_queue.delete().where(_queue.c.rule == rule))
            connection.execute(_rules.delete().where(_rules.c.rule == rule))

    # -- what is to be told ----------------------------------------------------------------------------

    def place(self, *, first: int) -> int:
        """How far the log has been processed; a new server starts at `first`."""
        with self._store.writing() as connection:
            keep_first(connection, key=PLACE, value=str(first))
            wanted = sa.select(_meta.c.value).where(_meta.c.key == PLACE)
            return int(connection.execute(wanted).scalar_one())

    def take_in(self, notes: Sequence[Queued], *, seq: int) -> None:
        """All of them and the new position, or neither: a crash neither drops nor duplicates a notice."""
        with self._store.writing() as connection:
            known = sa.select(_queue.c.note).where(_queue.c.note.in_([each.note for each in notes]))
            there = set(connection.execute(known).scalars())
            if fresh := [asdict(each) for each in notes if each.note not in there]:
                connection.execute(_queue.insert(), fresh)
            connection.execute(_meta.update().where(_meta.c.key == PLACE).values(value=str(seq)))

    def month_told(self, *, first: int) -> int:
        """The last month that was reported; a new server starts at `first`."""
        with self._store.writing() as connection:
            keep_first(connection, key=MONTH, value=str(first))
            wanted = sa.select(_meta.c.value).where(_meta.c.key == MONTH)
            return int(connection.execute(wanted).scalar_one())

    def take_in_month(self, notes: Sequence[Queued], *, month_s: int) -> None:
        """All of them and the month, or neither."""
        with self._store.writing() as connection:
            if notes:
                connection.execute(_queue.insert(), [asdict(each) for each in notes])
            connection.execute(_meta.update().where(_meta.c.key == MONTH).values(value=str(month_s)))

    def due(self, now_s: int, *, limit: int, each: int = 1 << 30) -> list[Queued]:
        """Oldest first; at most `each` per tenant, so that none blocks the others."""
        place = sa.func.row_number().over(partition_by=_rules.c.tenant, order_by=_queue.c.next_s)
        waiting = (
            sa.select(_queue, place.label("place"))
            .join(_rules, _rules.c.rule == _queue.c.rule)
            .where(_queue.c.next_s <= now_s, _queue.c.is_dead.is_(False))
            .subquery()
        )
        columns = [waiting.c[column.name] for column in _queue.c]
        wanted = sa.select(*columns).where(waiting.c.place <= each).order_by(waiting.c.place)
        with self._store.reading() as connection:
            return [Queued(**row._mapping) for row in connection.execute(wanted.limit(limit))]

    def taken(self, note: str) -> None:
        with self._store.writing() as connection:
            connection.execute(_queue.delete().where(_queue.c.note == note))

    def not_taken(self, note: str, *, tries: int, next_s: int, is_dead: bool) -> None:
        change = _queue.update().where(_queue.c.note == note)
        with self._store.writing() as connection:
            connection.execute(change.values(tries=tries, next_s=next_s, is_dead=is_dead))

    def counts(self) -> dict[str, dict[str, int]]:
        """By rule: how many are waiting, and how many were given up."""
        wanted = sa.select(_queue.c.rule, _queue.c.is_dead, sa.func.count()).group_by(
            _queue.c.rule, _queue.c.is_dead
        )
        found: dict[str, dict[str, int]] = {}
        with self._store.reading() as connection:
            rows: Sequence[Any] = connection.execute(wanted).all()
        for rule, is_dead, count in rows:
            found.setdefault(rule, {"waiting": 0, "dead": 0})["dead" if is_dead else "waiting"] = count
        return found

    def forget_dead(self, *, before_s: int) -> int:
        """Drop given-up notices whose last try was before then; returns how many."""
        old = sa.and_(_queue.c.is_dead.is_(True), _queue.c.next_s < before_s)
        with self._store.writing() as connection:
            return connection.execute(_queue.delete().where(old)).rowcount
