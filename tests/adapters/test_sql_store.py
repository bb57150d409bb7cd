"""The event log, on SQLite and on a real PostgreSQL: the same promises on both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.events import CancelRequested, Event, JobSubmitted
from tests.builders import a_job


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'log.db'}"
        return
    url = request.getfixturevalue("postgres_url")
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS events, brimful"))
    yield url
    admin.dispose()


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
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE brimful SET value = '99'"))
    engine.dispose()
    with pytest.raises(WorldFailed, match="schema 99"):
        SqlStore(url)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("nonsense", BadInput, "not understood"),
        ("oracle9://x", BadInput, "not understood"),
        ("sqlite:////no/such/folder/x.db", WorldFailed, "unable to open"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", WorldFailed, "does not answer"),
    ],
)
def test_a_database_that_cannot_be_used_says_so_and_keeps_the_password(
    url: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        SqlStore(url)
    assert "secret" not in str(caught.value)
