"""What providers sell, and the nodes they made for us: for which jobs, and at what cost.

A node is billed from ready to gone, at the price of its offer, which may change meanwhile: at least
`least_s`, and in whole quanta. Money is counted exactly, in micro-dollars per hour x seconds, and rounded up
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from brimful.errors import Said
from brimful.fleet.events import (
    Event,
    NodeEnd,
    NodeGone,
    NodeOrdered,
    NodeReady,
    NodeReturned,
    OfferSeen,
    Parts,
)
from brimful.fleet.node import Pool
from brimful.units import HOUR_S

CLOUD = frozenset({OfferSeen, NodeOrdered, NodeReady, NodeReturned, NodeGone})  # the events folded here
REFUSED_S = 300  # pause after a refusal, doubled each time
REFUSED_DOUBLINGS = 4
NOT_USABLE = "scheduler.node_not_usable"  # why a node that never joined is returned
GONE_KEPT = 1000  # how many removed nodes are still shown


def trouble_with(provider: str) -> str:
    """Its name among problems: a site may share its provider's name and be healthy."""
    return f"provider {provider}"


@dataclass(slots=True, kw_only=True)
class Machine:
    """A node that a provider is making, has made or had made."""

    order: NodeOrdered
    offer: OfferSeen  # as it was ordered
    prices: list[tuple[int, int]]  # (from when, price of the whole node per hour)
    job: str  # the job it is kept for; empty: any
    ready_s: int | None = None
    away_s: int | None = None  # since when it is ready but unknown to its engine
    joined: bool = False  # whether its engine ever saw it
    used_s: int | None = None  # when a lease there last began or ended
    returned_s: int | None = None
    returned: Said | None = None
    gone_s: int | None = None
    cause: NodeEnd | None = None
    reason: Said | None = None

    @property
    def node(self) -> str:
        return self.order.node

    @property
    def pool(self) -> Pool:
        return self.order.pool

    @property
    def was_useless(self) -> bool:
        """Whether it counts as a refusal, since otherwise it would be bought again at once: it was taken back
        or given up before its engine ever saw it. One that its job no longer wanted does not count."""
        given_up = self.returned is not None and self.returned.as_dict().get("code") == NOT_USABLE
        return self.ready_s is not None and not self.joined and (self.cause == "evicted" or given_up)

    @property
    def microusd_per_hour(self) -> int:
        """Of the whole node, now or most recently."""
        return self.prices[-1][1]

    def billed_until_s(self, now_s: int) -> int:
        """Until when the provider would bill it if it were gone now."""
        assert self.ready_s is not None
        quantum_s = max(1, self.offer.quantum_s)
        ran_s = max(0, (now_s if self.gone_s is None else self.gone_s) - self.ready_s)
        if self.cause == "evicted":  # an evicted node is billed only while it was there
            return self.ready_s + ran_s
        return self.ready_s + max(self.offer.least_s, -(-ran_s // quantum_s) * quantum_s)

    def owed(self, now_s: int, *, since_s: int = 0, until_s: int | None = None) -> int:
        """Micro-dollars per hour x seconds, if it were gone now; optionally for one stretch of time."""
        if self.ready_s is None:
            return 0
        end_s = self.billed_until_s(now_s)
        if until_s is not None:
            end_s = min(end_s, until_s)
        total = 0
        for i, (from_s, price) in enumerate(self.prices):
            upto_s = self.prices[i + 1][0] if i + 1 < len(self.prices) else end_s
            total += price * max(0, min(upto_s, end_s) - max(from_s, self.ready_s, since_s))
        return total

    def cost_microusd(self, now_s: int) -> int:
        return -(-self.owed(now_s) // HOUR_S)


@dataclass(slots=True)
class Cloud:
    """Offers and machines after every event applied so far."""

    offers: dict[Pool, dict[int, OfferSeen]] = field(default_factory=dict)  # by the GPUs of a node
    machines: dict[str, Machine] = field(default_factory=dict)  # ordered and not gone
    gone: dict[str, Machine] = field(default_factory=dict)  # the most recent ones that are gone
    lingering: set[str] = field(default_factory=set)  # gone, and its engine still reports them
    ordered: int = 0  # ever: the number of the next order
    refused: dict[tuple[Pool, int], tuple[int, int]] = field(default_factory=dict)  # how often, until when
    spent: dict[tuple[int, int], int] = field(default_factory=dict)  # (year, month) -> owed by removed nodes
    reserved: dict[str, list[str]] = field(default_factory=dict)  # job -> machines kept for it

    @property
    def unsettled(self) -> bool:
        """Whether a provider has yet to make or remove anything."""
        return any(each.ready_s is None or each.returned_s is not None for each in self.machines.values())

    def spot_of(self, pool: Pool) -> tuple[bool, int]:
        """Whether any size is available, and the lowest price per GPU-hour."""
        sizes = self.offers[pool].values()
        there = [offer for offer in sizes if offer.is_there]
        return bool(there), min(offer.microusd_per_gpu_hour for offer in there or sizes)

    def for_sale(self, *, now_s: int) -> Iterator[OfferSeen]:
        """What is available now, as far as is known."""
        for pool, sizes in self.offers.items():
            for gpus, offer in sizes.items():
                if offer.is_there and self.refused.get((pool, gpus), (0, now_s))[1] <= now_s:
                    yield offer

    def hourly_microusd(self) -> int:
        """What everything ordered and not gone costs per hour, at current prices."""
        return sum(each.microusd_per_hour for each in self.machines.values())

    def owed_in_month(self, now_s: int) -> int:
        """Micro-dollars per hour x seconds of this month so far, if everything were gone now."""
        since_s = month_start_s(now_s)
        going = sum(each.owed(now_s, since_s=since_s) for each in self.machines.values())
        return self.spent.get(month_of(now_s), 0) + going

    def begins(self, job: str, parts: Parts, *, at_s: int) -> None:
        """The job has its GPUs: what was ordered for it until now is free for anyone."""
        for node in tuple(self.reserved.get(job, ())):
            self._release(self.machines[node])
        self.used(parts, at_s=at_s)

    def used(self, parts: Parts, *, at_s: int) -> None:
        """A lease on these nodes begins or ends."""
        for machine in (self.machines[name] for name, _ in parts if name in self.machines):
            machine.used_s = at_s
            self._release(machine)

    def joined(self, node: str) -> None:
        if node in self.machines:
            self.machines[node].joined, self.machines[node].away_s = True, None
        elif node in self.gone:
            self.lingering.add(node)

    def left(self, node: str, *, at_s: int) -> None:
        self.lingering.discard(node)
        if node in self.machines:
            self.machines[node].away_s = at_s

    def apply(self, event: Event) -> None:
        match event:
            case OfferSeen():
                self._offer(event)
            case NodeOrdered(node=node, job=job):
                offer = self.offers[event.pool][event.gpus]
                prices = [(event.at_s, event.microusd_per_gpu_hour * event.gpus)]
                self.machines[node] = Machine(order=event, offer=offer, prices=prices, job=job)
                self.ordered += 1
                if job:
                    self.reserved.setdefault(job, []).append(node)
            case NodeReady(node=node, at_s=at_s):
                machine = self.machines[node]
                machine.ready_s = machine.used_s = at_s
                machine.away_s = None if machine.joined else at_s
                self.refused.pop((machine.pool, machine.order.gpus), None)
            case NodeReturned(node=node, at_s=at_s, reason=reason):
                machine = self.machines[node]
                machine.returned_s, machine.returned = at_s, reason
                self._release(machine)
            case NodeGone():
                self._gone(event)
            case _:
                raise AssertionError(f"{type(event).__name__} has no fold")

    def _offer(self, event: OfferSeen) -> None:
        self.offers.setdefault(event.pool, {})[event.gpus] = event
        for machine in self.machines.values():
            price = event.microusd_per_gpu_hour * event.gpus
            is_same = machine.pool == event.pool and machine.order.gpus == event.gpus
            if is_same and machine.prices[-1][1] != price:
                machine.prices.append((event.at_s, price))

    def _release(self, machine: Machine) -> None:
        if machine.job:
            kept = self.reserved[machine.job]
            kept.remove(machine.node)
            if not kept:
                del self.reserved[machine.job]
            machine.job = ""

    def _gone(self, event: NodeGone) -> None:
        machine = self.machines.pop(event.node)
        self._release(machine)
        machine.gone_s, machine.cause, machine.reason = event.at_s, event.cause, event.reason
        key = (machine.pool, machine.order.gpus)
        if event.cause == "returned" and machine.joined:
            self.refused.pop(key, None)  # one of them is for sale again
        elif event.cause == "refused" or machine.was_useless:
            times = self.refused.get(key, (0, 0))[0] + 1
            self.refused[key] = (times, event.at_s + REFUSED_S * 2 ** min(times - 1, REFUSED_DOUBLINGS))
        for month, owed in _by_month(machine):
            self.spent[month] = self.spent.get(month, 0) + owed
        self.gone[event.node] = machine
        if machine.joined and machine.away_s is None:
            self.lingering.add(event.node)
        while len(self.gone) > GONE_KEPT:
            del self.gone[next(iter(self.gone))]


def month_of(at_s: int) -> tuple[int, int]:
    when = datetime.fromtimestamp(at_s, UTC)
    return when.year, when.month


def month_start_s(at_s: int) -> int:
    year, month = month_of(at_s)
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


def next_month_s(at_s: int) -> int:
    year, month = month_of(at_s)
    return int(datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp())


def _by_month(machine: Machine) -> Iterator[tuple[tuple[int, int], int]]:
    """What a removed machine owes, for each month that it was there."""
    if machine.ready_s is None:
        return
    at_s, end_s = machine.ready_s, machine.billed_until_s(0)
    while at_s < end_s:
        upto_s = min(end_s, next_month_s(at_s))
        yield month_of(at_s), machine.owed(0, since_s=at_s, until_s=upto_s)
        at_s = upto_s
