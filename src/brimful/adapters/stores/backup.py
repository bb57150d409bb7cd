"""A database in one file, and back: every table as lines of JSON, each with its hash.

The same file opens on SQLite and PostgreSQL, and in a later brimful: it is restored with the schema it was
made with and then upgraded like any older database. The leader and snapshots are left out: the first is
outdated, the second can be rebuilt.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from brimful import __version__
from brimful.adapters.stores.chain import first_wrong
from brimful.adapters.stores.past import past_job_from
from brimful.adapters.stores.prepare import CHAIN_BEGINS, prepare, schema_of
from brimful.adapters.stores.schema import SCHEMA_VERSION, events, meta, past_jobs
from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BadInput, Refused, WorldFailed
from brimful.files import replacing
from brimful.fleet.events import MALFORMED, from_record
from brimful.language import Number, Quoted, os_words, say

LEFT_OUT = frozenset({"alembic_version", "leader", "snapshots"})  # alembic_version: from older releases
MANIFEST = "manifest.json"
ROWS = 5_000
MAX_LINE_BYTES = 64 << 20
# RuntimeError: encrypted, or an unknown compression.
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
Allow = Callable[[sa.Connection, Fold], None]
UNWRITABLE = (sa.exc.CompileError, sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    schema: int
    brimful: str
    rows: dict[str, int]
    sha256: dict[str, str]


def back_up(store: SqlStore, target: Path) -> tuple[Backup, int]:
    """Write the whole database as of one moment, beside a running server; returns how many events it holds.

    Complete and verified, or not at all: it gets its name only after a restore into a scratch database.
    """
    half = target.with_name(f".{target.name}.half")
    try:
        with replacing(half, mode=0o600) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            made = _write(store, archive)
            archive.writestr(MANIFEST, json.dumps(asdict(made), indent=1))
        events = verify(half)
        half.replace(target)
    except OSError as error:
        raise WorldFailed(
            say("adapters.backup_failed", target=target, error=os_words(error)), code="backup_failed"
        ) from error
    finally:
        half.unlink(missing_ok=True)
    return made, events


def read_manifest(source: Path) -> Backup:
    try:
        with zipfile.ZipFile(source) as archive:
            body = json.loads(archive.read(MANIFEST))
        return Backup(
            schema=int(body["schema"]),
            brimful=str(body["brimful"]),
            rows={str(k): int(v) for k, v in body["rows"].items()},
            sha256={str(k): str(v) for k, v in body["sha256"].items()},
        )
    except FileNotFoundError as error:
        raise BadInput(say("adapters.no_backup", source=source), code="not_found") from error
    except (*UNREADABLE, *MALFORMED) as error:
        raise BadInput(say("adapters.not_a_backup", source=source, error=error)) from error


def restore(source: Path, store: SqlStore, *, allow: Allow | None = None) -> tuple[Fold, int]:
    """Fill an empty database in one transaction; returns what its log says, and when that ends.

    Its hashes are checked first. They can be right and the rows nonsense, so the result is read and folded
    before it is committed. `allow` raises if it must not be.
    """
    made = read_manifest(source)
    if made.schema > SCHEMA_VERSION:
        raise WorldFailed(
            say(
                "adapters.backup_too_new",
                source=source,
                schema=made.schema,
                schema_version=SCHEMA_VERSION,
                brimful=made.brimful,
            ),
            code="schema_too_new",
        )
    with store.reading() as connection:
        _check_empty(connection, where=store.where)
    _verify(source, made)
    with store.writing() as connection:
        _check_empty(connection, where=store.where)  # check again: a server may have been started meanwhile
        _empty(connection)
        prepare(connection, where=store.where, target=made.schema)
        found = schema_of(connection)
        assert found == made.schema, "an empty database takes any schema"
        tables = sa.MetaData()
        tables.reflect(connection)
        for name in made.rows:
            if name not in tables.tables:
                raise BadInput(
                    say("adapters.backup_unknown_table", source=source, name=Quoted(name), schema=made.schema)
                )
            connection.execute(tables.tables[name].delete())
            try:
                for rows_of in _rows(source, name):
                    connection.execute(tables.tables[name].insert(), rows_of)
            except (*UNREADABLE, *UNWRITABLE, *MALFORMED) as error:
                raise _bad_row(source, name, error) from error
        prepare(connection, where=store.where)
        fold, last_s = _folded(connection, source)
        if allow is not None:
            allow(connection, fold)
        return fold, last_s


def verify(source: Path) -> int:
    """Restore it into a scratch database, like a real restore, and return how many events it holds."""
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".verify-") as folder:
        store = SqlStore(f"sqlite:///{Path(folder) / 'scratch.db'}")
        try:
            fold, _ = restore(source, store)
        finally:
            store.close()
    if total := sum(fold.ledger.balances.values()):
        raise WorldFailed(
            say("adapters.backup_off_balance", source=source, total=total), code="backup_damaged"
        )
    return fold.fleet.seq


def _folded(connection: sa.Connection, source: Path) -> tuple[Fold, int]:
    fold, last_s, at = Fold(), 0, "events"
    piecewise = {"yield_per": ROWS}
    try:
        log = sa.select(events).order_by(events.c.seq)
        begins = connection.execute(sa.select(meta.c.value).where(meta.c.key == CHAIN_BEGINS)).scalar()
        rows = connection.execute(log, execution_options=piecewise).mappings()
        if (wrong := first_wrong(rows, begins=int(begins or 1))) is not None:
            at = f"events {wrong}"
            raise ValueError("the checksum is wrong")
        for expected, row in enumerate(connection.execute(log, execution_options=piecewise), 1):
            at = f"events {row.seq} ({row.kind})"
            if row.seq != expected:
                raise ValueError(f"{row.seq} != {expected}")
            event = from_record(row.kind, row.version, json.loads(row.body))
            fold.apply(event)
            last_s = max(last_s, event.at_s)
        for row in connection.execute(sa.select(past_jobs), execution_options=piecewise):
            at = f"past_jobs {row.serial}"
            past_job_from(row)
    except MALFORMED as error:
        raise _bad_row(source, at, error) from error
    return fold, last_s


def _bad_row(source: Path, name: str, error: Exception) -> BadInput:
    said = say("adapters.backup_strange", source=source, name=name, error=repr(error)[:160])
    return BadInput(said, code="backup_damaged")


def _check_empty(connection: sa.Connection, *, where: str) -> None:
    there = sa.inspect(connection).get_table_names()
    rows = sum(
        connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
        for name in there
        if name in ("events", "past_jobs")
    )
    if rows:
        raise Refused(say("adapters.database_not_empty", where=where, rows=Number(rows)), code="not_empty")


def _write(store: SqlStore, archive: zipfile.ZipFile) -> Backup:
    rows: dict[str, int] = {}
    hashes: dict[str, str] = {}
    with store.reading() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        schema = schema_of(connection)
        connection.execute(sa.select(events.c.seq).limit(1))  # without a log there is nothing to keep
        tables = sa.MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            if table.name in LEFT_OUT:
                continue
            digest, count = hashlib.sha256(), 0
            wanted = sa.select(table).order_by(*table.primary_key.columns)
            with archive.open(f"{table.name}.jsonl", "w", force_zip64=True) as file:
                for row in connection.execution_options(yield_per=ROWS).execute(wanted):
                    line = json.dumps({k: _to_json(v) for k, v in row._mapping.items()}).encode() + b"\n"
                    digest.update(line)
                    file.write(line)
                    count += 1
            rows[table.name], hashes[table.name] = count, digest.hexdigest()
    return Backup(schema=schema, brimful=__version__, rows=rows, sha256=hashes)


def _verify(source: Path, made: Backup) -> None:
    with zipfile.ZipFile(source) as archive:
        for name, wanted in made.sha256.items():
            digest = hashlib.sha256()
            try:
                with archive.open(f"{name}.jsonl") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                found = digest.hexdigest()
            except (KeyError, *UNREADABLE) as error:
                found = str(error)
            if found != wanted:
                raise BadInput(
                    say("adapters.backup_damaged", source=source, name=name), code="backup_damaged"
                )


def _rows(source: Path, name: str) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    with zipfile.ZipFile(source) as archive, archive.open(f"{name}.jsonl") as file:
        while line := file.readline(MAX_LINE_BYTES):
            batch.append({key: _from_json(value) for key, value in json.loads(line).items()})
            if len(batch) >= ROWS:
                yield batch
                batch = []
    if batch:
        yield batch


def _empty(connection: sa.Connection) -> None:
    """Drop the tables of an empty database, so that any schema can be created in it."""
    tables = sa.MetaData()
    tables.reflect(connection)
    tables.drop_all(connection)


def _to_json(value: object) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _from_json(value: object) -> object:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and "base64" in value else value
