"""The event log, on SQLite and on a real PostgreSQL: the same promises on both."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from brimful.adapters.stores import sql
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BadInput, BrimfulError, WorldFailed
from brimful.fleet.events import CancelRequested, Event, JobSubmitted
from tests.builders import a_job, check_reason, eventually, refuses
from tests.patience import PATIENCE_S


def submitted(*names: str) -> list[Event]:
    return [JobSubmitted(at_s=1, job=a_job(name)) for name in names]


def test_what_is_written_is_read_back_in_order_by_anybody(url: str) -> None:
    store = SqlStore(url)
    assert store.append(submitted("a", "b"), after=0)
    assert store.append([CancelRequested(at_s=2, job="a")], after=2)
    store.close()
    again = SqlStore(url)
    assert again.since(0) == [*submitted("a", "b"), CancelRequested(at_s=2, job="a")]
    assert again.since(2) == [CancelRequested(at_s=2, job="a")]
    again.close()


def test_who_writes_without_pause_lets_the_next_one_in(tmp_path: Path) -> None:
    """SQLite alone does not: the other one sleeps between its tries, and meets "locked" in the end."""
    store, order, began = SqlStore(f"sqlite:///{tmp_path / 'log.db'}"), list[str](), threading.Event()

    def second() -> None:
        began.set()
        with store.writing():
            order.append("the one that waited")

    thread = threading.Thread(target=second)
    with store.writing():
        order.append("the busy one")
        thread.start()
        assert began.wait(PATIENCE_S)
        eventually(store._next.locked)
    with store.writing():
        order.append("the busy one")
    thread.join()
    store.close()
    assert order == ["the busy one", "the one that waited", "the busy one"]


def test_the_log_is_flushed_and_what_nobody_waits_for_is_not(tmp_path: Path) -> None:
    """Power cuts cannot be made here; what SQLite promises about them goes by this setting."""
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")

    def setting(*, flushed: bool) -> object:
        with store.writing(flushed=flushed) as connection:
            return connection.exec_driver_sql("PRAGMA synchronous").scalar()

    assert [setting(flushed=flushed) for flushed in (True, False, True)] == [2, 1, 2]
    store.close()


def test_the_write_ahead_log_shrinks_again_after_a_long_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MAX_WAL_PAGES", 50)
    store, ahead = SqlStore(f"sqlite:///{tmp_path / 'log.db'}"), tmp_path / "log.db-wal"
    most = 50 * sql.PAGE_BYTES

    def write(times: int) -> None:
        for _ in range(times):
            assert store.append(submitted("x" * 20_000), after=store.end())

    with store.reading() as connection:
        connection.execute(
            sa.text("select count(*) from events")
        ).all()  # its state is kept for it from here on
        write(60)
        store.checkpoint()
        assert ahead.stat().st_size > 2 * most, "the reader holds it up"
    store.checkpoint()
    write(1)
    assert ahead.stat().st_size <= most
    write(60)
    assert ahead.stat().st_size < 2 * most, "with nobody in the way it stays bounded"
    store.close()


def test_who_writes_on_a_stale_state_writes_nothing(url: str) -> None:
    store = SqlStore(url)
    assert store.append(submitted("a"), after=0)
    assert not store.append(submitted("b", "c"), after=0)
    assert store.since(0) == submitted("a")
    store.close()


def test_of_many_writers_exactly_one_is_next(url: str) -> None:
    stores = [SqlStore(url) for _ in range(8)]
    won: list[str] = []

    def write(store: SqlStore, name: str) -> None:
        if store.append(submitted(name), after=0):
            won.append(name)

    threads = [threading.Thread(target=write, args=(s, f"job-{i}")) for i, s in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].since(0) == submitted(*won)
    assert len(won) == 1
    for store in stores:
        store.close()


def test_a_database_of_a_newer_brimful_is_refused(url: str) -> None:
    SqlStore(url).close()
    _run(url, "UPDATE brimful SET value = '99' WHERE key = 'schema'")
    with refuses(WorldFailed, "adapters.database_too_new", 99):
        SqlStore(url)


@pytest.mark.parametrize(
    ("url", "kind", "code"),
    [
        ("nonsense", BadInput, "bad_database_url"),
        ("oracle9://x", BadInput, "bad_database_url"),
        ("sqlite:////no/such/folder/x.db", WorldFailed, "database_failed"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", WorldFailed, "database_failed"),
        ("postgresql+psycopg://127.0.0.1:1/x?user=u&password=secret", WorldFailed, "database_failed"),
        ("postgresql+psycopg://u:secret@localhost:port/x", BadInput, "bad_database_url"),
        ("nonsense:u:secret@x?password=secret", BadInput, "bad_database_url"),
        ("sqlite://", BadInput, "database_in_memory"),
        ("sqlite:///:memory:", BadInput, "database_in_memory"),
        ("sqlite:///file::memory:?cache=shared&uri=true", BadInput, "database_in_memory"),
    ],
)
def test_a_database_that_cannot_be_used_says_so_and_keeps_the_password(
    url: str, kind: type[BrimfulError], code: str
) -> None:
    with refuses(kind, f"adapters.{code}") as caught:
        SqlStore(url)
    assert "secret" not in str(caught.value)


def test_a_log_belongs_to_one_data_folder(url: str) -> None:
    store = SqlStore(url)
    store.claim("id-of-a", folder=Path("/a"))
    store.claim("id-of-a", folder=Path("/a/moved"))  # the id is what counts
    with refuses(WorldFailed, "adapters.foreign_log", "/a", "/b") as caught:
        store.claim("id-of-b", folder=Path("/b"))
    assert caught.value.code == "foreign_log"
    assert "id-of-a" in caught.value.hint
    store.close()


def test_a_log_with_a_hole_is_refused(url: str) -> None:
    store = SqlStore(url)
    assert store.append(submitted("a", "b", "c"), after=0)
    _run(url, "DELETE FROM events WHERE seq = 2")
    with refuses(WorldFailed, "adapters.log_damaged") as caught:
        store.since(0)
    assert caught.value.code == "log_damaged"
    assert caught.value.said.as_dict()["how"] == {"code": "adapters.log_has_a_gap", "expected": 2, "found": 3}
    assert store.since(2) == submitted("c")
    store.close()


@pytest.mark.parametrize("body", ["not JSON", "[]", "{}"])
def test_an_event_that_cannot_be_read_is_a_damaged_log(url: str, body: str) -> None:
    store = SqlStore(url)
    assert store.append(submitted("a"), after=0)
    _run(url, f"UPDATE events SET body = '{body}'")
    with refuses(WorldFailed, "adapters.log_damaged") as caught:
        store.since(0)
    check_reason(caught.value.said.as_dict()["how"], "adapters.bad_event", 1, "JobSubmitted")
    store.close()


def test_nobody_writes_beyond_the_end_of_the_log(url: str) -> None:
    store = SqlStore(url)
    assert store.append(submitted("a"), after=0)
    with refuses(WorldFailed, "adapters.log_damaged") as caught:
        store.append(submitted("b"), after=5)
    assert caught.value.code == "log_damaged"
    assert caught.value.said.as_dict()["how"] == {"code": "adapters.log_ends_early", "end": 1, "after": 5}
    assert store.since(0) == submitted("a")
    store.close()


def test_many_first_starts_at_once_make_one_log(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "BUSY_MS", int(1000 * PATIENCE_S))
    told: list[str] = []

    def begin() -> None:
        try:
            SqlStore(url).close()
            told.append("ok")
        except WorldFailed as error:
            told.append(error.problem)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["ok"] * 8


def test_a_new_file_that_another_is_making_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses a change to WAL at once while another holds the file, whatever its time-out."""
    monkeypatch.setattr(sql, "BUSY_MS", int(1000 * PATIENCE_S))
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    let_go = threading.Timer(0.3, other.execute, ["COMMIT"])
    let_go.start()
    SqlStore(f"sqlite:///{tmp_path / 'log.db'}").close()
    let_go.join()
    other.close()


@pytest.mark.postgres
def test_a_connection_that_was_cut_is_made_again(postgres_url: str) -> None:
    store = SqlStore(postgres_url)
    assert store.append(submitted("a"), after=0)
    _run(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()",
    )
    assert store.since(0) == submitted("a")
    store.close()


def test_the_database_file_is_the_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "old.db").touch(mode=0o644)
    for name in ("new.db", "old.db"):
        store = SqlStore(f"sqlite:///{tmp_path / name}")
        assert store.append(submitted("a"), after=0)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{name}*")}
        assert modes == {name: 0o600, f"{name}-wal": 0o600, f"{name}-shm": 0o600}
        store.close()


def test_a_locked_database_says_so_and_loses_nothing(tmp_path: Path) -> None:

    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    assert store.append(submitted("a"), after=0)
    with store.reading() as connection:  # so that the test need not wait for five seconds
        connection.exec_driver_sql("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(WorldFailed, match="database is locked") as caught:
        store.append(submitted("b"), after=1)
    assert caught.value.code == "database_failed"
    assert store.since(0) == submitted("a"), "readers do not wait for a writer"
    other.execute("ROLLBACK")
    other.close()
    assert store.append(submitted("b"), after=1)
    store.close()


def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    assert store.append(submitted("a"), after=0)
    with store.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(WorldFailed, match="full") as caught:
        store.append(submitted(*(f"job-{i}" for i in range(2000))), after=1)
    assert caught.value.hint
    assert store.since(0) == submitted("a")
    with store.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert store.append(submitted("b"), after=1)
    store.close()


def test_a_long_log_is_read_piece_by_piece(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "CHUNK", 2)
    store = SqlStore(url)
    assert store.append(submitted("a", "b", "c"), after=0)
    assert store.since(0) == submitted("a", "b")
    assert store.since(2) == submitted("c")
    assert store.since(3) == []
    assert [row["kind"] for row in store.records(1, 9)] == ["JobSubmitted"] * 2
    assert store.records(1, 1)[0]["body"]["job"]["job"] == "b"
    store.close()


def _run(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
