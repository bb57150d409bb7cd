"""The event log in SQLite (WAL) or PostgreSQL, by URL.

One table that is only ever added to. Its primary key is the event's place in the log, so two writers who
both mean to be next collide in the database, and exactly one of them is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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


# Both databases understand this; of two first starts at once, one row stays.
_keep_first = sa.text("INSERT INTO brimful (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING")

# Held while the tables are made: two sessions of PostgreSQL that make one table at once collide.
PREPARING = 0x6272696D66756C  # "brimful"


class SqlStore:
    """The scheduler's Store port on a database."""

    def __init__(self, url: str) -> None:
        self._where = _shown(url)
        try:
            # A connection that the database has closed meanwhile is noticed before it is used.
            self._engine = sa.create_engine(url, pool_pre_ping=True)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError) as error:
            raise BadInput(
                f"the database URL {self._where!r} is not understood",
                hint="sqlite:////path/to/file.db or postgresql+psycopg://user:password@host/name",
            ) from error
        except ModuleNotFoundError as error:
            raise BadInput(
                f"the driver for {self._where!r} is not installed ({error.name})",
                hint="pip install 'brimful[postgres]'",
            ) from error
        if self._engine.dialect.name == "sqlite":
            _make_private(self._engine.url)
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
        try:
            with self._failing_clearly():
                self._prepare()
        except BrimfulError:
            self.close()
            raise

    def claim(self, owner: str, *, folder: Path) -> None:
        """Take the log for the data folder with this id, or refuse: it may belong to one folder only.

        A second folder sees none of the first one's processes, and would start its jobs again and hand out
        its GPUs.
        """
        row = {"key": "folder", "value": f"{owner} {folder}"}
        with self._failing_clearly(), self._engine.begin() as connection:
            connection.execute(_keep_first, row)
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "folder")).scalar_one()
        first, _, first_folder = found.partition(" ")
        if first != owner:
            raise WorldFailed(
                f"the database {self._where} belongs to the data folder {first_folder}, not to {folder}",
                hint=f"use that folder (brimful up --data), or another database; to take over from a folder"
                f" that is gone for good, when none of its jobs runs, write {first} into {folder}/leases/.id",
                code="foreign_log",
            )

    def since(self, seq: int) -> Sequence[Event]:
        wanted = sa.select(_events).where(_events.c.seq > seq).order_by(_events.c.seq)
        with self._failing_clearly(), self._engine.connect() as connection:
            rows = connection.execute(wanted).all()
        for expected, row in enumerate(rows, start=seq + 1):
            if row.seq != expected:
                raise self._damaged(f"event {expected} is missing and event {row.seq} is there")
        return [self._event(row) for row in rows]

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        rows = [
            {"seq": after + i, "at_s": event.at_s, "kind": kind, "version": version, "body": json.dumps(body)}
            for i, event in enumerate(events, start=1)
            for kind, version, body in [to_record(event)]
        ]
        with self._failing_clearly():
            try:
                with self._engine.begin() as connection:
                    end = connection.execute(sa.select(sa.func.max(_events.c.seq))).scalar() or 0
                    if end < after:
                        raise self._damaged(f"it ends at event {end}; {after} had been read from it before")
                    if end > after:
                        return False
                    connection.execute(_events.insert(), rows)
            except sa.exc.IntegrityError:
                return False
        return True

    def close(self) -> None:
        self._engine.dispose()

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(PREPARING)))
            for table in _metadata.sorted_tables:
                connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            connection.execute(_keep_first, {"key": "schema", "value": str(SCHEMA_VERSION)})
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "schema")).scalar_one()
        if int(found) > SCHEMA_VERSION:
            raise WorldFailed(
                f"the database {self._where} has schema {found}; this brimful knows {SCHEMA_VERSION}",
                hint="it was written by a newer brimful: use that version",
                code="schema_too_new",
            )

    def _event(self, row: sa.Row[Any]) -> Event:
        try:
            return from_record(row.kind, row.version, json.loads(row.body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged(f"event {row.seq} ({row.kind}) cannot be read") from error

    def _damaged(self, how: str) -> WorldFailed:
        return WorldFailed(
            f"the event log in {self._where} is damaged: {how}",
            hint="stop brimful and restore the database from a backup: every number is a fold of this log",
            code="log_damaged",
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


def _make_private(url: sa.URL) -> None:
    """The log holds commands and names of jobs: its file and those beside it are the owner's."""
    name = url.database or ""
    if not name or ":memory:" in name or url.query.get("mode") == "memory":
        raise BadInput(
            "a database in memory would forget every job when the server stops",
            hint="name a file: sqlite:////path/to/file.db",
            code="database_in_memory",
        )
    if name.startswith("file:"):
        return  # SQLite's own way to write a path; whoever uses it has looked after the file
    path = Path(name)
    # Whatever is wrong with the path, opening the database says it better.
    with contextlib.suppress(OSError):
        path.touch(mode=0o600)
        path.chmod(0o600)


def _set_up_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own type
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
    cursor.execute("PRAGMA synchronous=FULL")  # what was acknowledged survives a power cut
    cursor.close()


def _shown(url: str) -> str:
    """The URL without its password, and without its query, which may hold one too."""
    try:
        return sa.engine.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return url.rpartition("@")[2].partition("?")[0]
