"""What the bridge makes of a Ray whose nodes cannot be told apart; the rest is tested on a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from brimful.adapters.engines.ray.bridge import Bridge
from brimful.errors import WorldFailed
from tests.builders import refuses


def a_bridge(*nodes: dict[str, Any]) -> Bridge:
    made = Bridge.__new__(Bridge)  # without a cluster
    made._ray = SimpleNamespace(nodes=lambda: list(nodes))
    return made


def a_node(
    name: str, node_id: str, *, gpus: int = 4, alive: bool = True, address: str = "10.0.0.5"
) -> dict[str, Any]:
    resources = {"GPU": gpus} if gpus else {}
    facts = {"NodeName": name, "NodeID": node_id, "NodeManagerAddress": address}
    return {**facts, "Alive": alive, "Resources": resources}


def test_two_machines_of_one_name_make_the_site_silent_rather_than_lose_a_lease() -> None:
    with refuses(WorldFailed, "adapters.ray_name_twice"):
        a_bridge(a_node("n", "a"), a_node("n", "b", address="10.0.0.6"))._alive()


def test_a_node_that_was_started_again_counts_by_its_second_life() -> None:
    bridge = a_bridge(a_node("n", "a"), a_node("n", "b"))
    assert bridge._alive()["n"]["NodeID"] == "b"


def test_one_that_is_dead_or_has_no_gpus_is_in_nobodys_way() -> None:
    bridge = a_bridge(a_node("n", "a", alive=False), a_node("n", "b"), a_node("n", "c", gpus=0))
    assert bridge._alive()["n"]["NodeID"] == "b"
