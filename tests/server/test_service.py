"""The service without HTTP: who only looks waits for nobody, and a loop in trouble is seen."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import Refused, WorldFailed
from brimful.fleet.events import CancelRequested, Event
from brimful.fleet.job import Job
from brimful.scheduler.cycle import Rules
from brimful.scheduler.ports import CannotStart, Observation
from brimful.server import service as service_module
from brimful.server.service import SILENT_S, Service
from brimful.server.submissions import _Asked
from brimful.server.views import fleet_view, job_view, jobs_page, spend_view
from brimful.sim.world import MemoryStore
from tests.builders import ScriptedEngine, a_job, a_node, eventually
from tests.server.builders import OPERATOR


class Gate:
    """Something that hangs from `shut` until `open`."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(30)


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = Gate(), Gate()

    def since(self, seq: int) -> Sequence[Event]:
        self.read()
        return super().since(seq)

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        self.write()
        return super().append(events, after=after)


class SlowEngine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(a_node(gpus=1))
        self.look = Gate()
        self.told: dict[str, str] = {}
        self.broken_start: Exception | None = None

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        self.look()
        return super().observe(leases)

    def start(self, lease: str, job: Job, **more: Any) -> None:
        if self.broken_start is not None:
            raise self.broken_start
        super().start(lease, job, **more)

    def complaints(self) -> dict[str, str]:
        return self.told


class World:
    def __init__(self) -> None:
        self.store, self.engine = SlowStore(), SlowEngine()
        self.service = Service(self.store, self.engine, Rules(), tick_s=0.01, clock=lambda: 100)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.service.stop()


@contextmanager
def meanwhile(act: Callable[[], Any], gate: Gate) -> Iterator[None]:
    """While `act` hangs at the gate."""
    gate.shut()
    thread = threading.Thread(target=act)
    thread.start()
    try:
        assert gate.reached.wait(30)
        yield
    finally:
        gate.open()
        thread.join(30)
    assert not thread.is_alive()


def look_at_everything(service: Service) -> list[object]:
    seen: list[object] = []

    def look() -> None:
        state = service.job("job-1")
        views = (
            job_view(service, state),
            jobs_page(service),
            fleet_view(service, OPERATOR),
            spend_view(service, OPERATOR),
        )
        seen.extend(views)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(10)
    return seen


@pytest.mark.parametrize("hanging", ["engine", "reading the database", "writing the database"])
def test_who_only_looks_does_not_wait_for_a_tick_that_hangs(world: World, hanging: str) -> None:
    service = world.service
    service.submit(a_job(""))
    gate = {
        "engine": world.engine.look,
        "reading the database": world.store.read,
        "writing the database": world.store.write,
    }[hanging]
    with meanwhile(service.tick, gate):
        assert len(look_at_everything(service)) == 4
    assert service.job("job-1").phase == "starting"


def test_who_only_looks_does_not_wait_for_a_submit_that_hangs(world: World) -> None:
    world.service.submit(a_job(""))
    with meanwhile(lambda: world.service.submit(a_job("")), world.store.write):
        assert len(look_at_everything(world.service)) == 4
    assert list(world.service.fleet.jobs) == ["job-1", "job-2"]


def test_a_submit_does_not_wait_for_an_engine_that_hangs(world: World) -> None:
    with meanwhile(world.service.tick, world.engine.look):
        world.service.submit(a_job(""))
    world.service.tick()
    assert world.service.job("job-1").phase == "starting"


def test_readers_and_the_loop_agree_whoever_writes(world: World) -> None:
    service = world.service
    threads = [threading.Thread(target=service.submit, args=(a_job(""),)) for _ in range(20)]
    for thread in threads:
        thread.start()
        service.tick()
    for thread in threads:
        thread.join()
    service.tick()
    assert service.fleet.seq == service._loops.seq == len(world.store.log)
    assert sorted(service.fleet.jobs) == sorted(f"job-{i}" for i in range(1, 21))
    assert {n: s.phase for n, s in service.fleet.jobs.items()} == {
        n: s.phase for n, s in service._loops.jobs.items()
    }


@pytest.mark.parametrize("view", [job_view, lambda service, _state: jobs_page(service)])
def test_what_is_shown_of_a_job_is_of_one_moment(world: World, view: Callable[..., object]) -> None:
    service, seen = world.service, threading.Event()
    state = service.submit(a_job(""))

    def look() -> None:
        view(service, state)
        seen.set()

    thread = threading.Thread(target=look)
    with service.locked():  # somebody is changing it
        thread.start()
        assert not seen.wait(0.2)
    assert seen.wait(30)
    thread.join()


def test_a_lease_that_cost_nothing_is_no_line_of_the_ledger(world: World) -> None:
    service = world.service
    service.submit(a_job(""))
    world.engine.broken_start = CannotStart("no")
    service.tick()
    assert service.job("job-1").phase == "failed"
    assert [transfer.microusd for transfer in service.ledger.transfers] == [0]
    assert spend_view(service, OPERATOR)["transfers"] == []


def test_a_waiting_job_says_why_by_what_is_so_now(world: World) -> None:
    service = world.service
    service.tick()
    service.submit(a_job("", gpus=2))
    assert "the largest node has 1" in job_view(service, service.job("job-1"))["why"]


def test_a_submission_whose_commit_is_unknown_is_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database took them in and its answer was lost: whoever tries again by itself makes them twice."""
    service = world.service
    append, asked = world.store.append, 0

    def took_and_fell_silent(events: Sequence[Event], *, after: int) -> bool:
        nonlocal asked
        asked += 1
        assert append(events, after=after)
        raise WorldFailed("the connection was lost", code="database_failed")

    batch = [_Asked(a_job("")) for _ in range(3)]
    service._submissions._waiting.extend(batch)
    monkeypatch.setattr(world.store, "append", took_and_fell_silent)
    service._submissions._take_those_waiting()
    monkeypatch.undo()
    assert asked == 1
    assert [each.error.code for each in batch if each.error] == ["database_failed"] * 3
    service.refresh()
    assert len(service.fleet.jobs) == 3


def test_a_seeker_that_meets_a_bug_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody leads; and what keeps snapshots, however long it takes, does not keep it waiting."""
    monkeypatch.setattr(service_module, "SEEK_S", 0.02)
    monkeypatch.setattr(snapshot, "EVERY", 0)
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    leadership = Leadership(store)
    seek, calls, hanging = leadership.seek, 0, threading.Event()

    def buggy() -> bool:
        nonlocal calls
        calls += 1
        assert calls != 2, "a bug"
        return seek()

    monkeypatch.setattr(leadership, "seek", buggy)
    monkeypatch.setattr(snapshot, "advance", lambda *_args, **_more: hanging.wait(30))
    service = Service(store, ScriptedEngine(a_node()), Rules(), leadership=leadership)
    service.start()
    try:
        eventually(lambda: calls > 10)
        assert service.leads
    finally:
        hanging.set()
        service.stop()
        store.close()


def test_a_log_that_others_always_write_first_is_given_up_on(world: World) -> None:
    class Busy(MemoryStore):
        def append(self, events: Sequence[Event], *, after: int) -> bool:
            return False

    with pytest.raises(WorldFailed, match="times in a row") as caught:
        Service(Busy(), world.engine, Rules()).submit(a_job(""))
    assert caught.value.code == "log_busy"


def test_a_loop_that_hangs_is_trouble(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    service = world.service
    assert service.trouble() == ""
    service.start()
    assert service.trouble() == ""
    world.engine.look.shut()
    assert world.engine.look.reached.wait(30)
    with monkeypatch.context() as later:
        now_s = time.monotonic()
        later.setattr(time, "monotonic", lambda: now_s + 2 * SILENT_S)
        assert "at one look for 12" in service.trouble()
    world.engine.look.open()
    eventually(lambda: service.trouble() == "")


def test_a_loop_that_has_ended_is_trouble(world: World) -> None:
    thread = threading.Thread(target=lambda: None)
    world.service._thread = thread
    thread.start()
    thread.join()
    assert "has ended" in world.service.trouble()


def test_whatever_a_tick_meets_the_loop_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    service = world.service

    class Odd:
        @property
        def unsettled(self) -> object:
            raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(service, "tick", lambda: None)
    monkeypatch.setattr(service, "_loops", Odd())
    service._thread = threading.Thread(target=service._loop)
    service._thread.start()
    eventually(lambda: "met a bug" in service.trouble())
    assert service._thread.is_alive()


def test_what_an_engine_cannot_tell_of_a_lease_is_a_problem_of_its_site(world: World) -> None:
    world.engine.told = {"job-1.1": "job-1.1 cannot be looked at"}
    assert fleet_view(world.service, OPERATOR)["problems"] == {"here": "job-1.1 cannot be looked at"}


def test_an_engine_without_logs_says_so(world: World) -> None:
    world.service.submit(a_job(""))
    world.service.tick()
    with pytest.raises(Refused, match="the engine at here keeps no logs"):
        world.service.read_log(world.service.job("job-1").leases[0], offset=0, limit=10)


def test_the_log_tells_who_moved_on_and_not_the_history(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.service.submit(a_job(""))
    world.service.tick()
    with caplog.at_level(logging.INFO):
        again = Service(world.store, world.engine, Rules(), clock=lambda: 100)
        again.tick()
        assert caplog.messages == []
        world.engine.sees["job-1.1"] = Observation(lease="job-1.1", state="running", started_s=100)
        again.tick()
    assert caplog.messages == ["job-1 running on node-0 GPU 0"]


def test_a_cancel_that_met_a_conflict_is_decided_anew(world: World) -> None:
    service = world.service
    service.submit(a_job(""))
    assert world.store.append([CancelRequested(at_s=100, job="job-1")], after=1)  # by somebody else
    with pytest.raises(Refused, match="already cancelled"):
        service.cancel("job-1")
