"""The guards that all other tests rely on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_a_test_cannot_reach_another_machine() -> None:
    with socket.socket() as sock, pytest.raises(AssertionError, match="loopback only"):
        sock.connect(("192.0.2.1", 80))
    with pytest.raises(AssertionError, match="looked up"):
        socket.create_connection(("example.org", 80))


def test_a_test_may_talk_to_itself_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()


def test_a_test_does_not_see_the_terminal_and_the_server_of_who_runs_it(tmp_path: Path) -> None:
    """In a pytest of its own, started as a person with a narrow window and a server would start it."""
    probe = "tests/test_conftest.py::test_a_test_may_talk_to_itself_over_loopback"
    said = "import os; print('SEEN', *(name for name in ('COLUMNS', 'BRIMFUL_URL') if name in os.environ))"
    (tmp_path / "seen.py").write_text(f"def pytest_runtest_call(item):\n    {said}\n")
    env = {**os.environ, "COLUMNS": "40", "BRIMFUL_URL": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    env.pop("PYTEST_ADDOPTS", None)  # what whoever runs this asks of pytest may need more than is there
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "seen", probe]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "SEEN\n" in done.stdout


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
