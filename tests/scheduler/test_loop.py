"""`tick` against a world the test writes: intents first, acts idempotent, nothing lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    NoticeGiven,
    NoticeWithdrawn,
)
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet
from brimful.language import say, verbatim
from brimful.scheduler import loop
from brimful.scheduler.decide import decide
from brimful.scheduler.loop import Tick, tick
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import CannotStart, Failures, NodeLost, Observation, Ports, Start
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import ScriptedEngine, a_job, a_node, code_of


class World:
    def __init__(self) -> None:
        self.store, self.engine, self.fleet = MemoryStore(), ScriptedEngine(a_node(gpus=2)), Fleet()
        self.stopped: set[str] = set()

    def submit(self, *jobs: str, gpus: int = 1) -> World:
        events: list[Event] = [JobSubmitted(at_s=0, job=a_job(job, gpus=gpus)) for job in jobs]
        assert self.store.append(events, after=len(self.store.log))
        return self

    def tick(self, now_s: int = 1) -> Tick:
        ports = Ports(
            store=self.store,
            engines={"here": self.engine},
            stopped=self.stopped,
        )
        return tick(self.fleet, ports, Rules(), now_s=now_s)

    def phase(self, job: str) -> str:
        return self.fleet.jobs[job].phase


def test_a_job_goes_from_submit_to_finished() -> None:
    world = World().submit("a")
    world.tick()
    assert (world.phase("a"), world.engine.calls) == ("starting", [("start", "a.1")])
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    world.tick()
    assert world.phase("a") == "running"
    world.engine.sees["a.1"] = Observation(lease="a.1", state="ended", started_s=2, ended_s=9, exit_code=0)
    world.tick()
    assert world.phase("a") == "finished"
    assert world.fleet.jobs["a"].ended_s == 9


def test_a_crash_between_intent_and_act_is_mended_by_the_next_tick() -> None:
    world = World().submit("a")
    world.tick()
    world.engine.calls.clear()  # the order never reached the engine, and the server starts anew from the log
    world.fleet = Fleet()
    world.tick()
    assert world.engine.calls == [("start", "a.1")]
    assert [type(e) for e in world.store.log].count(LeaseGranted) == 1


def test_an_unreachable_engine_loses_nothing_and_starts_nothing() -> None:
    world = World().submit("a")
    world.tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    world.tick()
    world.engine.broken = WorldFailed(verbatim("no route to host"))
    result = world.submit("b").tick()
    assert result.problems == {"here": verbatim("no route to host")}
    assert (world.phase("a"), world.phase("b")) == ("running", "waiting")
    world.engine.broken = None
    world.tick()
    assert (world.phase("a"), world.phase("b")) == ("running", "starting")


def test_a_lease_the_engine_has_lost_ends_with_a_reason() -> None:
    world = World().submit("a")
    world.tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    world.tick()
    del world.engine.sees["a.1"]
    world.tick()
    assert world.phase("a") == "failed"
    assert code_of(world.fleet.jobs["a"].reason) == "scheduler.lost_by_engine"


def failing(error: BrimfulError) -> Any:
    def start(starts: Sequence[Start]) -> Failures:
        return {each.lease: error for each in starts}

    return start


def test_an_engine_that_vouches_it_cannot_start_a_job_fails_it_and_frees_the_gpus() -> None:
    world = World().submit("a")
    world.engine.start = failing(CannotStart(verbatim("no space left")))  # type: ignore[method-assign]
    world.tick()
    assert (world.phase("a"), world.fleet.jobs["a"].reason) == ("failed", verbatim("no space left"))
    assert world.fleet.free("node-0") == (0, 1)


def test_a_job_whose_node_is_lost_before_it_starts_waits_for_another() -> None:
    world = World().submit("a")
    world.engine.start = failing(NodeLost(verbatim("node-0 is gone")))  # type: ignore[method-assign]
    world.tick()
    assert (world.phase("a"), world.fleet.jobs["a"].failures) == ("waiting", 0)


def test_a_start_that_may_have_worked_keeps_its_gpus_and_is_asked_again() -> None:
    world = World().submit("a", gpus=2)
    start = world.engine.start
    world.engine.start = failing(WorldFailed(verbatim("timed out")))  # type: ignore[method-assign]
    result = world.tick()
    assert (world.phase("a"), result.problems) == ("starting", {"here": verbatim("timed out")})
    assert world.fleet.free("node-0") == ()
    world.engine.start = start  # type: ignore[method-assign]
    world.tick()
    assert world.engine.calls == [("start", "a.1")]


def test_news_is_not_lost_when_somebody_else_writes_at_that_moment() -> None:
    class Interrupted(MemoryStore):
        """A user submits `b` at the very moment the end of `a` is written."""

        def append(self, events: Sequence[Event], *, after: int) -> bool:
            if isinstance(events[0], LeaseEnded) and not any(
                isinstance(e, JobSubmitted) and e.job.job == "b" for e in self.log
            ):
                self.log.append(JobSubmitted(at_s=1, job=a_job("b")))
            return super().append(events, after=after)

    class TellsOnce(ScriptedEngine):
        def observe(self, leases: Collection[str]) -> Sequence[Observation]:
            news, self.sees = list(self.sees.values()), {}
            return news

    world = World()
    world.store, world.engine = Interrupted(), TellsOnce(a_node(gpus=2))
    world.submit("a").tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="ended", started_s=2, ended_s=9, exit_code=0)
    world.tick()
    assert world.phase("a") == "finished"


def test_a_job_that_failed_is_tried_again_as_often_as_it_asked() -> None:
    world = World()
    world.store.append([JobSubmitted(at_s=0, job=a_job("a", retries=1))], after=0)
    for lease, phase in (("a.1", "starting"), ("a.2", "failed")):
        world.tick()
        world.engine.sees[lease] = Observation(
            lease=lease, state="ended", started_s=2, ended_s=3, exit_code=1
        )
        world.tick()
        assert world.phase("a") == phase


def test_a_job_stopped_for_its_budget_is_not_finished_even_if_it_says_so() -> None:
    world = World()
    world.store.append([JobSubmitted(at_s=0, job=a_job("a", budget_microusd=1))], after=0)
    world.tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    world.tick(now_s=5000)
    world.engine.sees["a.1"] = Observation(lease="a.1", state="ended", started_s=2, ended_s=5001, exit_code=0)
    world.tick(now_s=5001)
    assert world.phase("a") == "stopped"


def test_a_cancelled_job_that_never_started_ends_without_running() -> None:
    world = World().submit("a")
    world.tick()
    world.store.append([CancelRequested(at_s=1, job="a")], after=len(world.store.log))
    world.tick()
    assert world.engine.calls[-1] == ("stop", "a.1")
    world.tick()
    assert world.phase("a") == "cancelled"
    assert world.fleet.free("node-0") == (0, 1)


def test_what_another_server_ordered_is_over_only_after_this_one_has_told_it_to_stop() -> None:
    world = World().submit("a")
    world.tick()
    ending = LeaseEnding(at_s=1, lease="a.1", reason=verbatim("cancelled"), requeue=False)
    assert world.store.append([CancelRequested(at_s=1, job="a"), ending], after=len(world.store.log))
    world.fleet = Fleet()  # another server, which has told nobody anything yet
    world.tick()
    assert (world.phase("a"), world.engine.calls[-1]) == ("stopping", ("stop", "a.1"))
    world.tick()
    assert world.phase("a") == "cancelled"


def test_a_decision_on_a_stale_state_is_thought_again() -> None:
    class Interrupted(MemoryStore):
        """A user cancels `a` at the very moment the scheduler wants to start it."""

        def append(self, events: Sequence[Event], *, after: int) -> bool:
            if isinstance(events[0], LeaseGranted) and not any(
                isinstance(e, CancelRequested) for e in self.log
            ):
                self.log.append(CancelRequested(at_s=1, job="a"))
            return super().append(events, after=after)

    world = World()
    world.store = Interrupted()
    world.submit("a", "b").tick()
    assert (world.phase("a"), world.phase("b")) == ("cancelled", "starting")
    assert world.engine.calls == [("start", "b.1")]


def test_a_site_that_is_no_longer_set_up_leaves_and_its_jobs_stay_known() -> None:
    world = World().submit("a")
    world.tick()
    ports = Ports(store=world.store, engines={})
    result = tick(world.fleet, ports, Rules(), now_s=5)
    assert result.problems["here"] == say("scheduler.no_engine", site="here", job="a")
    assert world.fleet.nodes == {}
    assert world.phase("a") == "starting"


def test_a_site_that_falls_silent_and_answers_again_is_in_the_log_once_each() -> None:
    world = World().submit("a")
    world.tick()
    world.engine.broken = WorldFailed(verbatim("no route to host"))
    for _ in range(3):
        world.tick()
    assert world.fleet.silent["here"].reason == verbatim("no route to host")
    world.engine.broken = None
    for _ in range(3):
        world.tick()
    assert world.fleet.silent == {}
    kinds = [type(event).__name__ for event in world.store.log]
    assert (kinds.count("SiteLost"), kinds.count("SiteFound")) == (1, 1)


def two_sites() -> tuple[Ports, Fleet, dict[str, ScriptedEngine]]:
    engines = {}
    for site in ("east", "west"):
        node = replace(a_node(f"{site}-0", gpus=1), site=site)
        engines[site] = ScriptedEngine(node)
        engines[site].site = site
    return Ports(store=MemoryStore(), engines=engines), Fleet(), engines


def test_a_job_does_not_go_straight_back_to_the_site_that_failed_it() -> None:
    ports, fleet, engines = two_sites()
    ports.store.append([JobSubmitted(at_s=0, job=a_job("a", retries=9))], after=0)
    seen = []
    for now_s in (1, 2, 3):
        tick(fleet, ports, Rules(), now_s=now_s)
        lease = fleet.jobs["a"].leases[-1]
        seen.append(lease.site)
        engines[lease.site].sees[lease.lease] = Observation(
            lease=lease.lease, state="ended", started_s=now_s, ended_s=now_s, exit_code=1
        )
        assert lease.lease == f"a.{now_s}"
        tick(fleet, ports, Rules(), now_s=now_s)
    assert seen[0] != seen[1] != seen[2]


def test_it_waits_for_another_site_and_goes_back_after_a_while() -> None:
    ports, fleet, engines = two_sites()
    jobs = [a_job("a", retries=9), a_job("b")]
    ports.store.append([JobSubmitted(at_s=0, job=job) for job in jobs], after=0)
    tick(fleet, ports, Rules(), now_s=0)
    site = fleet.jobs["a"].leases[0].site
    engines[site].sees["a.1"] = Observation(lease="a.1", state="ended", started_s=0, ended_s=0, exit_code=1)
    plan = tick(fleet, ports, Rules(), now_s=1).plan
    told = plan.waits["a"].as_dict()
    assert (told["code"], told["site"], told["left"]) == ("scheduler.not_back", site, 119)
    assert plan.look_again_s == 120
    assert tick(fleet, ports, Rules(), now_s=119).plan.starts == []
    assert [start.job for start in tick(fleet, ports, Rules(), now_s=120).plan.starts] == ["a"]


def test_where_there_is_only_one_site_it_goes_back_at_once() -> None:
    world = World()
    world.store.append([JobSubmitted(at_s=0, job=a_job("a", retries=1))], after=0)
    world.tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="ended", started_s=2, ended_s=3, exit_code=1)
    assert [start.lease for start in world.tick().plan.starts] == ["a.2"]


class Teller(ScriptedEngine):
    def warn(self, lease: str, *, until_s: int | None) -> None:
        self.calls.append((f"warn {until_s}", lease))


def test_a_notice_is_given_and_taken_back_though_nothing_starts_or_stops() -> None:
    world = World().submit("a")
    world.engine = Teller(a_node(gpus=2))
    world.tick()
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    world.tick()
    world.engine.calls.clear()
    for event in (
        NoticeGiven(at_s=3, lease="a.1", until_s=300, reason=verbatim("outbid")),
        NoticeWithdrawn(at_s=4, lease="a.1"),
    ):
        assert world.store.append([event], after=len(world.store.log))
        world.tick(now_s=event.at_s)
    assert world.engine.calls == [("warn 300", "a.1"), ("warn None", "a.1")]


class Decisions:
    """How often a server that keeps its ports has decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *jobs: Job) -> None:
        self.store, self.engine, self.fleet = MemoryStore(), ScriptedEngine(a_node(gpus=2)), Fleet()
        self.ports = Ports(store=self.store, engines={"here": self.engine})
        self.made = 0
        self.submit(*jobs)

        def counted(*args: Any, **more: Any) -> Plan:
            self.made += 1
            return decide(*args, **more)

        monkeypatch.setattr(loop, "decide", counted)

    def submit(self, *jobs: Job, at_s: int = 0) -> None:
        events = [JobSubmitted(at_s=at_s, job=job) for job in jobs]
        assert self.store.append(events, after=len(self.store.log))

    def at(self, now_s: int, rules: Rules | None = None) -> int:
        """How many a look at this moment makes."""
        before = self.made
        tick(self.fleet, self.ports, rules or Rules(), now_s=now_s)
        return self.made - before


def test_a_decision_stands_until_something_happens_that_it_did_not_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Decisions(monkeypatch, a_job("a"))
    assert world.at(1) == 1
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=2)
    assert world.at(2) == 0, "it started, as was decided"
    assert world.fleet.jobs["a"].phase == "running"
    assert [world.at(now_s) for now_s in (3, 4, 1000)] == [0, 0, 0]
    world.submit(a_job("b"), at_s=1001)
    assert [world.at(now_s) for now_s in (1001, 1002)] == [1, 0]
    world.engine.sees["a.1"] = Observation(lease="a.1", state="ended", started_s=2, ended_s=1003, exit_code=0)
    assert world.at(1003) == 1


def test_a_decision_stands_until_the_moment_that_its_plan_names(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Decisions(monkeypatch, a_job("a", gpus=2, max_run_s=50), a_job("b", gpus=2))
    world.at(0)
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=0)
    world.submit(a_job("c"), at_s=1)
    assert [world.at(now_s) for now_s in (1, 49, 50)] == [1, 0, 1]
    assert world.fleet.jobs["a"].phase == "stopping"


def test_a_limit_that_counts_from_a_start_on_is_looked_at_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Decisions(monkeypatch, a_job("a", max_run_s=50))
    assert world.at(0) == 1
    world.engine.sees["a.1"] = Observation(lease="a.1", state="running", started_s=3)
    assert [world.at(now_s) for now_s in (3, 4, 52, 53)] == [1, 0, 0, 1]
    assert world.fleet.jobs["a"].phase == "stopping"


def test_a_job_that_waits_on_an_idle_fleet_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Decisions(monkeypatch, a_job("too-wide", gpus=3))
    assert [world.at(now_s) for now_s in (0, 60, 61, 62, 122)] == [1, 0, 1, 0, 1]


def test_while_a_site_is_in_trouble_every_look_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Decisions(monkeypatch, a_job("a", gpus=3))
    world.engine.broken = WorldFailed(verbatim("it does not answer"))
    assert [world.at(now_s) for now_s in (1, 2, 3)] == [1, 1, 1]


def test_a_start_that_fails_is_tried_again_though_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Decisions(monkeypatch, a_job("a"))
    world.at(1)
    assert world.at(2) == 0
    assert world.engine.calls == [("start", "a.1")] * 2, "asked until the engine has seen it"


def test_an_urgent_job_is_looked_at_when_those_it_may_stop_have_run_their_least_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = Rules(preempt="priority", min_run_s=60)
    world = Decisions(monkeypatch, a_job("low", gpus=2, priority="background"))
    world.at(10, rules)
    world.engine.sees["low.1"] = Observation(lease="low.1", state="running", started_s=10)
    world.submit(a_job("urgent", gpus=2, priority="urgent"), at_s=20)
    assert [world.at(now_s, rules) for now_s in (20, 21, 69, 70)] == [1, 0, 0, 1]
    assert world.fleet.jobs["low"].phase == "stopping"


def test_a_least_time_of_its_own_is_waited_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at when the rules' least time was over, and then not before the next review."""
    rules = Rules(preempt="priority", min_run_s=60, rerank_s=3600)
    world = Decisions(monkeypatch, a_job("low", gpus=2, priority="background", min_run_s=100))
    world.at(10, rules)
    world.engine.sees["low.1"] = Observation(lease="low.1", state="running", started_s=10)
    world.submit(a_job("urgent", gpus=2, priority="urgent"), at_s=20)
    assert [world.at(now_s, rules) for now_s in (20, 80, 109, 110)] == [1, 0, 0, 1]
    assert world.fleet.jobs["low"].phase == "stopping"
