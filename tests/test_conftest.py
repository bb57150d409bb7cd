"""The guards that all other tests rely on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest


def test_a_test_cannot_reach_another_machine() -> None:
    with socket.socket() as sock, pytest.raises(AssertionError, match="loopback only"):
        sock.connect(("192.0.2.1", 80))
    with pytest.raises(AssertionError, match="looked up"):
        socket.create_connection(("example.org", 80))


def test_a_test_may_talk_to_itself_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()


@pytest.mark.postgres
def test_postgres_answers_and_each_test_gets_a_database_of_its_own(postgres_url: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        tables = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        ).scalar()
    engine.dispose()
    assert tables == 0


@pytest.mark.browser
def test_the_browser_is_there(chromium_path: Path) -> None:
    assert chromium_path.is_file()
