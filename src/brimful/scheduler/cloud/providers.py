"""The provider port: anything that makes nodes for money and takes them back.

An order is in the log before a provider hears of it, and every act is idempotent by node name: the next tick
repairs a crash between the two. A node that carries our tag and is in no log is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from brimful.errors import Refused, Said
from brimful.fleet.events import NodeOrdered
from brimful.fleet.node import Node
from brimful.scheduler.ports import Failures
from brimful.specs.offer import Offer


class CannotMake(Refused):
    """The provider will not make this node: no capacity, a quota, or a changed price. Nothing is billed."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a provider reports about one node with our tag."""

    node: str
    state: Literal["starting", "ready", "gone"]
    at_s: int  # since when, by our clock
    problem: Said | None = None  # why it is gone, or slow to start
    address: str = ""  # where to reach it, once it is ready


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def sites(self) -> Sequence[str]:
        """The sites its nodes join, for engines that are told about them (`Takes`)."""

    def offers(self) -> Sequence[Offer]:
        """What it sells. Returning the identical list object means that nothing has changed."""

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        """Start making each node, once. Raise CannotMake only if it is certain that no part of the node
        exists or will; after any other failure the outcome is open and the call is repeated."""

    def watch(self) -> Sequence[Made]:
        """Every node with our tag. A node that is not listed does not exist."""

    def remove(self, nodes: Sequence[str]) -> Failures:
        """Remove each node, made or not. Billing ends once `watch` no longer lists it, or reports it gone."""


class Host(NamedTuple):
    """A machine that an engine may use, and its address."""

    node: Node
    address: str


@runtime_checkable
class Takes(Protocol):
    """An engine whose machines are made by others."""

    def take(self, hosts: Mapping[str, Host]) -> None:
        """The site's machines now, by node, complete. Must not block."""
