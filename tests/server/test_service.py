"""The service without HTTP: who only looks waits for nobody, and a loop in trouble is seen."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError, Refused, WorldFailed
from brimful.fleet.events import CancelRequested, Event
from brimful.language import say, verbatim
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start
from brimful.scheduler.rules import Rules
from brimful.server.service import driver as driver_module
from brimful.server.service.intake import Pending
from brimful.server.service.service import Service
from brimful.server.views.fleet import fleet_view
from brimful.server.views.jobs import job_view, jobs_page
from brimful.server.views.money import spend_view
from tests.builders import ScriptedEngine, a_job, a_node, code_of, eventually, refuses
from tests.patience import PATIENCE_S
from tests.server.builders import OPERATOR, MemoryHistory


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
            assert self._open.wait(PATIENCE_S)


class SlowStore(MemoryHistory):
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
        self.broken_start: BrimfulError | None = None

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        self.look()
        return super().observe(leases)

    def start(self, starts: Sequence[Start]) -> Failures:
        if self.broken_start is not None:
            return {each.lease: self.broken_start for each in starts}
        return super().start(starts)

    def complaints(self) -> dict[str, str]:
        return self.told


class World:
    def __init__(self) -> None:
        self.store, self.engine = SlowStore(), SlowEngine()
        self.service = Service(self.store, [self.engine], Rules(), tick_s=0.01, clock=lambda: 100)


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
        assert gate.reached.wait(PATIENCE_S)
        yield
    finally:
        gate.open()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def look_at_everything(service: Service) -> list[object]:
    seen: list[object] = []

    def look() -> None:
        state = service.reader.job("job-1")
        views = (
            job_view(service.reader, state),
            jobs_page(service.reader, job_view),
            fleet_view(service.reader, OPERATOR),
            spend_view(service.reader, OPERATOR),
        )
        seen.extend(views)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return seen


@pytest.mark.parametrize("hanging", ["engine", "reading the database", "writing the database"])
def test_who_only_looks_does_not_wait_for_a_tick_that_hangs(world: World, hanging: str) -> None:
    service = world.service
    service.submissions.submit(a_job(""))
    gate = {
        "engine": world.engine.look,
        "reading the database": world.store.read,
        "writing the database": world.store.write,
    }[hanging]
    with meanwhile(service.driver.tick, gate):
        assert len(look_at_everything(service)) == 4
    assert service.reader.job("job-1").phase == "starting"


def test_who_only_looks_does_not_wait_for_a_submit_that_hangs(world: World) -> None:
    world.service.submissions.submit(a_job(""))
    with meanwhile(lambda: world.service.submissions.submit(a_job("")), world.store.write):
        assert len(look_at_everything(world.service)) == 4
    assert list(world.service.reader.fleet.jobs) == ["job-1", "job-2"]


def test_a_submit_does_not_wait_for_an_engine_that_hangs(world: World) -> None:
    with meanwhile(world.service.driver.tick, world.engine.look):
        world.service.submissions.submit(a_job(""))
    world.service.driver.tick()
    assert world.service.reader.job("job-1").phase == "starting"


def test_readers_and_the_loop_agree_whoever_writes(world: World) -> None:
    service = world.service
    threads = [threading.Thread(target=service.submissions.submit, args=(a_job(""),)) for _ in range(20)]
    for thread in threads:
        thread.start()
        service.driver.tick()
    for thread in threads:
        thread.join()
    service.driver.tick()
    assert service.reader.fleet.seq == service.driver._fleet.seq == len(world.store.log)
    assert sorted(service.reader.fleet.jobs) == sorted(f"job-{i}" for i in range(1, 21))
    assert {n: s.phase for n, s in service.reader.fleet.jobs.items()} == {
        n: s.phase for n, s in service.driver._fleet.jobs.items()
    }


@pytest.mark.parametrize("view", [job_view, lambda reader, _state: jobs_page(reader, job_view)])
def test_what_is_shown_of_a_job_is_of_one_moment(world: World, view: Callable[..., object]) -> None:
    service, seen = world.service, threading.Event()
    state = service.submissions.submit(a_job(""))

    def look() -> None:
        view(service.reader, state)
        seen.set()

    thread = threading.Thread(target=look)
    with service.reader.locked():  # somebody is changing it
        thread.start()
        assert not seen.wait(0.2)
    assert seen.wait(PATIENCE_S)
    thread.join()


def test_a_lease_that_cost_nothing_is_no_line_of_the_ledger(world: World) -> None:
    service = world.service
    service.submissions.submit(a_job(""))
    world.engine.broken_start = CannotStart(verbatim("no"))
    service.driver.tick()
    assert service.reader.job("job-1").phase == "failed"
    assert [transfer.microusd for transfer in service.reader.ledger.transfers] == [0]
    assert spend_view(service.reader, OPERATOR)["transfers"] == []


def test_a_waiting_job_says_why_by_what_is_so_now(world: World) -> None:
    service = world.service
    service.driver.tick()
    service.submissions.submit(a_job("", gpus=2))
    why = job_view(service.reader, service.reader.job("job-1"))["why_code"]
    assert why is not None
    assert (why["code"], why["gpus"]["n"], why["most"]) == ("scheduler.too_wide_node", 2, 1)


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
        raise WorldFailed(verbatim("the connection was lost"), code="database_failed")

    batch = [Pending(a_job("")) for _ in range(3)]
    monkeypatch.setattr(world.store, "append", took_and_fell_silent)
    service.submissions.submit_all(batch)
    monkeypatch.undo()
    assert asked == 1
    assert [each.error.code for each in batch if each.error] == ["database_failed"] * 3
    service.reader.refresh()
    assert len(service.reader.fleet.jobs) == 3


def test_a_seeker_that_meets_a_bug_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody leads; and what keeps snapshots, however long it takes, does not keep it waiting."""
    monkeypatch.setattr(driver_module, "SEEK_S", 0.02)
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
    monkeypatch.setattr(snapshot, "advance", lambda *_args, **_more: hanging.wait(PATIENCE_S))
    service = Service(store, [ScriptedEngine(a_node())], Rules(), leadership=leadership)
    service.start()
    try:
        eventually(lambda: calls > 10)
        assert service.driver.leads
    finally:
        hanging.set()
        service.stop()
        store.close()


def test_a_log_that_others_always_write_first_is_given_up_on(world: World) -> None:
    class Busy(MemoryHistory):
        def append(self, events: Sequence[Event], *, after: int) -> bool:
            return False

    with refuses(WorldFailed, "server.log_busy") as caught:
        Service(Busy(), [world.engine], Rules()).submissions.submit(a_job(""))
    assert caught.value.code == "log_busy"


def test_a_loop_that_hangs_is_trouble_and_its_step_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    health = world.service.reader.health
    health.patience_s = 0.05
    world.service.start()
    eventually(lambda: health.trouble() is None)
    world.store.read.shut()
    eventually(lambda: health.trouble() is not None)
    assert code_of(health.trouble()) == code_of(health.open_trouble()) == "server.loop_stuck"
    eventually(lambda: "the scheduler is stuck" in caplog.text)
    assert "scheduler/loop.catch_up" in caplog.text
    world.store.read.open()
    eventually(lambda: health.trouble() is None)


def test_a_site_that_hangs_is_named_with_its_step_while_the_loop_hangs_too(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.adapters.engines.worker.STUCK_S", 0.05)
    world.service.start()
    world.engine.look.shut()
    assert world.engine.look.reached.wait(PATIENCE_S)
    world.store.read.shut()
    eventually(lambda: "site here is stuck: observe" in caplog.text)
    world.engine.look.open()
    world.store.read.open()


def test_a_token_may_have_only_so_many_jobs_waiting(world: World) -> None:
    service = Service(world.store, [world.engine], Rules(), clock=lambda: 100, max_queued=3)
    for _ in range(3):
        service.submissions.submit(a_job("", submitter="a"))
    with refuses(Refused, "server.too_many_queued", 3, 1, 3) as caught:
        service.submissions.submit(a_job("", submitter="a"))
    assert caught.value.code == "too_many"
    service.submissions.submit(a_job("", submitter="b"))
    service.driver.tick()  # one starts: there is room for another
    service.submissions.submit(a_job("", submitter="a"))
    with refuses(Refused, "server.too_many_queued", 3, 1, 3):
        service.submissions.submit(a_job("", submitter="a"))


def test_a_loop_that_has_ended_is_trouble(world: World) -> None:
    thread = threading.Thread(target=lambda: None)
    world.service.reader.health.thread = thread
    thread.start()
    thread.join()
    assert world.service.reader.health.trouble() == say("server.loop_ended")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_the_loop_comes_before_the_jobs_of_its_machine_and_nothing_it_starts_does(world: World) -> None:
    """Jobs are started by the sites' workers, from which they inherit."""
    service, own = world.service, os.getpriority(os.PRIO_PROCESS, 0)
    service.start()
    try:
        eventually(lambda: service.reader.health.ticks > 0)
        found = {each.name: each.native_id or 0 for each in threading.enumerate()}
        nice = {name: os.getpriority(os.PRIO_PROCESS, id_) for name, id_ in found.items()}
    finally:
        service.stop()
    assert nice.pop("tick") == driver_module.LOOP_NICE
    assert set(nice.values()) == {own}
    assert any(name.startswith("site ") for name in nice)


def test_whatever_a_tick_meets_the_loop_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    service = world.service

    class Odd:
        @property
        def unsettled(self) -> object:
            raise RuntimeError("dictionary changed size during iteration")

    driver, health = service.driver, service.reader.health
    monkeypatch.setattr(driver, "tick", lambda: None)
    monkeypatch.setattr(driver, "_fleet", Odd())
    health.thread = threading.Thread(target=driver._loop)
    health.thread.start()
    eventually(lambda: health.trouble() == say("server.loop_bug"))
    assert health.thread.is_alive()


def test_what_an_engine_cannot_tell_of_a_lease_is_a_problem_of_its_site(world: World) -> None:
    world.engine.told = {"job-1.1": "job-1.1 cannot be looked at"}
    assert fleet_view(world.service.reader, OPERATOR)["problems"] == {"here": "job-1.1 cannot be looked at"}


def test_an_engine_without_logs_says_so(world: World) -> None:
    world.service.submissions.submit(a_job(""))
    world.service.driver.tick()
    with refuses(Refused, "server.no_logs", "here"):
        world.service.reader.read_log(world.service.reader.job("job-1").leases[0], offset=0, limit=10)


def test_the_log_tells_who_moved_on_and_not_the_history(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.service.submissions.submit(a_job(""))
    world.service.driver.tick()
    with caplog.at_level(logging.INFO):
        again = Service(world.store, [world.engine], Rules(), clock=lambda: 100)
        again.driver.tick()
        assert caplog.messages == []
        world.engine.sees["job-1.1"] = Observation(lease="job-1.1", state="running", started_s=100)
        again.driver.tick()
    assert caplog.messages == ["job-1 running on node-0 GPU 0"]


def test_a_cancel_that_met_a_conflict_is_decided_anew(world: World) -> None:
    service = world.service
    service.submissions.submit(a_job(""))
    assert world.store.append([CancelRequested(at_s=100, job="job-1")], after=1)  # by somebody else
    with refuses(Refused, "server.job_already", "job-1", say("fleet.verb_cancelled").as_dict()):
        service.submissions.cancel("job-1")
