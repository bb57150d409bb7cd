"""`/v1/ready` says not ready within two ticks, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.adapters.stores.sql import SqlStore
from brimful.errors import WorldFailed
from brimful.language import verbatim
from brimful.scheduler.rules import Rules
from brimful.server.service.health import LEAST_FREE_BYTES, Health
from brimful.server.service.service import Service
from brimful.server.service.watchdog import Probe
from tests.builders import ScriptedEngine, a_job, a_node, code_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tick_or_a_look_that_takes_two_ticks_is_told_and_not_before() -> None:
    clock = Clock()
    health = Health(tick_s=5, clock=clock)
    health.began_tick()
    clock.now = 10.0
    assert health.trouble() is None
    clock.now = 10.1
    assert code_of(health.trouble()) == "server.loop_stuck"
    health.ended_tick()
    assert (health.trouble(), health.ticks, health.last_tick_s) == (None, 1, 10.1)
    health.began_probe()
    clock.now = 20.3
    assert code_of(health.trouble()) == "server.store_gone"
    health.ended_probe(store_gone=None, free_bytes=None)
    assert health.trouble() is None


def test_what_anybody_may_read_names_no_path() -> None:
    health = Health(tick_s=1)
    health.error = verbatim("cannot write /secret/place")
    assert code_of(health.open_trouble()) == "server.loop_fails"
    health.ended_probe(store_gone=verbatim("/secret/place is gone"), free_bytes=None)
    assert "secret" not in str(health.open_trouble())


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    health = Health(tick_s=1)
    probe = Probe(health, object(), [tmp_path])
    probe.look()
    assert (health.trouble(), (health.free_bytes or 0) > 0) == (None, True)
    health.ended_probe(store_gone=None, free_bytes=LEAST_FREE_BYTES - 1)
    assert code_of(health.trouble()) == "server.disk_full"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_deleted_is_written_to_no_more(tmp_path: Path, *, replaced: bool) -> None:
    """SQLite would go on writing to the deleted file, and every job in it would be lost."""
    path = tmp_path / "brimful.db"
    store = SqlStore(f"sqlite:///{path}")
    service = Service(store, [ScriptedEngine(a_node())], Rules(), clock=lambda: 100)
    health = service.reader.health
    probe = Probe(health, store, [])
    service.submissions.submit(a_job(""))
    probe.look()
    assert health.trouble() is None
    path.rename(tmp_path / "moved.db")
    if replaced:
        SqlStore(f"sqlite:///{path}").close()
    probe.look()
    assert code_of(health.trouble()) == "server.store_gone"
    with pytest.raises(WorldFailed) as caught:
        service.submissions.submit(a_job(""))
    assert caught.value.code == "database_gone"
    store.close()
