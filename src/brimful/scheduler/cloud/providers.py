"""The provider port: whoever makes nodes for money, and takes them back.

An order is in the log before a provider hears of it, and every act is idempotent by the node's name: a crash
between the two is mended by the next tick. What carries our tag and is in no log is removed.
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
    """The provider will not make this node: no capacity, a quota, another price. Nothing is billed."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a provider says of one node that carries our tag."""

    node: str
    state: Literal["starting", "ready", "gone"]
    at_s: int  # since when, by our clock
    problem: Said | None = None  # why it is gone, or slow to start
    address: str = ""  # where it is reached, once it is ready


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def sites(self) -> Sequence[str]:
        """Where the nodes join that it makes for engines which are told of them (`Takes`)."""

    def offers(self) -> Sequence[Offer]:
        """What it sells. The very same list again means that nothing has changed."""

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        """Begin to make each, once. CannotMake only where it is certain that nothing of it is or will be
        there; any other failure leaves that open, and it is asked again.
        """

    def watch(self) -> Sequence[Made]:
        """Every node with our tag. One that is not named is not there."""

    def remove(self, nodes: Sequence[str]) -> Failures:
        """End each, made or not. Its bill ends once `watch` does not name it, or calls it gone."""


class Host(NamedTuple):
    """A machine that an engine may use, and where it is reached."""

    node: Node
    address: str


@runtime_checkable
class Takes(Protocol):
    """An engine whose machines others make."""

    def take(self, hosts: Mapping[str, Host]) -> None:
        """These are the site's machines now, by node: all of them. It never waits."""
