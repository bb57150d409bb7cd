"""The part of `tick` that buys: turn what providers report into events, and carry out orders and returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from brimful.errors import BrimfulError, Said
from brimful.fleet.cloud import Machine, trouble_with
from brimful.fleet.events import Event, NodeEnd, NodeGone, NodeOrdered, NodeReady, OfferSeen
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler.cloud.providers import CannotMake, Host, Made, Provider, Takes
from brimful.scheduler.ports import Ports
from brimful.specs.offer import Offer


def observe_providers(fleet: Fleet, ports: Ports, problems: dict[str, Said], *, now_s: int) -> list[Event]:
    news: list[Event] = []
    for name, provider in ports.providers.items():
        try:
            offers, made = provider.offers(), provider.watch()
        except BrimfulError as error:
            problems[trouble_with(name)] = (
                error.said
            )  # unreachable does not mean gone: its nodes are still ours, and billed
            continue
        if ports.offered.get(name) is not offers:
            changes = list(_offer_changes(fleet, name, offers, now_s=now_s))
            if not changes:
                ports.offered[name] = offers
            news += changes
        news += _machine_changes(fleet, ports, name, made, now_s=now_s)
        _report_machines(fleet, ports, provider, made)
    return news


def _report_machines(fleet: Fleet, ports: Ports, provider: Provider, made: Sequence[Made]) -> None:
    """Tell its engines which machines exist. A machine to be returned is theirs until it is gone."""
    for site in provider.sites:
        engine: object = ports.engines.get(site)
        if isinstance(engine, Takes):
            ready = {each.node: each.address for each in made if each.state == "ready" and each.address}
            machines = (fleet.cloud.machines.get(name) for name in ready)
            own = [each for each in machines if each is not None and each.pool.site == site]
            engine.take({each.node: Host(_as_node(each), ready[each.node]) for each in own})


def _as_node(machine: Machine) -> Node:
    """At today's price: a lease keeps the price it was granted at; the next one pays this."""
    return Node(
        site=machine.pool.site,
        node=machine.node,
        gpu=machine.pool.gpu,
        gpus=machine.order.gpus,
        microusd_per_gpu_hour=-(-machine.microusd_per_hour // machine.order.gpus),
        declared=True,
        tier=machine.pool.tier,
    )


def _offer_changes(fleet: Fleet, provider: str, offers: Sequence[Offer], *, now_s: int) -> Iterator[Event]:
    best: dict[tuple[object, int], OfferSeen] = {}
    for offer in offers:
        seen = OfferSeen(
            at_s=now_s,
            site=offer.site,
            gpu=offer.gpu,
            tier="spot" if offer.is_spot else "on_demand",
            gpus=offer.gpus,
            microusd_per_gpu_hour=offer.microusd_per_gpu_hour,
            is_there=offer.is_there,
            provider=provider,
            region=offer.region,
            instance=offer.instance,
            lead_s=offer.lead_s,
            least_s=offer.least_s,
            quantum_s=offer.quantum_s,
        )
        key = (seen.pool, seen.gpus)
        if key not in best or _rank(seen) < _rank(best[key]):
            best[key] = seen
    for seen in best.values():
        known = fleet.cloud.offers.get(seen.pool, {}).get(seen.gpus)
        if known is None or replace(known, at_s=now_s) != seen:
            yield seen
    for sizes in fleet.cloud.offers.values():
        for known in sizes.values():
            if known.provider == provider and known.is_there and (known.pool, known.gpus) not in best:
                yield replace(known, at_s=now_s, is_there=False)


def _rank(offer: OfferSeen) -> tuple[bool, int]:
    """Of several instance types of one size in one pool, the cheapest available one represents them."""
    return not offer.is_there, offer.microusd_per_gpu_hour


def _machine_changes(
    fleet: Fleet, ports: Ports, provider: str, made: Sequence[Made], *, now_s: int
) -> Iterator[Event]:
    seen = {each.node: each for each in made}
    ports.strays[provider] = [
        name for name, each in seen.items() if name not in fleet.cloud.machines and each.state != "gone"
    ]
    for machine in list(fleet.cloud.machines.values()):
        if machine.offer.provider != provider:
            continue
        told = seen.get(machine.node)
        is_there = told is not None and told.state != "gone"
        if told is not None and told.state == "ready" and machine.ready_s is None:
            yield NodeReady(at_s=max(told.at_s, machine.order.at_s), node=machine.node)
        if not is_there and (told is not None or _was_there(machine)):
            at_s = now_s if told is None else max(told.at_s, machine.ready_s or machine.order.at_s)
            cause: NodeEnd = "returned" if machine.returned_s is not None else "evicted"
            problem = machine.returned if told is None or told.problem is None else told.problem
            yield NodeGone(at_s=at_s, node=machine.node, cause=cause, reason=problem)


def _was_there(machine: Machine) -> bool:
    """Whether its absence means that it is gone: an order may not have reached the provider yet."""
    return machine.ready_s is not None or machine.returned_s is not None


def carry_out_orders(fleet: Fleet, ports: Ports, problems: dict[str, Said], *, now_s: int) -> list[Event]:
    """Make what was ordered, and remove what was returned or is a stray. Returns refusals as events."""
    refused: list[Event] = []
    for name, provider in ports.providers.items():
        own = [each for each in fleet.cloud.machines.values() if each.offer.provider == name]
        orders = [each.order for each in own if each.ready_s is None and each.returned_s is None]
        returned = [each.node for each in own if each.returned_s is not None]
        returned = [node for node in returned if not fleet.leases_on.get(node)]
        strays = ports.strays.get(name, [])
        if trouble_with(name) in problems or not (orders or returned or strays):
            continue
        ports.may_act()
        try:
            refused += _make(provider, orders, problems, now_s=now_s)
            for error in (provider.remove([*returned, *strays]) if returned or strays else {}).values():
                problems[trouble_with(name)] = error.said
        except BrimfulError as error:
            problems[trouble_with(name)] = error.said
    return refused


def _make(
    provider: Provider, orders: Sequence[NodeOrdered], problems: dict[str, Said], *, now_s: int
) -> list[Event]:
    failures = provider.make(orders) if orders else {}
    refused: list[Event] = []
    for node, error in failures.items():
        if isinstance(error, CannotMake):
            refused.append(NodeGone(at_s=now_s, node=node, cause="refused", reason=error.said))
        else:
            problems[trouble_with(provider.name)] = error.said
    return refused
