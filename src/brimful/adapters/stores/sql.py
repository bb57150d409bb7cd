"""The event log in SQLite (WAL) or PostgreSQL, by URL.

One table that is only ever added to. Its primary key is the event's place in the log, so two writers who
both mean to be next collide in the database, and exactly one of them is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from brimful.errors import BadInput, BrimfulError, WorldFailed
from brimful.fleet.events import Event, from_record, to_record

SCHEMA_VERSION = 1

_metadata = sa.MetaData()
_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
_meta = sa.Table(
    "brimful",
    _metadata,
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


class SqlStore:
    """The scheduler's Store port on a database."""

    def __init__(self, url: str) -> None:
        try:
            self._engine = sa.create_engine(url)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
            raise BadInput(
                f"the database URL {_shown(url)!r} is not understood",
                hint="sqlite:////path/to/file.db or postgresql+psycopg://user:password@host/name",
            ) from error
        except ModuleNotFoundError as error:
            raise BadInput(
                f"the driver for {_shown(url)!r} is not installed ({error.name})",
                hint="pip install 'brimful[postgres]'",
            ) from error
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
        self._where = _shown(url)
        try:
            with self._failing_clearly():
                self._prepare()
        except BrimfulError:
            self.close()
            raise

    def since(self, seq: int) -> Sequence[Event]:
        wanted = sa.select(_events).where(_events.c.seq > seq).order_by(_events.c.seq)
        with self._failing_clearly(), self._engine.connect() as connection:
            rows = connection.execute(wanted).all()
        return [from_record(row.kind, row.version, json.loads(row.body)) for row in rows]

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        rows = [
            {"seq": after + i, "at_s": event.at_s, "kind": kind, "version": version, "body": json.dumps(body)}
            for i, event in enumerate(events, start=1)
            for kind, version, body in [to_record(event)]
        ]
        with self._failing_clearly():
            try:
                with self._engine.begin() as connection:
                    connection.execute(_events.insert(), rows)
            except sa.exc.IntegrityError:
                return False
        return True

    def close(self) -> None:
        self._engine.dispose()

    def _prepare(self) -> None:
        _metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "schema")).scalar()
            if found is None:
                connection.execute(_meta.insert(), {"key": "schema", "value": str(SCHEMA_VERSION)})
            elif int(found) > SCHEMA_VERSION:
                raise WorldFailed(
                    f"the database {self._where} has schema {found}; this brimful knows {SCHEMA_VERSION}",
                    hint="it was written by a newer brimful: use that version",
                    code="schema_too_new",
                )

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise WorldFailed(
                f"the database {self._where} does not answer: {cause}",
                hint="check that it is there, writable and not full",
                code="database_failed",
            ) from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own type
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
    cursor.execute("PRAGMA synchronous=FULL")  # what was acknowledged survives a power cut
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.close()


def _shown(url: str) -> str:
    """The URL without its password."""
    try:
        return sa.engine.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return url.rpartition("@")[2]
