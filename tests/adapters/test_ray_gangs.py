"""A gang over two Ray nodes whose start we order again: what has begun goes on, or ends as nobody's failure.

The agents and their runners are real; Ray between them and the bridge is not.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brimful.adapters.engines import local, runner
from brimful.adapters.engines.agent import NodeAgent
from brimful.adapters.engines.processes import held
from brimful.adapters.engines.ray import bridge
from brimful.adapters.engines.ray.bridge import BUSY_S, Bridge, Held
from brimful.adapters.engines.ray.raylets import Raylets
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.language import say, verbatim
from brimful.scheduler.ports import Observation, Start
from tests.builders import a_node, eventually

NODES = ("n-0", "n-1")
PARTS: Parts = (("n-0", (0,)), ("n-1", (0,)))


class NoAnswerError(Exception):
    """In place of Ray's own."""


class Gang(Bridge):
    """The lease a.1, and what happens to calls on their way to an agent and back."""

    def __init__(self, folder: Path) -> None:
        self.unheard: set[tuple[str, str]] = set()  # node and method: it never gets there
        self.unanswered: set[tuple[str, str]] = set()  # it is carried out, but the answer is late
        self.given_back: list[Any] = []  # placement groups that were removed
        self.is_placed = True
        self.held: dict[str, Held] = {}
        facts = {"NodeManagerAddress": "127.0.0.1", "Alive": True, "Resources": {"GPU": 4}}
        self.raylets = {name: socket.create_server(("127.0.0.1", 0)) for name in NODES}
        ports = {name: raylet.getsockname()[1] for name, raylet in self.raylets.items()}
        self._raylets = Raylets()
        self._ray = SimpleNamespace(
            nodes=lambda: [
                {**facts, "NodeName": name, "NodeID": name, "NodeManagerPort": ports[name]} for name in NODES
            ],
            get=self._answer,
            exceptions=SimpleNamespace(RayError=NoAnswerError),
            util=SimpleNamespace(remove_placement_group=self.given_back.append),
        )
        self.agents = {name: NodeAgent(str(folder), a_node(name, gpus=4), {}) for name in NODES}
        self._agents, self._waiting, self._never, self._failed = {}, {}, {}, {}
        self._orphans, self._away_since = SimpleNamespace(late=lambda *_: []), {}  # type: ignore[assignment]
        job = Job(job="a", gpus=2, command=("sleep", "1000"), folder=str(folder))
        self.order = Start("a.1", job, PARTS)

    def _agent(self, name: str, alive: object) -> Any:
        return _Remote(self, name)

    def call(self, name: str, method: str, *arguments: object) -> object:
        heard = (name, method) not in self.unheard
        found = getattr(self.agents[name], method)(*arguments) if heard else None
        return found if heard and (name, method) not in self.unanswered else NoAnswerError()

    def _answer(self, asked: Any, timeout: float) -> Any:
        for each in asked if isinstance(asked, list) else [asked]:
            if isinstance(each, NoAnswerError):
                raise each
        return asked

    def _place(self, lease: str, parts: Parts) -> Any:
        return SimpleNamespace(wait=lambda _: True)

    def _held(self) -> dict[str, Held]:
        return self.held

    def _created(self) -> set[str]:
        return {"a.1"} if self.is_placed else set()

    def _others(self, alive: Any) -> dict[str, float]:
        return dict.fromkeys(NODES, 0.0)

    def _draining(self, alive: object) -> dict[str, int]:
        return {}

    def _devices(self, parts: Parts, group: object) -> list[tuple[int, ...]]:
        return [gpus for _, gpus in parts]

    def ordered(self) -> dict[str, BrimfulError]:
        return self.start([(self.order, {}, None)], {})

    def look(self) -> Observation | None:
        return next(iter(self.observe({"a.1": NODES})), None)

    def waits_for(self, state: str) -> Observation:
        seen: list[Observation | None] = []

        def found() -> bool:
            seen[:] = [self.look()]
            assert seen[0] is None or seen[0].state in ("waiting", state), seen[0]
            return seen[0] is not None and seen[0].state == state

        eventually(found)
        assert seen[0] is not None
        return seen[0]

    def ends(self) -> Observation:
        """It runs until then, or nothing is said of it."""
        seen: list[Observation | None] = []

        def found() -> bool:
            seen[:] = [self.look()]
            return seen[0] is not None and seen[0].state == "ended"

        eventually(found)
        assert seen[0] is not None
        return seen[0]


class _Remote:
    def __init__(self, gang: Gang, name: str) -> None:
        self._gang, self._name = gang, name

    def __getattr__(self, method: str) -> object:
        return SimpleNamespace(remote=lambda *given: self._gang.call(self._name, method, *given))


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    made = Gang(tmp_path)
    yield made
    for raylet in made.raylets.values():
        raylet.close()
    made.unheard, made.unanswered = set(), set()
    for agent in made.agents.values():
        agent.stop(["a.1"], 1)
        eventually(lambda agent=agent: not agent.observe(["a.1"])[1])  # type: ignore[misc]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runners on n-1 wait for this file before they do anything."""
    gate, slow = tmp_path / "gate", tmp_path / "slow"
    waits = f"until [ -e {gate} ]; do sleep 0.05; done"
    slow.write_text(f'#!/bin/sh\ncase "$*" in */n-1/*) {waits};; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(local, "sys", SimpleNamespace(executable=str(slow)))
    yield gate
    gate.touch()


def begun(gang: Gang, name: str) -> bool:
    return gang.agents[name].begun(["a.1"]) == ["a.1"]


def runs(gang: Gang, name: str) -> bool:
    return [each.observation.state for each in gang.agents[name].observe(["a.1"])[0]] == ["running"]


def test_a_gang_ordered_again_while_one_of_its_runners_is_slow_goes_on(gang: Gang, gate: Path) -> None:
    assert gang.ordered() == {}
    assert begun(gang, "n-1"), "its runner lives, whatever it has written by now"
    eventually(lambda: runs(gang, "n-0"))
    assert gang.ordered() == {}
    gate.touch()
    gang.waits_for("running")


def test_a_start_whose_answer_is_late_goes_on_when_it_is_ordered_again(gang: Gang) -> None:
    gang.unanswered = {("n-1", "start")}
    assert isinstance(gang.ordered()["a.1"], WorldFailed)
    gang.unanswered = {("n-1", "begun")}
    eventually(lambda: runs(gang, "n-0"))
    assert gang.ordered() == {}
    gang.waits_for("running")


def test_agents_that_do_not_say_what_has_begun_are_sent_no_second_start(gang: Gang) -> None:
    gang.ordered()
    gang.waits_for("running")
    starts: list[object] = []
    for agent in gang.agents.values():
        agent.start = starts.append  # type: ignore[method-assign,assignment]
    gang.unanswered = {(name, "begun") for name in NODES}
    assert gang.ordered() == {}
    assert gang.waits_for("waiting").problem, "its agents are busy, it seems"
    gang.unanswered = set()
    gang.waits_for("running")
    assert not starts


@pytest.fixture
def leave(gang: Gang, tmp_path: Path) -> Iterator[Path]:
    """A gang that runs, and ends when this file is there, not when it is told to stop."""
    leave = tmp_path / "leave"
    deaf = f"trap '' TERM; echo up; until [ -e {leave} ]; do sleep 0.05; done"
    job = replace(gang.order.job, command=("/bin/sh", "-c", deaf))
    gang.order = gang.order._replace(job=job)
    gang.ordered()
    gang.waits_for("running")
    eventually(lambda: all(b"up" in agent.log("a.1", 0, 9).data for agent in gang.agents.values()))
    yield leave
    leave.touch()


def test_a_stop_while_no_agent_says_what_has_begun_leaves_the_gang_its_grace_and_its_gpus(
    gang: Gang, leave: Path
) -> None:
    gang.unanswered = {(name, "begun") for name in NODES}
    assert gang.ordered() == {}
    assert gang.stop(["a.1"], 600) == {}
    for _ in range(3):
        assert gang.waits_for("running").cause is None, "it has its grace"
    assert gang.given_back == []
    gang.unanswered = set()
    leave.touch()
    assert gang.ends().cause == "stopped_by_us"


def test_gpus_that_ray_does_not_place_again_do_not_end_a_gang_that_may_have_begun(
    gang: Gang, leave: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang.unanswered = {(name, "begun") for name in NODES}
    gang.is_placed = False  # a head without memory is back
    gang.ordered()
    now_s = time.monotonic() + BUSY_S + 1
    monkeypatch.setattr(bridge, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    assert gang.waits_for("waiting").problem, "its agents are busy, it seems"
    gang.unanswered = set()
    gang.waits_for("running")
    assert gang.given_back == []
    assert not leave.exists()


def test_a_gang_that_was_never_begun_is_over_with_its_stop(gang: Gang) -> None:
    gang.is_placed = False
    gang.ordered()
    assert gang.stop(["a.1"], 600) == {}
    assert gang.waits_for("ended").cause == "stopped_by_us"
    assert len(gang.given_back) == 1
    gang.is_placed = True
    gang.ordered()
    assert not any(agent.observe(["a.1"])[1] for agent in gang.agents.values())


@pytest.mark.parametrize("was_begun_at", NODES)
def test_a_gang_that_lacks_a_rank_is_given_up_and_it_is_not_the_jobs_failure(
    gang: Gang, was_begun_at: str
) -> None:
    lacks = next(name for name in NODES if name != was_begun_at)
    gang.unheard = {(lacks, "start")}
    assert isinstance(gang.ordered()["a.1"], WorldFailed)
    eventually(lambda: runs(gang, was_begun_at))
    gang.unheard = set()
    assert gang.ordered() == {}
    ended = gang.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None)
    assert ended.problem == say("adapters.gang_incomplete")
    gang.ordered()
    assert begun(gang, lacks), "a start that comes too late finds that"
    assert gang.waits_for("ended").cause == "preempted_by_engine"


def test_a_gang_of_which_one_rank_is_refused_is_reported_once_the_other_has_ended(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = WorldFailed(verbatim("no processes left"))

    def part_of(*_: object) -> None:
        raise refused

    monkeypatch.setattr(gang.agents["n-1"]._engine, "_local_order", part_of)
    assert isinstance(gang.ordered()["a.1"], WorldFailed)
    ended = gang.waits_for("ended")
    assert not any(agent.observe(["a.1"])[1] for agent in gang.agents.values())
    assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None)
    assert ended.problem == refused.said


def test_a_gang_that_every_node_refuses_is_started_when_it_is_ordered_again(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for agent in gang.agents.values():
            patch.setattr(agent._engine, "start", lambda _: {"a.1": WorldFailed(verbatim("not now"))})
        assert str(gang.ordered()["a.1"].said) == "not now"
    assert gang.ordered() == {}
    gang.waits_for("running")


def test_a_node_whose_raylet_died_is_lost_before_ray_says_so(gang: Gang) -> None:
    gang.ordered()
    gang.waits_for("running")
    gang.held = {"a.1": Held("the group", "a.1", NODES)}
    gang.raylets["n-1"].close()
    gang.unheard = {("n-1", method) for method in ("observe", "stop", "begun")}
    ended = gang.ends()
    assert (ended.cause, ended.exit_code) == ("node_lost", None)
    assert ended.problem == say("adapters.node_lost", node="n-1")
    assert set(gang._alive()) == {"n-0"}
    assert gang.given_back == ["the group"]


def test_a_detached_runner_holds_its_lock_before_its_parent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def fork() -> int:
        found.append(held(tmp_path / "lock"))
        return 1

    def end(_: int) -> None:
        raise SystemExit

    (tmp_path / "order.json").write_text("{}")
    monkeypatch.setenv("BRIMFUL_DETACH", "1")
    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit):
        runner.main(tmp_path)
    assert found == [True]
