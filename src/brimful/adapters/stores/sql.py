"""The event log in SQLite (WAL) or PostgreSQL, by URL, and the tables folded from it.

The log is append-only. Its primary key is the event's position, so two writers who both want to be next
collide in the database and exactly one succeeds. A leader's writes also carry its token, checked in the same
transaction: a deposed leader that has not noticed writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from brimful.adapters.stores.chain import first_wrong, linked
from brimful.adapters.stores.engines_known import FOLDER
from brimful.adapters.stores.past import PastJob, past_job_from, past_job_row
from brimful.adapters.stores.prepare import CHAIN_BEGINS, keep_first, prepare
from brimful.adapters.stores.schema import events as _events
from brimful.adapters.stores.schema import leader as _leader
from brimful.adapters.stores.schema import meta as _meta
from brimful.adapters.stores.schema import past_jobs as _past_jobs
from brimful.adapters.stores.schema import snapshots as _snapshots
from brimful.errors import BadInput, BrimfulError, WorldFailed
from brimful.fleet.events import MALFORMED, Event, from_record, to_record
from brimful.language import Quoted, Sentence, say, verbatim

CHUNK = 10_000  # events per read: a long log is folded piece by piece
SNAPSHOTS_KEPT = 2
CONNECT_S = 5
BUSY_MS = 5000  # how long to wait for a lock
PAGE_BYTES = 4096
# 40 MB: a writer checkpoints the WAL itself only if no one else has. It grows beyond that during a long read,
# such as a backup, and the first write after that truncates it again.
MAX_WAL_PAGES = 10_000
# Acknowledged writes survive a power cut. Others are handed to the operating system at once, which outlives
# this process, and are flushed with the next flushed write or the next checkpoint.
FLUSHED, NOT_FLUSHED = "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"
IMMEDIATE = "BEGIN IMMEDIATE"
LEADER = "loop"  # the only thing to lead
_TEXT = [column for column in _events.c if column.name != "chain"]
_ADD = _events.insert()
_AFTER = (
    sa.select(*_TEXT)
    .where(_events.c.seq > sa.bindparam("after", type_=sa.Integer))
    .order_by(_events.c.seq)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_LAST = sa.select(_events.c.seq, _events.c.chain).order_by(_events.c.seq.desc()).limit(1)
# What SQLite says about a file whose pages make no sense.
CORRUPT = ("malformed", "not a database", "corrupt")


class LostLead(WorldFailed):
    """Another server leads now. This one's write was not made."""

    code = "lost_lead"


class SqlStore:
    """The scheduler's Store port on a database."""

    def __init__(self, url: str) -> None:
        self.where = _shown(url)
        try:
            # Detect a connection that the server has closed before it is used.
            is_far = not url.startswith("sqlite")
            # A PostgreSQL that does not answer is an error, not an endless wait.
            limits = {"connect_timeout": CONNECT_S} if url.startswith("postgresql") else {}
            self.engine = sa.create_engine(url, pool_pre_ping=is_far, connect_args=limits)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError) as error:
            raise BadInput(say("adapters.bad_database_url", where=Quoted(self.where))) from error
        except ModuleNotFoundError as error:
            raise BadInput(
                say("adapters.no_database_driver", where=Quoted(self.where), name=error.name)
            ) from error
        if self.engine.dialect.name == "sqlite":
            _make_private(self.engine.url)
            sa.event.listen(self.engine, "connect", _set_up_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        self._writer = self.engine.execution_options(brimful_begins=(FLUSHED, IMMEDIATE))
        self._soft_writer = self.engine.execution_options(brimful_begins=(NOT_FLUSHED, IMMEDIATE))
        self._next, self._now = threading.Lock(), threading.Lock()
        try:
            with self.writing() as connection:
                prepare(connection, where=self.where)
        except BrimfulError:
            self.close()
            raise
        self._file = _file_id(self.engine.url)

    # -- the log ---------------------------------------------------------------------------------------

    def since(self, seq: int) -> Sequence[Event]:
        return [self._event(row) for row in self._rows(seq, CHUNK)]

    def records(self, seq: int, limit: int) -> list[dict[str, Any]]:
        """Events as written: seq, at_s, kind, version, and the body as JSON."""
        return [{**row._mapping, "body": json.loads(row.body)} for row in self._rows(seq, limit)]

    def check_chain(self) -> tuple[int, Sentence | None]:
        """How many events have a checksum, and the first with a wrong one."""
        with self.reading() as connection:
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == CHAIN_BEGINS)).scalar()
            begins, end = int(found or 1), connection.execute(_LAST).scalar() or 0
            wanted = sa.select(_events).where(_events.c.seq >= begins).order_by(_events.c.seq)
            rows = connection.execution_options(yield_per=CHUNK).execute(wanted).mappings()
            wrong = first_wrong(rows, begins=begins)
        return max(0, end - begins + 1), None if wrong is None else say("adapters.chain_broken", seq=wrong)

    def check_file(self) -> Sentence | None:
        """What SQLite finds wrong with its file; PostgreSQL takes care of its own."""
        if self.engine.dialect.name != "sqlite":
            return None
        with self.reading() as connection:
            found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
        return None if found == "ok" else verbatim(found[:200])

    def end(self) -> int:
        """The number of events."""
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.max(_events.c.seq))).scalar() or 0

    def append(
        self,
        events: Sequence[Event],
        *,
        after: int,
        fence: int | None = None,
    ) -> bool:
        """`fence`: the writer's token, if it writes as the leader."""
        rows = [
            {"seq": after + i, "at_s": event.at_s, "kind": kind, "version": version, "body": json.dumps(body)}
            for i, event in enumerate(events, start=1)
            for kind, version, body in [to_record(event)]
        ]
        try:
            with self.writing() as connection:
                if fence is not None:
                    self._check_fence(connection, fence)
                last = connection.execute(_LAST).first()
                end = 0 if last is None else last.seq
                if end < after:
                    raise self._damaged(say("adapters.log_ends_early", end=end, after=after))
                if end > after:
                    return False
                connection.execute(_ADD, list(linked(last and last.chain, rows)))
        except WorldFailed as error:
            if isinstance(error.__cause__, sa.exc.IntegrityError):
                return False
            raise
        return True

    # -- what is folded from it ------------------------------------------------------------------------

    def snapshot(self, code: str) -> tuple[int, bytes] | None:
        """The newest snapshot that this code can read."""
        wanted = sa.select(_snapshots.c.seq, _snapshots.c.body).where(_snapshots.c.code == code)
        with self.reading() as connection:
            row = connection.execute(wanted.order_by(_snapshots.c.seq.desc()).limit(1)).first()
        return None if row is None else (row.seq, row.body)

    def snapshot_seq(self) -> int:
        """Jobs that left memory by this event are in the table of past jobs."""
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.max(_snapshots.c.seq))).scalar() or 0

    def keep_snapshot(
        self, seq: int, code: str, body: bytes, *, left: Sequence[PastJob], fence: int | None = None
    ) -> None:
        """Write the snapshot and the jobs it no longer holds in one transaction; deletes older snapshots."""
        serials, rows = [each.state.serial for each in left], [past_job_row(each) for each in left]
        with self.writing() as connection:
            if fence is not None:
                self._check_fence(connection, fence)
            for at in range(0, len(serials), 500):
                connection.execute(_past_jobs.delete().where(_past_jobs.c.serial.in_(serials[at : at + 500])))
            if rows:
                connection.execute(_past_jobs.insert(), rows)
            connection.execute(_snapshots.delete().where(_snapshots.c.seq == seq))
            connection.execute(_snapshots.insert(), [{"seq": seq, "code": code, "body": body}])
            older = sa.select(_snapshots.c.seq).order_by(_snapshots.c.seq.desc()).offset(SNAPSHOTS_KEPT)
            for (old,) in connection.execute(older).all():
                connection.execute(_snapshots.delete().where(_snapshots.c.seq == old))

    def past_job(self, name: str) -> PastJob | None:
        with self.reading() as connection:
            row = connection.execute(sa.select(_past_jobs).where(_past_jobs.c.job == name)).first()
        return None if row is None else self._past_job(row)

    def past_tenants(self, names: Collection[str]) -> dict[str, str]:
        """The tenants of those jobs that are in the table."""
        wanted = sa.select(_past_jobs.c.job, _past_jobs.c.tenant).where(_past_jobs.c.job.in_(names))
        with self.reading() as connection:
            return {row.job: row.tenant for row in connection.execute(wanted)}

    def past_jobs(
        self,
        *,
        before: int | None = None,
        after: int = -1,
        limit: int = 200,
        tenants: Collection[str] | None = None,
    ) -> list[PastJob]:
        """Newest first, those submitted between the jobs with these serials."""
        wanted = sa.select(_past_jobs).order_by(_past_jobs.c.serial.desc()).limit(limit)
        wanted = wanted.where(_past_jobs.c.serial > after)
        if before is not None:
            wanted = wanted.where(_past_jobs.c.serial < before)
        if tenants is not None:
            wanted = wanted.where(_past_jobs.c.tenant.in_(tenants))
        with self.reading() as connection:
            return [self._past_job(row) for row in connection.execute(wanted)]

    # -- the database ----------------------------------------------------------------------------------

    def claim(self, owner: str, *, folder: Path) -> None:
        """Bind the log to the engine folder with this id, or refuse: it may belong to only one folder.

        A second folder sees none of the first one's processes, and would start its jobs again and hand out
        its GPUs.
        """
        with self.writing() as connection:
            keep_first(connection, key=FOLDER, value=f"{owner} {folder}")
            found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == FOLDER)).scalar_one()
        first, _, first_folder = found.partition(" ")
        if first != owner:
            raise WorldFailed(
                say(
                    "adapters.foreign_log",
                    where=self.where,
                    first_folder=first_folder,
                    folder=folder,
                    first=first,
                ),
                code="foreign_log",
            )

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._failing_clearly(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, *, flushed: bool = True) -> Iterator[sa.Connection]:
        """An exclusive write transaction; all of it or nothing.

        `flushed`: it also survives a power cut. Later writers wait for the flush.
        """
        writer = self._writer if flushed else self._soft_writer
        with self._turn(), self._failing_clearly(), writer.begin() as connection:
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Threads queue here, because SQLite would make them retry after longer and longer sleeps.

        A thread that has just written goes to the back. One whose turn does not come in time asks SQLite
        anyway, which reports the timeout.
        """
        if self.engine.dialect.name != "sqlite":
            yield
            return
        is_next = self._next.acquire(timeout=BUSY_MS / 1000)
        its_turn = is_next and self._now.acquire(timeout=BUSY_MS / 1000)
        if is_next:
            self._next.release()
        try:
            yield
        finally:
            if its_turn:
                self._now.release()

    def ping(self) -> None:
        """WorldFailed if the database does not answer, or its file is no longer the one that was opened.

        SQLite keeps writing to a deleted file: all of that would be lost.
        """
        with self.reading() as connection:
            connection.execute(_LAST).first()
        if self._file is not None and _file_id(self.engine.url) != self._file:
            raise WorldFailed(say("adapters.database_gone", where=self.where), code="database_gone")

    def checkpoint(self) -> None:
        """Checkpoint SQLite's write-ahead log, so that no writer has to: that takes several flushes.

        Blocks nobody. What is still being read stays in the WAL until the next time.
        """
        if self.engine.dialect.name == "sqlite":
            outside = self.engine.execution_options(brimful_begins=())  # outside any transaction
            with self._failing_clearly(), outside.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self.engine.dispose()

    def _rows(self, seq: int, limit: int) -> Sequence[sa.Row[Any]]:
        with self.reading() as connection:
            rows = connection.execute(_AFTER, {"after": seq, "limit": limit}).all()
        for expected, row in enumerate(rows, start=seq + 1):
            if row.seq != expected:
                raise self._damaged(say("adapters.log_has_a_gap", expected=expected, found=row.seq))
        return rows

    def _check_fence(self, connection: sa.Connection, token: int) -> None:
        """The row stays locked until the write commits, so that nobody takes over in between."""
        wanted = sa.select(_leader.c.token).where(_leader.c.name == LEADER).with_for_update()
        found = connection.execute(wanted).scalar()
        if found != token:
            raise LostLead(say("adapters.another_leads", found=found, token=token))

    def _event(self, row: sa.Row[Any]) -> Event:
        try:
            return from_record(row.kind, row.version, json.loads(row.body))
        except MALFORMED as error:
            raise self._damaged(say("adapters.bad_event", seq=row.seq, kind=row.kind)) from error

    def _past_job(self, row: sa.Row[Any]) -> PastJob:
        try:
            return past_job_from(row)
        except MALFORMED as error:
            raise self._damaged(say("adapters.bad_past_job", job=row.job)) from error

    def _damaged(self, how: Sentence) -> WorldFailed:
        return WorldFailed(say("adapters.log_damaged", where=self.where, how=how), code="log_damaged")

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            kind = "database_corrupt" if any(word in cause for word in CORRUPT) else "database_failed"
            raise WorldFailed(say(f"adapters.{kind}", where=self.where, cause=cause), code=kind) from error


def _make_private(url: sa.URL) -> None:
    """The log contains commands and names of jobs, so only the owner may read its files."""
    name = url.database or ""
    if not name or ":memory:" in name or url.query.get("mode") == "memory":
        raise BadInput(say("adapters.database_in_memory"), code="database_in_memory")
    if name.startswith("file:"):
        return  # SQLite's own path syntax; the user of it takes care of the file
    path = Path(name)
    # Whatever is wrong with the path, opening the database reports it better.
    with contextlib.suppress(OSError):
        path.touch(mode=0o600)
        path.chmod(0o600)


def _file_id(url: sa.URL) -> tuple[int, int] | None:
    """Identifies the file by its inode; None if there is no local file to look at."""
    if not url.drivername.startswith("sqlite") or (url.database or "").startswith("file:"):
        return None
    try:
        found = os.stat(url.database or "")  # noqa: PTH116 - the text need not be a path
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def _set_up_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own type
    connection.isolation_level = None  # the driver would begin by itself, and too late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    _use_wal(cursor)
    cursor.execute(FLUSHED)
    cursor.execute(f"PRAGMA wal_autocheckpoint={MAX_WAL_PAGES}")
    cursor.execute(f"PRAGMA journal_size_limit={MAX_WAL_PAGES * PAGE_BYTES}")
    cursor.close()


def _use_wal(cursor: Any) -> None:  # noqa: ANN401 - the driver's own type
    """Readers do not wait for the writer. If several processes create the file at once, one changes its mode
    and SQLite returns "locked" to the others without waiting: they retry, as long as for any lock."""
    until_s = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    """A writer says so at once: two readers that both turn writer would wait for each other."""
    for words in connection.get_execution_options().get("brimful_begins", ("BEGIN",)):
        connection.exec_driver_sql(words)


def _shown(url: str) -> str:
    """The URL without its password, and without its query, which may contain one too."""
    try:
        return sa.engine.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return url.rpartition("@")[2].partition("?")[0]
