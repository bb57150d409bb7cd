"""The rehearsal provider: recorded capacity and prices sell nodes; jobs run on them through the real `tick`.

A zone has spot while its record says that an instance was available, and evicts every spot node when it was
not. On-demand is always available. Nodes are as large as requested: a record says nothing about sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from brimful.errors import BrimfulError
from brimful.fleet.cloud import Machine
from brimful.fleet.events import Event, JobSubmitted, NodeOrdered
from brimful.fleet.lease import JobState
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.language import say
from brimful.market.where import egress_microusd
from brimful.scheduler.cloud.buying import Buying, checkpoint_bytes
from brimful.scheduler.cloud.providers import CannotMake, Made
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import Failures, Ports
from brimful.scheduler.rules import Rules
from brimful.sim.kernel import Kernel
from brimful.sim.world import Arrival, Due, MemoryStore, TimedEngine, gc_paused
from brimful.specs.offer import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One recorded zone of a provider, from second 0 on."""

    provider: str
    region: str
    zone: str
    gpu: str
    on_demand_microusd: int  # per GPU-hour
    spot: tuple[tuple[int, int], ...]  # (from when, micro-dollars per GPU-hour)
    tick_s: int
    up: bytes  # look by look: 1 where spot was available
    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    lead_s: int = 0
    least_s: int = 0
    quantum_s: int = 1

    def is_up(self, at_s: int) -> bool:
        look = at_s // self.tick_s
        return look < len(self.up) and bool(self.up[look])

    def spot_microusd(self, at_s: int) -> int:
        return self.spot[max(0, bisect_right(self.spot, (at_s, 1 << 60)) - 1)][1]

    def changes(self) -> list[int]:
        """When anything about it changes."""
        looks = [i * self.tick_s for i in range(1, len(self.up)) if self.up[i] != self.up[i - 1]]
        return sorted({*looks, len(self.up) * self.tick_s, *(at_s for at_s, _ in self.spot if at_s > 0)})

    def offer(self, gpus: int, at_s: int, *, is_spot: bool) -> Offer:
        price = self.spot_microusd(at_s) if is_spot else self.on_demand_microusd
        return Offer(
            provider=self.provider,
            region=self.region,
            zone=self.zone,
            instance=f"{self.gpu}x{gpus}",
            gpu=self.gpu,
            gpus=gpus,
            microusd_per_hour=price * gpus,
            is_spot=is_spot,
            lead_s=self.lead_s,
            least_s=self.least_s,
            quantum_s=self.quantum_s,
            is_there=not is_spot or self.is_up(at_s),
        )


class RehearsalProvider:
    """Makes a node if its record has one, and evicts it when it has none."""

    sites: Sequence[str] = ()

    def __init__(
        self, name: str, zones: Sequence[Zone], engines: Mapping[str, TimedEngine], kernel: Kernel[Due]
    ) -> None:
        self.name = name
        self.now_s = 0
        self._kernel, self._engines = kernel, engines
        self._zones = {zone.offer(1, 0, is_spot=True).site: zone for zone in zones}
        self._made: dict[str, tuple[NodeOrdered, int]] = {}  # and when it is ready
        self._gone: dict[str, Made] = {}
        self._joined: set[str] = set()
        self._offers: list[Offer] = []
        self._listed: object = None
        self._sizes: dict[str, set[int]] = {site: set() for site in self._zones}
        for zone in zones:
            for at_s in zone.changes():
                kernel.at(at_s, None)

    def sell(self, sizes: Sequence[int]) -> None:
        """Sizes that jobs ask for; other sizes are not listed."""
        for site, zone in self._zones.items():
            self._sizes[site].update(size for size in sizes if size in zone.sizes)
        self._listed = None
        self._list()

    def happen(self, now_s: int) -> None:
        """Advance the records: nodes get ready, zones come and go, prices change."""
        self.now_s = now_s
        for node, (order, ready_s) in list(self._made.items()):
            zone = self._zones[order.site]
            if order.tier == "spot" and not zone.is_up(now_s):
                self._end(node, evicted=True)
            elif ready_s <= now_s and node not in self._joined:
                self._joined.add(node)
                self._engines[order.site].add(_as_node(order))
        self._list()

    def _list(self) -> None:
        now = [(zone.is_up(self.now_s), zone.spot_microusd(self.now_s)) for zone in self._zones.values()]
        if now != self._listed:
            self._listed = now
            self._offers = [
                zone.offer(gpus, self.now_s, is_spot=is_spot)
                for site, zone in self._zones.items()
                for gpus in sorted(self._sizes[site])
                for is_spot in (True, False)
            ]

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        failed: dict[str, BrimfulError] = {}
        for order in orders:
            zone = self._zones[order.site]
            if order.node in self._made or order.node in self._gone:
                continue
            if order.tier == "spot" and not zone.is_up(self.now_s):
                failed[order.node] = CannotMake(say("sim.no_capacity", site=order.site))
                continue
            self._made[order.node] = (order, self.now_s + zone.lead_s)
            self._kernel.at(self.now_s + zone.lead_s, None)
        return failed

    def watch(self) -> Sequence[Made]:
        made = [
            Made(node, "ready" if node in self._joined else "starting", ready_s)
            for node, (_, ready_s) in self._made.items()
        ]
        return [*made, *self._gone.values()]

    def remove(self, nodes: Sequence[str]) -> Failures:
        for node in nodes:
            if node in self._made:
                self._end(node, evicted=False)
                self._kernel.at(self.now_s, None)  # so that a tick happens
        return {}

    def _end(self, node: str, *, evicted: bool) -> None:
        order, _ = self._made.pop(node)
        why = say("sim.taken_back", site=order.site) if evicted else None
        self._gone[node] = Made(node, "gone", self.now_s, why)
        if node in self._joined:
            engine = self._engines[order.site]
            engine.fail(node)
            engine.forget(node)

    def forget(self, fleet: Fleet) -> None:
        """Stop reporting what the log knows to be gone."""
        self._gone = {node: made for node, made in self._gone.items() if node in fleet.cloud.machines}


def _as_node(order: NodeOrdered) -> Node:
    return Node(
        site=order.site,
        node=order.node,
        gpu=order.gpu,
        gpus=order.gpus,
        microusd_per_gpu_hour=order.microusd_per_gpu_hour,
        declared=True,
        tier=order.tier,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOutcome:
    fleet: Fleet
    log: list[Event]
    machines: list[Machine]  # all of them, ever
    end_s: int
    egress_microusd: int  # for checkpoints carried from one lease to the next

    @property
    def bought_microusd(self) -> int:
        return sum(machine.cost_microusd(self.end_s) for machine in self.machines)

    @property
    def cost_microusd(self) -> int:
        return self.bought_microusd + self.egress_microusd

    @property
    def unfinished(self) -> int:
        return sum(state.phase != "finished" for state in self.fleet.jobs.values())

    def late(self, deadlines: Mapping[str, int]) -> int:
        """Jobs that were not done by their deadline."""
        jobs = self.fleet.jobs
        return sum(
            jobs[name].phase != "finished" or (jobs[name].ended_s or 0) > due_s
            for name, due_s in deadlines.items()
        )


class _Replay:
    """A run in progress."""

    def __init__(self, arrivals: Sequence[Arrival], zones: Sequence[Zone], buying: Buying) -> None:
        self.kernel: Kernel[Due] = Kernel()
        work_s = {each.job.job: each.work_s for each in arrivals}
        kept: dict[str, float] = {}
        self.by_site = {zone.offer(1, 0, is_spot=True).site: zone for zone in zones}
        self.engines = {
            site: TimedEngine([], work_s, self.kernel, site=site, kept=kept) for site in self.by_site
        }
        self.providers: dict[str, RehearsalProvider] = {}
        for name in dict.fromkeys(zone.provider for zone in zones):
            own = [zone for zone in zones if zone.provider == name]
            self.providers[name] = RehearsalProvider(name, own, self.engines, self.kernel)
            self.providers[name].sell(sorted({each.job.gpus for each in arrivals}))
        self.store, self.fleet = MemoryStore(), Fleet()
        self.ports = Ports(store=self.store, engines=self.engines, providers=self.providers, buying=buying)
        self.to_come = sorted(arrivals, key=lambda each: each.at_s, reverse=True)
        self.machines: dict[str, Machine] = {}
        self._wake_s = -1
        for each in arrivals:
            self.kernel.at(each.at_s, None)

    def happen(self, now_s: int) -> None:
        for engine in self.engines.values():
            engine.now_s = now_s
        for what in self.kernel.due(now_s):
            if isinstance(what, str):
                any(engine.finish(what) for engine in self.engines.values())
        for provider in self.providers.values():
            provider.happen(now_s)
        while self.to_come and self.to_come[-1].at_s <= now_s:
            self.store.log.append(JobSubmitted(now_s, self.to_come.pop().job))

    def look_again(self, at_s: int | None, *, now_s: int) -> None:
        self.machines |= self.fleet.cloud.machines
        for provider in self.providers.values():
            provider.forget(self.fleet)
        if at_s is not None and (self._wake_s <= now_s or at_s < self._wake_s):
            self._wake_s = at_s
            self.kernel.at(at_s, None)

    def is_over(self) -> bool:
        return not self.to_come and self.fleet.is_idle() and not self.fleet.cloud.machines

    def egress(self, state: JobState) -> int:
        """The cost of carrying its checkpoints from one lease to the next."""
        owed = 0
        for before, after in zip(state.leases, state.leases[1:], strict=False):
            source, to = self.by_site[before.site], self.by_site[after.site].offer(1, 0, is_spot=True)
            size = checkpoint_bytes(state)
            owed += egress_microusd(size, provider=source.provider, region=source.region, to=to)
        return owed


def rehearse_buying(
    arrivals: Sequence[Arrival],
    zones: Sequence[Zone],
    rules: Rules,
    buying: Buying,
    *,
    until_s: int,
    watch: Callable[[Fleet, int], None] = lambda _fleet, _now_s: None,
) -> CloudOutcome:
    """Run the jobs to their end on what can be bought, through the production `tick`.

    The record before the first arrival is only watched, to learn from.
    """
    run, now_s = _Replay(arrivals, zones, buying), 0
    with gc_paused():
        while (next_s := run.kernel.next_s()) is not None and next_s <= until_s:
            now_s = next_s
            run.happen(now_s)
            plan = tick(run.fleet, run.ports, rules, now_s=now_s).plan
            run.look_again(plan.look_again_s, now_s=now_s)
            watch(run.fleet, now_s)
            if run.is_over():
                break
    return CloudOutcome(
        fleet=run.fleet,
        log=run.store.log,
        machines=list(run.machines.values()),
        end_s=now_s,
        egress_microusd=sum(map(run.egress, run.fleet.jobs.values())),
    )
