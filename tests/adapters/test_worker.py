"""A worker stands between the loop and a site: the loop never waits, and never believes what is too old."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines.worker import FIRST_LOOK_S, SILENT_S, STUCK_S, SiteWorker, begin_all, close_all
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import JobSubmitted
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Node
from brimful.language import Sentence, verbatim
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import CannotStart, Failures, Observation, Ports, Start
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import a_job, a_node, eventually, start_one, stop_one
from tests.patience import PATIENCE_S


class Engine:
    """Runs nothing. Its steps wait where a test has shut the gate."""

    def __init__(self, site: str = "here", *, gpus: int = 8) -> None:
        self.site = site
        self.listed = [replace(a_node(f"{site}-0", gpus=gpus), site=site)]
        self.gate = threading.Event()
        self.gate.set()
        self.running: set[str] = set()
        self.asked: list[str] = []
        self.fails: dict[str, BrimfulError] = {}
        self.batches: list[int] = []
        self.bug: Exception | None = None
        self.looks = 0

    def nodes(self) -> Sequence[Node]:
        if self.bug is not None:
            raise self.bug
        return self.listed

    def start(self, starts: Sequence[Start]) -> Failures:
        self.batches.append(len(starts))
        self.asked += [f"start {each.lease}" for each in starts]
        assert self.gate.wait(PATIENCE_S)
        failed = {each.lease: self.fails[each.lease] for each in starts if each.lease in self.fails}
        self.running |= {each.lease for each in starts} - set(failed)
        return failed

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        self.asked += [f"stop {lease}" for lease in leases]
        self.running -= set(leases)
        return {}

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        self.looks += 1
        return [
            Observation(lease, "running", started_s=1)
            if lease in self.running
            else Observation(lease, "absent")
            for lease in leases
        ]


class Bench:
    """A loop over sites with workers."""

    def __init__(self, *engines: Engine) -> None:
        self.now = 0.0
        self.workers = {each.site: SiteWorker(each, clock=lambda: self.now) for each in engines}
        begin_all(self.workers.values())
        self.fleet = Fleet()
        self.ports = Ports(store=MemoryStore(), engines=self.workers)

    def submit(self, job: Job) -> None:
        assert self.ports.store.append([JobSubmitted(at_s=1, job=job)], after=len(self.ports.store.since(0)))

    def tick(self) -> dict[str, Said]:
        return tick(self.fleet, self.ports, Rules(), now_s=10).problems

    def phase(self, job: str) -> str:
        self.tick()
        return self.fleet.jobs[job].phase


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        for worker in bench.workers.values():
            worker._engine.gate.set()  # type: ignore[attr-defined]
        close_all(bench.workers.values())


def test_a_site_that_hangs_in_a_start_delays_nobody_elsewhere(benches: list[Bench]) -> None:
    slow, quick = Engine("slow", gpus=1), Engine("quick", gpus=1)
    bench = Bench(slow, quick)
    benches.append(bench)
    slow.gate.clear()
    bench.submit(a_job("a", gpus=1, sites=("slow",)))
    eventually(lambda: bench.phase("a") == "starting" and slow.asked == ["start a.1"])
    bench.submit(a_job("b", gpus=1, sites=("quick",)))
    eventually(lambda: bench.phase("b") == "running")
    assert bench.phase("a") == "starting"
    slow.gate.set()
    eventually(lambda: bench.phase("a") == "running")
    assert slow.asked == ["start a.1"], "ordered once, however often the loop asked"


def test_a_site_that_nobody_asked_for_minutes_is_not_silent(benches: list[Bench]) -> None:
    """A server may tick every minute, or not lead for an hour."""
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    worker = bench.workers["here"]
    for _ in range(3):
        eventually(lambda: worker._wanted is worker._awaited is None)
        bench.now += 60
        assert worker.nodes() == engine.listed
    eventually(lambda: worker._wanted is worker._awaited is None)

    engine.gate.clear()
    worker.start([Start("a.1", a_job("a"), (("here-0", (0,)),))])
    eventually(lambda: engine.asked == ["start a.1"])
    bench.now += 60
    assert worker.nodes(), "asked only now"
    bench.now += SILENT_S + 1
    with pytest.raises(WorldFailed):
        worker.nodes()


def test_no_trace_of_a_lease_whose_start_is_under_way_means_nothing(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    worker = bench.workers["here"]
    worker.observe(["a.1"])
    eventually(lambda: [each.state for each in worker.observe(["a.1"])] == ["absent"])
    engine.gate.clear()
    start_one(worker, "a.1", a_job("a"), node="here-0", gpus=(0,))
    eventually(lambda: engine.asked == ["start a.1"])
    assert worker.observe(["a.1"]) == []
    engine.gate.set()
    eventually(lambda: [each.state for each in worker.observe(["a.1"])] == ["running"])


def test_no_trace_of_a_stopped_lease_is_told_however_long_looks_take(benches: list[Bench]) -> None:
    """The loop repeats a stop until it sees its effect, also during a look."""
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    worker, observe = bench.workers["here"], engine.observe

    def slowly(leases: Collection[str]) -> Sequence[Observation]:
        bench.now += 2.0
        worker.stop(["a.1"], grace_s=1)
        return observe(leases)

    engine.observe = slowly  # type: ignore[method-assign]
    worker.stop(["a.1"], grace_s=1)
    eventually(lambda: [each.state for each in worker.observe(["a.1"])] == ["absent"])


def test_no_trace_before_a_stop_that_failed_is_carried_out_means_nothing(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    worker, stop = bench.workers["here"], engine.stop
    failures: list[Failures] = [{"a.1": WorldFailed(_said())}]

    def fails_once(leases: Sequence[str], *, grace_s: int) -> Failures:
        return failures.pop() if failures else stop(leases, grace_s=grace_s)

    engine.stop = fails_once  # type: ignore[method-assign]
    eventually(lambda: bool(worker.stop(["a.1"], grace_s=1)))
    engine.gate.clear()
    start_one(worker, "b.1", a_job("b"), node="here-0", gpus=(0,))  # keeps the worker busy
    eventually(lambda: engine.asked == ["start b.1"])
    worker.stop(["a.1"], grace_s=1)
    assert worker.observe(["a.1"]) == []
    engine.gate.set()
    eventually(lambda: [each.state for each in worker.observe(["a.1"])] == ["absent"])


def test_a_start_that_cannot_be_is_told_when_it_is_asked_for_again(benches: list[Bench]) -> None:
    engine = Engine()
    engine.fails["a.1"] = CannotStart(_said())
    bench = Bench(engine)
    benches.append(bench)
    bench.submit(a_job("a", retries=0))
    eventually(lambda: bench.phase("a") == "failed")
    assert engine.asked == ["start a.1"]


def test_one_lease_in_trouble_keeps_nobody_else_at_its_site_waiting(benches: list[Bench]) -> None:
    engine = Engine()
    engine.fails["a.1"] = WorldFailed(_said())
    bench = Bench(engine)
    benches.append(bench)
    bench.submit(a_job("a", gpus=1))
    bench.submit(a_job("b", gpus=1))
    eventually(lambda: bench.phase("b") == "running")
    assert bench.phase("a") == "starting"


def test_orders_that_wait_are_given_together(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    engine.gate.clear()
    bench.submit(a_job("a", gpus=1))
    eventually(lambda: bench.phase("a") == "starting" and engine.batches == [1])
    for name in "bcd":
        bench.submit(a_job(name, gpus=1))
    bench.tick()
    engine.gate.set()
    eventually(lambda: bench.phase("d") == "running")
    assert engine.batches == [1, 3]
    assert bench.workers["here"].took_s.keys() == {"nodes", "observe", "start"}


def test_a_site_that_does_not_answer_counts_as_lost_and_its_step_is_named_once(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    worker = bench.workers["here"]
    eventually(lambda: bench.tick() == {})
    engine.gate.clear()
    start_one(worker, "a.1", a_job("a"), node="here-0", gpus=(0,))
    eventually(lambda: engine.asked == ["start a.1"])
    bench.now += STUCK_S + 1
    assert worker.stuck() == ("start a.1", STUCK_S + 1)
    assert worker.stuck() is None
    assert bench.tick() == {}
    bench.now += 100
    with pytest.raises(WorldFailed) as caught:
        worker.nodes()
    assert caught.value.code == "site_silent"
    assert "here" in bench.tick()
    assert "here" in bench.fleet.silent
    engine.gate.set()
    eventually(lambda: bench.tick() == {})
    assert "here" not in bench.fleet.silent


NEVER = [float("nan"), float("inf"), float("-inf"), 1 << 62, -(1 << 62), 10**400, "x"]


class Lies(Engine):
    """What it says of lease a.1 cannot be so."""

    says: Mapping[str, Any] = {}

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        return [
            replace(each, **self.says) if each.lease == "a.1" and each.state == "running" else each
            for each in super().observe(leases)
        ]


@pytest.mark.parametrize("never", NEVER, ids=lambda each: str(each)[:9])
@pytest.mark.parametrize(
    "name", ["started_s", "ended_s", "skew_s", "resumes_s", "kept_work_s", "moved_bytes"]
)
def test_a_number_that_cannot_be_stops_nobodys_scheduling(
    benches: list[Bench], tmp_path: Path, name: str, never: float
) -> None:
    """On Ray and ssh machines a job may write what its agent says of it."""
    engine = Lies()
    bench = Bench(engine)
    benches.append(bench)
    bench.ports = replace(bench.ports, store=SqlStore(f"sqlite:///{tmp_path}/log"))
    bench.submit(a_job("a", gpus=1))
    engine.says = {"state": "ended", "ended_s": 2, "exit_code": 0, "cause": "finished", name: never}
    eventually(lambda: bench.phase("a") == "finished")
    bench.submit(a_job("b", gpus=1))
    eventually(lambda: bench.phase("b") == "running")
    lease = bench.fleet.leases["a.1"]
    assert lease.started_s is not None
    assert lease.ended_s is not None
    assert 0 <= lease.started_s <= time.time() + 1
    assert 0 <= lease.ended_s <= time.time() + 1
    assert lease.cost_microusd(lease.ended_s) >= 0


@pytest.mark.parametrize("says", [{"state": "on fire"}, {"cause": "weather"}])
def test_what_is_no_state_of_a_lease_is_not_taken_in(benches: list[Bench], says: Mapping[str, Any]) -> None:
    engine = Lies()
    bench = Bench(engine)
    benches.append(bench)
    bench.submit(a_job("a", gpus=1))
    engine.says = {"state": "ended", **says}
    eventually(lambda: bench.phase("a") == "starting" and "a.1" in engine.running)
    looks = engine.looks
    eventually(lambda: bench.phase("a") == "starting" and engine.looks > looks + 1)
    engine.says = {}
    eventually(lambda: bench.phase("a") == "running")


def test_a_bug_of_one_engine_is_that_sites_trouble(benches: list[Bench]) -> None:
    broken, well = Engine("broken"), Engine("well")
    broken.bug = KeyError("no such thing")
    bench = Bench(broken, well)
    benches.append(bench)
    bench.submit(a_job("a", gpus=1))
    eventually(lambda: bench.phase("a") == "running")
    assert list(bench.tick()) == ["broken"]
    broken.bug = None
    eventually(lambda: bench.tick() == {})


def test_an_order_of_a_server_that_no_longer_leads_is_not_carried_out() -> None:
    engine = Engine()
    leads = True

    def check() -> None:
        if not leads:
            raise WorldFailed(_said())

    worker = SiteWorker(engine, permit=lambda: check)
    leads = False
    start_one(worker, "a.1", a_job("a"), node="here-0", gpus=(0,))
    begin_all([worker])
    eventually(lambda: not worker._pending)
    assert engine.asked == []
    with pytest.raises(WorldFailed):
        start_one(worker, "a.1", a_job("a"), node="here-0", gpus=(0,))
    close_all([worker])


def _said() -> Sentence:
    return verbatim("no")


def test_a_look_that_is_always_due_again_keeps_no_order_waiting(benches: list[Bench]) -> None:
    """As a slow poll of a site is, while the loop asks several times a second."""
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    (worker,) = bench.workers.values()
    listed = engine.listed

    def nodes() -> Sequence[Node]:
        worker._wanted = bench.now
        return listed

    engine.nodes = nodes  # type: ignore[method-assign]
    worker.nodes()
    for lease in ("a.1", "b.1"):
        start_one(worker, lease, a_job(lease[0], gpus=1), node="here-0", gpus=(0,))
    eventually(lambda: engine.asked == ["start a.1", "start b.1"])


def test_orders_without_end_keep_no_look_waiting(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    (worker,) = bench.workers.values()

    def stop(leases: Sequence[str], *, grace_s: int) -> Failures:
        bench.now += 2.0  # each takes longer than orders may go before a look
        return worker.stop([f"{leases[0]}+"], grace_s=grace_s)

    engine.stop = stop  # type: ignore[method-assign]
    stop_one(worker, "a.1", grace_s=1)
    looks = engine.looks
    eventually(lambda: engine.looks > looks + 5)


def test_a_site_that_failed_and_then_hangs_is_told_silent(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    (worker,) = bench.workers.values()
    engine.bug = RuntimeError("once")
    eventually(lambda: "here" in bench.tick())
    first = worker._failed
    hangs = threading.Event()

    def nodes() -> Sequence[Node]:
        assert hangs.wait(PATIENCE_S)
        return engine.listed

    engine.nodes = nodes  # type: ignore[method-assign]
    eventually(lambda: bench.tick() and worker._step == ("nodes", 0.0))
    assert first is not None
    assert first.__traceback__ is None or first.__traceback__.tb_next is None
    bench.now += 20.0
    said = bench.tick()["here"].as_dict()
    hangs.set()
    assert said["code"] == "adapters.site_failed_then_silent"
    assert "once" in str(said["before"]), "what it said last is not forgotten"
    assert said["now"]["code"] == "adapters.site_silent"


def test_a_failure_that_took_longer_than_a_site_may_be_silent_is_told(benches: list[Bench]) -> None:
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)

    def nodes() -> Sequence[Node]:
        bench.now += 60.0
        raise WorldFailed(verbatim("nobody at 127.0.0.1:6399"))

    engine.nodes = nodes  # type: ignore[method-assign]
    eventually(lambda: str(bench.tick().get("here")) == "nobody at 127.0.0.1:6399")


def test_a_site_that_fails_at_every_look_is_logged_once(
    benches: list[Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "brimful")
    engine = Engine()
    bench = Bench(engine)
    benches.append(bench)
    looked = 0

    def nodes() -> Sequence[Node]:
        nonlocal looked
        looked += 1
        if looked < 4:
            raise RuntimeError("again and again")
        return engine.listed

    engine.nodes = nodes  # type: ignore[method-assign]
    eventually(lambda: not bench.tick() and looked >= 4)
    eventually(lambda: "answers again" in caplog.text)
    assert len([each for each in caplog.records if "again and again" in each.getMessage()]) == 1


def test_sites_that_hang_are_waited_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    waits: list[float] = []

    def waited(_worker: SiteWorker, within_s: float) -> bool:
        waits.append(within_s)
        clock[0] += within_s
        return False

    monkeypatch.setattr("brimful.adapters.engines.worker.time.monotonic", lambda: clock[0])
    for name, bound in (("has_looked", begin_all), ("has_closed", close_all)):
        waits.clear()
        monkeypatch.setattr(SiteWorker, name, waited)
        monkeypatch.setattr(SiteWorker, "begin", lambda _worker: None)
        bound([SiteWorker(Engine(f"s{n}")) for n in range(4)])
        assert waits[1:] == [0.0, 0.0, 0.0]
        assert waits[0] >= FIRST_LOOK_S


def test_a_look_that_finds_what_it_found_before_wakes_nobody() -> None:
    """Else loop and worker would wake each other without end while anything runs."""
    engine, told = Engine(), list[int]()
    worker = SiteWorker(engine, tell=lambda: told.append(engine.looks))
    begin_all([worker])
    engine.running.add("a.1")

    def look() -> None:
        looks = engine.looks
        worker.nodes()
        worker.observe({"a.1"})
        eventually(
            lambda: (
                engine.looks > looks and worker._step is None and worker._wanted is worker._awaited is None
            )
        )

    try:
        for _ in range(2):  # the first may have asked before it knew of the lease
            look()
        before = len(told)
        for _ in range(5):
            look()
        assert len(told) == before
        engine.running.clear()
        look()
        eventually(lambda: len(told) == before + 1)
    finally:
        close_all([worker])
