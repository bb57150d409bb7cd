"""Which nodes of Ray are dead: real sockets in place of raylets, and a clock of our own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from brimful.adapters.engines.ray import raylets
from brimful.adapters.engines.ray.raylets import EVERY_S, Raylets


class Looks:
    """One look after another, each when it is time for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._raylets = 0.0, Raylets()
        monkeypatch.setattr(raylets, "time", SimpleNamespace(monotonic=lambda: self.now))

    def dead(self, *nodes: dict[str, Any]) -> set[str]:
        self.now += EVERY_S
        return set(self._raylets.dead(nodes))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
def raylet() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as made:
        yield made


def node(raylet: socket.socket, node_id: str = "a") -> dict[str, Any]:
    address, port = raylet.getsockname()
    return {"NodeID": node_id, "NodeManagerAddress": address, "NodeManagerPort": port}


def test_one_that_refuses_where_it_accepted_before_is_dead(looks: Looks, raylet: socket.socket) -> None:
    its = node(raylet)
    assert looks.dead(its) == set()
    raylet.close()
    assert looks.dead(its) == {"a"}
    assert looks.dead(its) == {"a"}


def test_one_that_was_never_reached_is_not_dead(looks: Looks, raylet: socket.socket) -> None:
    """A firewall in between may reject us from the beginning."""
    its = node(raylet)
    raylet.close()
    assert looks.dead(its) == set()


def test_one_that_is_too_busy_to_accept_is_not_dead(
    looks: Looks, raylet: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raylets, "CONNECT_S", 0.05)
    its = node(raylet)
    assert looks.dead(its) == set()
    while raylets._accepts(its):  # its queue is full in the end: nobody takes anything out
        pass
    assert raylets._accepts(its) is None
    assert looks.dead(its) == set()


def test_it_is_forgotten_with_its_node_and_another_node_is_not_dead_for_it(
    looks: Looks, raylet: socket.socket
) -> None:
    its = node(raylet)
    looks.dead(its)
    raylet.close()
    with socket.create_server(("127.0.0.1", 0)) as another:
        assert looks.dead(its, node(another, "b")) == {"a"}
        assert looks.dead(node(another, "b")) == set()


def test_nobody_is_asked_more_than_once_a_second(looks: Looks, raylet: socket.socket) -> None:
    its = node(raylet)
    looks.dead(its)
    raylet.close()
    assert looks._raylets.dead([its]) == frozenset()
    assert looks.dead(its) == {"a"}
