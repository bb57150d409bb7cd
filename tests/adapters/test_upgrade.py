"""A database of the previous release opens in this one, and every number in it is what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from brimful.adapters.stores.prepare import prepare, schema_of
from brimful.adapters.stores.schema import SCHEMA_VERSION, metadata
from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore

# Written by the first brimful: nine rehearsed jobs, one that waits, one cancelled.
SCHEMA_1 = Path(__file__).with_name("data") / "schema_1.sql"


def an_old_database(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in SCHEMA_1.read_text(encoding="utf-8").split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()


def test_a_database_of_the_previous_schema_opens_and_keeps_every_number(url: str) -> None:
    an_old_database(url)
    store = SqlStore(url)
    fold = Fold()
    for event in store.since(0):
        fold.apply(event)
    assert fold.fleet.seq == 43
    phases = [state.phase for state in fold.fleet.jobs.values()]
    assert phases == ["finished"] * 4 + ["waiting"] * 2 + ["finished"] * 3 + ["cancelled", "waiting"]
    assert {name: sum_ for name, sum_ in fold.ledger.balances.items() if sum_} == {
        "tenant:a": -2333331,
        "tenant:b": -2111110,
        "site:sim": 4444444,
        "rounding": -3,  # whole micro-dollars of remainders, which that release only counted
    }
    with store.reading() as connection:
        assert schema_of(connection) == SCHEMA_VERSION
    store.close()
    SqlStore(url).close()  # and again, with nothing left to do


def test_an_upgrade_makes_the_tables_that_the_code_describes(url: str) -> None:
    """Column by column, for a new database and for an old one that was upgraded."""
    an_old_database(url)
    store = SqlStore(url)
    with store.reading() as connection:
        found = sa.inspect(connection)
        for table in metadata.sorted_tables:
            there = {c["name"]: (str(c["type"]), c["nullable"]) for c in found.get_columns(table.name)}
            dialect = connection.dialect
            wanted = {c.name: (c.type.compile(dialect), c.nullable) for c in table.columns}
            assert there == wanted, table.name
            assert set(found.get_pk_constraint(table.name)["constrained_columns"]) == set(
                table.primary_key.columns.keys()
            )
    store.close()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_old_database(url)
    engine = sa.create_engine(url)

    def halfway(connection: sa.Connection) -> None:
        prepare(connection, where="here", target=2)
        raise RuntimeError("the power went out")

    if engine.dialect.name == "sqlite":
        engine.dispose()
        monkeypatch.setattr(
            "brimful.adapters.stores.sql.prepare", lambda connection, where: halfway(connection)
        )
        with pytest.raises(RuntimeError):
            SqlStore(url)
    else:
        with pytest.raises(RuntimeError), engine.begin() as connection:
            halfway(connection)
    with engine.connect() as connection:
        assert schema_of(connection) == 1
        assert not sa.inspect(connection).has_table("leader")
    engine.dispose()
