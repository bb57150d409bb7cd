"""What the bridge makes of a Ray whose nodes cannot be told apart; the rest is tested on a real one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brimful.adapters.engines.ray import bridge as bridge_module
from brimful.adapters.engines.ray.bridge import BUSY_S, PLACED_S, Bridge, Settings, Waiting
from brimful.adapters.engines.ray.engine import STRAY_S, RayEngine
from brimful.adapters.engines.ray.raylets import Raylets
from brimful.errors import WorldFailed
from brimful.fleet.state import Node
from brimful.scheduler.ports import Observation, Start
from tests.builders import a_job, refuses
from tests.builders import a_node as a_fleet_node


def a_bridge(*nodes: dict[str, Any]) -> Bridge:
    made = Bridge.__new__(Bridge)  # without a cluster
    made._ray, made._raylets = SimpleNamespace(nodes=lambda: list(nodes)), Raylets()
    return made


def a_node(
    name: str, node_id: str, *, gpus: int = 4, alive: bool = True, address: str = "127.0.0.5"
) -> dict[str, Any]:
    resources = {"GPU": gpus} if gpus else {}
    # Nobody listens at port 0, and nobody ever did.
    facts = {"NodeName": name, "NodeID": node_id, "NodeManagerAddress": address, "NodeManagerPort": 0}
    return {**facts, "Alive": alive, "Resources": resources}


def test_two_machines_of_one_name_make_the_site_silent_rather_than_lose_a_lease() -> None:
    with refuses(WorldFailed, "adapters.ray_name_twice"):
        a_bridge(a_node("n", "a"), a_node("n", "b", address="127.0.0.6"))._alive()


def test_a_node_that_was_started_again_counts_by_its_second_life() -> None:
    bridge = a_bridge(a_node("n", "a"), a_node("n", "b"))
    assert bridge._alive()["n"]["NodeID"] == "b"


def test_one_that_is_dead_or_has_no_gpus_is_in_nobodys_way() -> None:
    bridge = a_bridge(a_node("n", "a", alive=False), a_node("n", "b"), a_node("n", "c", gpus=0))
    assert bridge._alive()["n"]["NodeID"] == "b"


class FakeRay:
    """A node of four GPUs, and a lease of four that waits for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = {"new": "PENDING"}  # of placement groups
        self.set_aside: dict[str, float] = {}  # GPUs by placement group
        self.used, self.now = 0.0, 0.0
        state = SimpleNamespace(
            available_resources_per_node=lambda: {"a": {"GPU": 4 - self.used}},
            total_resources_per_node=lambda: {"a": {f"GPU_group_{k}": n for k, n in self.set_aside.items()}},
        )
        for name, module in {"ray": None, "ray._private": None, "ray._private.state": state}.items():
            monkeypatch.setitem(sys.modules, name, module or SimpleNamespace())
        monkeypatch.setattr(bridge_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.bridge = a_bridge(a_node("n", "a"))
        self.bridge._set = Settings("", "mine", "", a_fleet_node(), {})
        self.bridge._ray.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.bridge._ray.util = SimpleNamespace(
            placement_group_table=self._table, remove_placement_group=lambda _: None
        )
        start = Start("new", a_job("new", gpus=4), (("n", (0, 1, 2, 3)),))
        self.bridge._waiting = {"new": Waiting(start, {}, SimpleNamespace(wait=lambda _: False), 0.0)}
        self.bridge._never = {}
        self.bridge._ask = lambda names, *_, **__: {name: [] for name in names}  # type: ignore[method-assign]

    def _table(self) -> dict[str, dict[str, str]]:
        return {
            each: {"name": f"mine|{each}|n", "placement_group_id": each, "state": state}
            for each, state in self.states.items()
        }

    def after(self, now: float) -> str:
        """What is said of the lease then."""
        self.now = now
        self.bridge._begin_placed(within_s=0)
        waits, never = self.bridge._waiting, self.bridge._never
        said = bridge_module._not_placed(
            waits["new"] if waits else never["new"][0], None if waits else "failed"
        )
        assert said.problem is not None
        return f"{said.state} {said.problem.as_dict()['code']}"


def test_gpus_that_our_own_ended_lease_still_holds_are_not_held_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = FakeRay(monkeypatch)
    ray.states["old"], ray.set_aside["old"], ray.used = "REMOVED", 4.0, 4.0
    assert ray.bridge._others(ray.bridge._alive()) == {"n": 0.0}
    assert ray.after(PLACED_S + 1) == "waiting adapters.ray_places"
    assert ray.after(BUSY_S + 1) == "ended adapters.ray_too_slow"


def test_a_lease_whose_gpus_others_hold_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(monkeypatch)
    ray.used = 1.0
    assert ray.after(PLACED_S - 1) == "waiting adapters.ray_not_placed"
    assert ray.after(PLACED_S + 1) == "ended adapters.ray_not_placed"


def an_engine(folder: Path, *, used: str, through: Sequence[str] = ()) -> RayEngine:
    node = Node(site="ray", node="", gpu="", gpus=0, microusd_per_gpu_hour=0, declared=False)
    return RayEngine(folder, Settings("127.0.0.1:6399", "mine", used, node, {}), through=through)


def test_without_ray_every_look_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(name='ray')")
    engine = an_engine(tmp_path / "site", used="/a", through=["env", f"PYTHONPATH={tmp_path}"])
    for _ in range(3):
        with refuses(WorldFailed, "adapters.ray_failed", "127.0.0.1:6399") as caught:
            engine.nodes()
        assert caught.value.said.as_dict()["why"]["code"] == "adapters.no_ray"


def test_an_address_where_nobody_listens_is_named_at_every_look(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("")
    engine = an_engine(tmp_path / "site", used="/a", through=["env", f"PYTHONPATH={tmp_path}"])
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        engine._settings = engine._settings._replace(address=address)
        for _ in range(2):
            with refuses(WorldFailed, "adapters.ray_failed", address) as caught:
                engine.nodes()
            assert "refused" in str(caught.value.said.as_dict()["why"])


def test_a_new_folder_counts_once_no_lease_is_left_in_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(engine: RayEngine, method: str, *arguments: Any) -> Any:
        asked.append((method, engine._used_folder()))
        if method == "nodes":
            return [], {}
        return {} if method == "start" else [Observation(lease, "ended") for lease in arguments[0]]

    monkeypatch.setattr(RayEngine, "_ask", answer)
    an_engine(tmp_path, used="/a").start([Start("j.1", a_job("j", gpus=1), (("n", (0,)),))])
    moved = an_engine(tmp_path, used="/b")
    moved.nodes()
    assert [said.as_dict()["wanted"] for said in moved.complaints().values()] == ["/b"]
    moved.observe(["j.1"])
    moved.nodes()
    assert asked == [("start", "/a"), ("nodes", "/a"), ("observe", "/a"), ("nodes", "/b")]
    assert not moved.complaints()


def test_a_record_of_a_lease_that_nobody_asks_about_keeps_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RayEngine, "_ask", lambda _, method, *__: {} if method == "start" else [])
    engine = an_engine(tmp_path, used="/a")
    engine.start([Start("j.1", a_job("j", gpus=1), (("n", (0,)),))])
    record = engine._placed("j.1")
    engine.observe([])
    assert record.exists(), "it may have been ordered after the loop told us what it knows"
    made_s = record.stat().st_mtime
    os.utime(record, (made_s, made_s - STRAY_S - 1))
    engine.observe([])
    assert not record.exists()
