"""What `tick` makes of what engines tell: causes, reasons, clocks, real GPUs, and what others hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fleet.events import Cause, Event, JobSubmitted, LeaseEnded, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.language import verbatim
from brimful.scheduler.loop import Tick, tick
from brimful.scheduler.ports import Failures, Observation, Ports, Start
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import ScriptedEngine, a_job, a_node, code_of


class Noting(ScriptedEngine):
    def __init__(self, site: str, *nodes: Node) -> None:
        super().__init__(*(replace(node, site=site) for node in nodes))
        self.site = site
        self.starts: list[Start] = []

    def start(self, starts: Any) -> Failures:
        self.starts += starts
        return super().start(starts)


class World:
    def __init__(self, *engines: Noting) -> None:
        self.engines = {each.site: each for each in engines}
        self.store, self.fleet = MemoryStore(), Fleet()
        self.ports = Ports(store=self.store, engines=self.engines)

    def submit(self, *jobs: Job) -> World:
        events: list[Event] = [JobSubmitted(at_s=0, job=job) for job in jobs]
        assert self.store.append(events, after=len(self.store.log))
        return self

    def tick(self, now_s: int = 1) -> Tick:
        return tick(self.fleet, self.ports, Rules(), now_s=now_s)

    def sees(self, lease: str, state: Any, **more: Any) -> World:
        site = self.fleet.open_leases[lease].site
        self.engines[site].sees[lease] = Observation(lease=lease, state=state, **more)
        return self


def a_world(*jobs: Job, gpus: int = 2, **node: Any) -> World:
    return World(Noting("here", replace(a_node(gpus=gpus), **node))).submit(*jobs)


@pytest.mark.parametrize(
    ("cause", "phase", "failures"),
    [("failed", "failed", 1), ("node_lost", "starting", 0), ("preempted_by_engine", "starting", 0)],
)
def test_only_a_job_that_failed_uses_up_a_try(cause: Cause, phase: str, failures: int) -> None:
    world = a_world(a_job("a", retries=0))
    world.tick()
    world.sees("a.1", "ended", started_s=2, ended_s=3, cause=cause)
    world.tick(now_s=3)
    state = world.fleet.jobs["a"]
    assert (state.phase, state.failures) == (phase, failures)


def test_a_cancelled_job_does_not_go_on_though_its_node_was_lost() -> None:
    world = a_world(a_job("a"))
    world.tick()
    world.fleet.jobs["a"].cancel_requested = True
    world.sees("a.1", "ended", started_s=2, ended_s=3, cause="node_lost")
    world.tick(now_s=3)
    assert world.fleet.jobs["a"].phase == "cancelled"


def test_the_reason_of_an_engine_that_has_not_begun_a_lease_is_kept_until_it_does() -> None:
    world = a_world(a_job("a"))
    world.tick()
    world.sees("a.1", "waiting", problem=verbatim("Resources"))
    world.tick(now_s=2)
    assert (world.ports.waiting, world.fleet.jobs["a"].phase) == ({"a.1": verbatim("Resources")}, "starting")
    world.sees("a.1", "running", started_s=3)
    world.tick(now_s=4)
    world.submit(a_job("b"))
    world.tick(now_s=5)
    assert world.ports.waiting == {}


def test_a_start_is_counted_by_our_clock() -> None:
    world = a_world(a_job("a"))
    world.tick()
    world.sees("a.1", "ended", started_s=1105, ended_s=1115, exit_code=0, skew_s=1000.0, exit_codes=(0, 0))
    world.tick(now_s=200)
    started, ended = (each for each in world.store.log if isinstance(each, LeaseStarted | LeaseEnded))
    assert (started.at_s, ended.at_s) == (105, 115)
    assert world.fleet.jobs["a"].leases[0].exit_codes == (0, 0)


@pytest.mark.parametrize(
    ("now_s", "started_s", "ended_s", "billed_s"),
    [
        (20_700, 20_001, 20_601, 600),  # nothing happened to the clock
        (13_500, 12_801, 13_401, 600),  # set back by two hours, the server's too: not nothing
        (20_700, 12_801, 13_401, 600),  # only the engine's
        (20_700, 0, 20_650, 699),  # a job may lie in what it writes: no later than now
        (13_500, 0, 13_401, 13_401),
        (13_500, -200_000, 13_401, 86_400),
    ],
)
def test_a_lease_is_billed_for_as_long_as_its_engine_says_whatever_became_of_the_clock(
    now_s: int, started_s: int, ended_s: int, billed_s: int
) -> None:
    world = a_world(a_job("a"))
    world.tick(now_s=20_000)
    world.sees("a.1", "running", started_s=20_001)
    world.tick(now_s=20_002)
    world.sees("a.1", "ended", started_s=started_s, ended_s=ended_s, exit_code=0)
    world.tick(now_s=now_s)
    assert world.fleet.jobs["a"].leases[0].billed_s(0) == billed_s


def test_a_lease_holds_the_gpus_on_which_its_engine_put_it() -> None:
    world = World(Noting("here", a_node("n-0", gpus=2), a_node("n-1", gpus=2))).submit(a_job("a"))
    world.tick()
    assert world.fleet.open_leases["a.1"].parts == (("n-0", (0,)),)
    world.sees("a.1", "running", started_s=1, runs_on=(("n-1", (1,)),))
    assert world.tick(now_s=2).problems == {}
    assert world.fleet.open_leases["a.1"].parts == (("n-1", (1,)),)
    assert (world.fleet.free("n-0"), world.fleet.free("n-1")) == ((0, 1), (0,))
    assert list(world.fleet.leases_on["n-1"]) == ["a.1"]
    world.sees("a.1", "ended", started_s=1, ended_s=4, exit_code=0)
    world.tick(now_s=4)
    assert world.fleet.free("n-1") == (0, 1)


def test_a_lease_is_not_moved_onto_gpus_of_another_and_that_is_told() -> None:
    world = a_world(a_job("a"), a_job("b"))
    world.tick()
    world.sees("a.1", "running", started_s=1, runs_on=(("node-0", (1,)),))
    found = world.tick(now_s=2).problems
    assert code_of(found["here"]) == "scheduler.runs_elsewhere"
    assert world.fleet.open_leases["a.1"].parts == (("node-0", (0,)),)


def test_where_gpus_are_chosen_by_count_the_engines_indices_are_not_ours() -> None:
    world = a_world(a_job("a"), a_job("b"), chosen_by="count")
    world.tick()
    world.sees("a.1", "running", started_s=1, runs_on=(("node-0", (1,)),))
    assert world.tick(now_s=2).problems == {}
    lease = world.fleet.open_leases["a.1"]
    assert (lease.gpus, lease.runs_on) == ((0,), (("node-0", (1,)),))


@pytest.mark.parametrize("chosen_by", ["index", "count"])
def test_nothing_starts_on_gpus_that_others_hold(chosen_by: Any) -> None:
    world = a_world(a_job("a", gpus=2), gpus=4, chosen_by=chosen_by, taken=(0, 1, 3))
    world.tick()
    assert world.fleet.jobs["a"].phase == "waiting"
    world.engines["here"].has = [replace(world.engines["here"].has[0], taken=(0, 3))]
    world.tick(now_s=2)
    expected = (1, 2) if chosen_by == "index" else (0, 1)
    assert world.fleet.open_leases["a.1"].gpus == expected
    world.sees("a.1", "ended", started_s=2, ended_s=3, exit_code=0)
    world.tick(now_s=3)
    assert len(world.fleet.free("node-0")) == 2, "what others hold does not come back with the lease"


def test_a_stranger_who_took_what_a_lease_was_granted_keeps_it_when_the_lease_is_handed_back() -> None:
    """By count: between the decision and the start, somebody else was faster."""
    world = a_world(a_job("a", gpus=4), gpus=4, chosen_by="count")
    world.tick()
    world.engines["here"].has = [replace(world.engines["here"].has[0], taken=(0, 1, 2))]
    world.tick(now_s=2)
    world.sees("a.1", "ended", cause="preempted_by_engine")
    world.tick(now_s=3)
    assert len(world.fleet.free("node-0")) == 1
    assert world.fleet.jobs["a"].phase == "waiting"
    world.engines["here"].has = [replace(world.engines["here"].has[0], taken=())]
    world.tick(now_s=4)
    assert len(world.fleet.open_leases["a.2"].gpus) == 4


def test_two_sites_may_have_a_node_of_the_same_name() -> None:
    east, west = Noting("east", a_node("gpu-0", gpus=1)), Noting("west", a_node("gpu-0", gpus=1))
    world = World(east, west).submit(a_job("a"), a_job("b"))
    world.tick()
    assert sorted(world.fleet.nodes) == ["gpu-0", "gpu-0@west"]
    assert [each.parts for each in (*east.starts, *west.starts)] == [(("gpu-0", (0,)),)] * 2
    (there,) = (lease.lease for lease in world.fleet.open_leases.values() if lease.site == "west")
    world.sees(there, "running", started_s=1, runs_on=(("gpu-0", (0,)),))
    assert world.tick(now_s=2).problems == {}
    east.has = []
    world.tick(now_s=3)
    assert sorted(world.fleet.nodes) == ["gpu-0@west"], "a node keeps its name"


def test_work_that_no_checkpoint_proves_at_the_next_start_is_lost() -> None:
    world = a_world(a_job("a", retries=5))
    world.tick()
    world.sees("a.1", "ended", started_s=100, ended_s=200, exit_code=1, kept_work_s=80.0)
    world.tick(now_s=200)
    state = world.fleet.jobs["a"]
    assert (state.kept_work_s, state.kept_until_s) == (80.0, 180)
    assert world.engines["here"].starts[-1].kept_until_s == 180
    world.sees("a.2", "running", started_s=210, resumes_s=150)
    world.tick(now_s=210)
    assert (state.kept_work_s, state.lost_work_s) == (50.0, 30.0)
