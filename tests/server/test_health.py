"""`/v1/ready` says not ready within two ticks, and why."""

from __future__ import annotations

import math
import shutil
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from brimful.adapters.stores.sql import SqlStore
from brimful.errors import WorldFailed
from brimful.language import verbatim
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service.health import LEAST_FREE_BYTES, Health
from brimful.server.service.service import Service
from brimful.server.service.watchdog import Probe
from tests.builders import ScriptedEngine, a_job, a_node, code_of
from tests.patience import PATIENCE_S
from tests.server.builders import an_access


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tick_or_a_look_that_takes_two_ticks_is_told_and_not_before() -> None:
    clock = Clock()
    health = Health(tick_s=5, clock=clock)
    health.began_tick()
    clock.now = 9.9
    assert health.trouble() is None
    clock.now = 10.0
    assert code_of(health.trouble()) == "server.loop_stuck"
    health.ended_tick()
    assert (health.trouble(), health.ticks, health.last_tick_s) == (None, 1, 10.0)
    health.began_probe()
    clock.now = 17.4
    assert health.trouble() is None
    clock.now = 17.5
    assert code_of(health.trouble()) == "server.store_gone"
    health.ended_probe(store_gone=None, free_bytes=None)
    assert health.trouble() is None


TICK_S, STEP_S = 4.0, 0.125


class Trouble:
    """A server whose clock is turned by hand: its loop ticks, its probe looks when it is due, and at some
    moment something breaks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, from_s: float) -> None:
        self.what, self.from_s, self.clock = what, from_s, Clock()
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        service = Service(self.store, [ScriptedEngine(a_node())], Rules(), tick_s=TICK_S, folders=[folder])
        self.health = service.reader.health
        monkeypatch.setattr(self.health, "_clock", self.clock)
        self.http = TestClient(make_app(service, an_access(self.store)), base_url="http://127.0.0.1")
        beside = next(each for each in service.driver._beside if each._name == "probe")
        self.look, self.every_s, self.next_s = beside._act, beside._every_s, 0.0
        self.real, self.in_tick, self.released = self.store.ping, False, threading.Event()
        self.asked = threading.Event()
        self.looker: threading.Thread | None = None
        monkeypatch.setattr(self.store, "ping", self.ping)
        full = shutil.disk_usage(folder)._replace(free=LEAST_FREE_BYTES - 1)
        usage = shutil.disk_usage
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path: full if self.is_on("server.disk_full") else usage(path)
        )

    def is_on(self, what: str) -> bool:
        return self.what == what and self.clock.now >= self.from_s

    def ping(self) -> None:
        if self.is_on("server.store_gone"):
            raise WorldFailed(verbatim("it is gone"))
        if self.is_on("hangs"):
            self.asked.set()
            self.released.wait(PATIENCE_S)
        self.real()

    def step(self) -> None:
        """One step of the clock, and what is due then."""
        self.clock.now += STEP_S
        if self.clock.now % TICK_S == 0 and not self.in_tick:
            self.health.began_tick()
            self.in_tick = self.is_on("server.loop_stuck")
            if not self.in_tick:
                self.health.ended_tick()
        if self.clock.now >= self.next_s and self.looker is None:
            self.next_s = self.clock.now + self.every_s
            if self.is_on("hangs"):
                self.looker = threading.Thread(target=self.look, daemon=True)
                self.looker.start()
                assert self.asked.wait(PATIENCE_S)
            else:
                self.look()

    def close(self) -> None:
        self.released.set()
        if self.looker is not None:
            self.looker.join(PATIENCE_S)
        self.store.close()


@pytest.mark.parametrize("part", [0.0, 0.28125, 0.5, 0.75, 0.96875])
@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("server.disk_full", "server.disk_full"),
        ("server.loop_stuck", "server.loop_stuck"),
        ("server.store_gone", "server.store_gone"),
        ("hangs", "server.store_gone"),
    ],
)
def test_not_ready_within_two_ticks_whenever_in_a_tick_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, named: str, part: float
) -> None:
    begins_s = TICK_S * (3 + part)
    server = Trouble(tmp_path, monkeypatch, what, from_s=begins_s)
    # A loop is stuck from the tick on that does not end.
    since_s = TICK_S * math.ceil(3 + part) if what == "server.loop_stuck" else begins_s
    try:
        while server.clock.now < since_s - STEP_S:
            server.step()
            assert server.http.get("/v1/ready").status_code == 200
        while server.clock.now < since_s + 2 * TICK_S:
            server.step()
        answer = server.http.get("/v1/ready")
        assert (answer.status_code, answer.json()["data"]["reason_code"]) == (503, named)
    finally:
        server.close()


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
