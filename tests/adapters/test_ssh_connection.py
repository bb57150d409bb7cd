"""A machine at the other end of an ssh connection: its jobs may have replaced our agent by anything."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.adapters.engines.ssh.connection import Connection
from brimful.errors import WorldFailed
from tests.builders import refuses

WELCOME = ('{"send": false}', '{"ok": null}')
HELLO = {"folder": "~", "node": {}, "settings": {}}


def a_connection(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: str) -> Connection:
    """To a machine that answers this, whatever it is asked."""
    lines = "".join(f"read asked; cat {folder}/{i}\n" for i, _ in enumerate([*WELCOME, *answers]))
    for i, answer in enumerate([*WELCOME, *answers]):
        (folder / str(i)).write_text(answer + "\n")
    (folder / "ssh").write_text(f"#!/bin/sh\n{lines}")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Connection("machine", "python3", (), HELLO)


def test_an_answer_nested_without_end_is_that_machines_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error would be taken for one of the whole site, with all its other machines."""
    connection = a_connection(tmp_path, monkeypatch, "[" * 100_000)
    with refuses(WorldFailed, "adapters.ssh_failed"):
        connection.ask("greet")


@pytest.fixture
def crowded() -> Iterator[None]:
    """As many files open as a server with a thousand connections has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for each in held:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("crowded")
def test_a_server_with_a_thousand_connections_reaches_its_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = a_connection(tmp_path, monkeypatch, '{"ok": "here"}')
    assert connection.ask("greet") == "here"
    connection.close()
