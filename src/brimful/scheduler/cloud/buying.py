"""What could be bought for a job, and what its remaining work would cost there, for first nodes and moves
alike.

Pure: offers, machines and prices come from the fleet's fold of the log; the operator's caps are in `Buying`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from brimful.errors import Said
from brimful.fleet.cloud import Machine, next_month_s, trouble_with
from brimful.fleet.events import OfferSeen
from brimful.fleet.job import Job
from brimful.fleet.lease import Lease
from brimful.fleet.memory import too_small
from brimful.fleet.state import Fleet, JobState, Pool
from brimful.language import Seconds, Usd, count, say
from brimful.market.spells import Spells, spells_of
from brimful.market.where import Need, Place, stretch, weigh
from brimful.scheduler.placing.place import ONE_NODE
from brimful.specs.offer import Offer
from brimful.units import HOUR_S

LEARN_S = HOUR_S  # how often the belief about how long spot stays is renewed
REMOVE_S = 60  # how long a returned node is still billed: caps keep this much in reserve
USEFUL_S = 900  # a node the monthly cap cannot pay for this long is not worth starting


@dataclass(frozen=True, slots=True, kw_only=True)
class Buying:
    """What the operator lets the scheduler spend, and on what."""

    hourly_microusd: int | None = None  # all provider nodes together; None: no cap
    monthly_microusd: int | None = None  # a calendar month, UTC
    hourly_of: Mapping[str, int] = field(default_factory=dict)  # providers with their own hourly cap
    keep_s: int | None = None  # how long to keep an idle node; None: as long as a new one takes to start
    rest_s: int = HOUR_S  # a job that just started somewhere is not moved for money for this long
    dry_run: bool = False  # orders are reported, not placed
    # Parts that can be switched off, to measure what each is worth.
    by: Literal["sum", "price"] = "sum"  # price: the lowest price, whatever the other costs
    moves: bool = True
    programmes: bool = True  # False: jobs with a deadline keep pace (uniform progress)


class Opening(NamedTuple):
    """The number of nodes of one offer that hold the whole gang."""

    offer: OfferSeen
    nodes: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.offer.gpus

    @property
    def microusd_per_hour(self) -> int:
        return self.offer.microusd_per_gpu_hour * self.gpus


class Shop:
    """What one decision may buy. It remembers what the decision has ordered already."""

    def __init__(
        self, fleet: Fleet, buying: Buying, *, now_s: int, unreachable: Collection[str] = ()
    ) -> None:
        self.fleet, self.buying, self.now_s = fleet, buying, now_s
        self.look_again_s: int | None = None
        self.refusals: dict[str, Said] = {}  # job -> why nothing was ordered for it
        self._openings: dict[int, dict[Pool, Opening]] = {}
        self._stay_hours: dict[Pool, float] = {}
        self._for_sale: dict[Pool, list[OfferSeen]] = {}
        for offer in fleet.cloud.for_sale(now_s=now_s):
            if offer.site not in unreachable and trouble_with(offer.provider) not in unreachable:
                self._for_sale.setdefault(offer.pool, []).append(offer)
        self._hourly = fleet.cloud.hourly_microusd()
        self._hourly_of = dict.fromkeys(buying.hourly_of, 0)
        for machine in fleet.cloud.machines.values():
            if machine.offer.provider in self._hourly_of:
                self._hourly_of[machine.offer.provider] += machine.microusd_per_hour
        self._in_month = fleet.cloud.owed_in_month(now_s) + sum(
            map(self._ahead, fleet.cloud.machines.values())
        )

    def openings(self, state: JobState) -> dict[Pool, Opening]:
        """Where nodes could be made for it now, at a price it accepts; empty for a job that does not pay."""
        job = state.job
        if job.deadline_s is None and job.budget_microusd is None and job.limit_microusd_per_gpu_hour is None:
            return {}
        found = self._openings.get(state.shape)
        if found is None:
            found = self._openings[state.shape] = {
                pool: opening
                for pool, offers in self._for_sale.items()
                if (opening := _cheapest(job, pool, offers)) is not None
            }
        if state.avoid_site and self.now_s < state.avoid_until_s:
            found = {pool: each for pool, each in found.items() if pool.site != state.avoid_site}
        return self._within_own_caps(state, found) if self._hourly_of else found

    def _within_own_caps(self, state: JobState, found: dict[Pool, Opening]) -> dict[Pool, Opening]:
        """Drop providers whose own cap this would exceed; if none is left, the job is told why."""
        over = {pool: said for pool, each in found.items() if (said := self._over_own_cap(each)) is not None}
        if over and len(over) == len(found):
            self.refusals[state.job.job] = over[min(over)]
        return {pool: each for pool, each in found.items() if pool not in over}

    def _over_own_cap(self, opening: Opening) -> Said | None:
        name, more = opening.offer.provider, opening.microusd_per_hour
        now, cap = self._hourly_of.get(name, 0), self.buying.hourly_of.get(name)
        if cap is None or now + more <= cap:
            return None
        return say("scheduler.over_provider_cap", provider=name, cap=Usd(cap), now=Usd(now), more=Usd(more))

    def why(self, state: JobState) -> Said | None:
        """What a waiting job is told about nodes: they are on their way, or why none was ordered."""
        nodes = self.fleet.cloud.reserved.get(state.job.job)
        if not nodes:
            return self.refusals.get(state.job.job)
        machines = [self.fleet.cloud.machines[node] for node in nodes]
        since = Seconds(self.now_s - min(machine.order.at_s for machine in machines))
        nodes_said = count("node", len(nodes))
        return say("scheduler.nodes_coming", nodes=nodes_said, where=machines[0].pool.site, since=since)

    def weigh(self, state: JobState, opening: Opening) -> Place | None:
        """The cost of the job's remaining work there; None if it would never finish."""
        here = self.fleet.cloud.offers.get(_last_pool(self.fleet, state) or opening.offer.pool, {})
        came_from = next(iter(here.values()), None)
        job = state.job
        need = self._need(
            state,
            restart_s=(job.checkpoint_cost_s if state.leases else 0) + unsaved_s(state, now_s=self.now_s),
            came_from=came_from if state.leases else None,
        )
        offer = self._as_offer(opening)
        if stretch(offer, need) == float("inf"):
            return None
        return weigh(offer, need, work_per_s=job.rate(offer.gpu))

    def cheapest(self, state: JobState, pools: Sequence[Pool]) -> Pool:
        """Of these offers, where the remaining work costs least; with `by` price, the lowest price."""
        openings = self.openings(state)

        def cost(pool: Pool) -> tuple[float, Pool]:
            place = self.weigh(state, openings[pool]) if self.buying.by == "sum" else None
            hourly = openings[pool].microusd_per_hour / state.job.rate(pool.gpu)
            return (hourly if place is None else place.total), pool

        return min(pools, key=cost)

    def weigh_staying(self, state: JobState, lease: Lease, machine: Machine) -> Place:
        """The cost of the remaining work where the job is: no restart, the same risk."""
        pool = machine.pool
        offer = self.fleet.cloud.offers[pool][machine.order.gpus]
        stays = self._as_offer(Opening(offer, max(1, len(lease.parts))))
        need = self._need(state, restart_s=0, came_from=None)
        if stretch(stays, need) == float("inf"):
            need = self._need(state, restart_s=0, came_from=None, interruptions=0.0)
        return weigh(stays, need, work_per_s=lease.speed or 1.0)

    def _need(
        self,
        state: JobState,
        *,
        restart_s: float,
        came_from: OfferSeen | None,
        interruptions: float = 0.1,
    ) -> Need:
        job = state.job
        left = state.remaining_s(self.now_s)
        return Need(
            work=max(1.0, HOUR_S if left is None else left),
            state_bytes=checkpoint_bytes(state),
            at_provider="" if came_from is None else came_from.provider,
            at_region="" if came_from is None else came_from.region,
            restart_s=restart_s,
            lost_s=job.checkpoint_cost_s + (job.checkpoint_interval_s or 0) / 2,
            interruptions_per_hour=interruptions,
        )

    def _as_offer(self, opening: Opening) -> Offer:
        offer = opening.offer
        spot = offer.tier == "spot"
        return Offer(
            provider=offer.provider,
            region=offer.region,
            zone=offer.site,
            instance=offer.instance,
            gpu=offer.gpu,
            gpus=opening.gpus,
            microusd_per_hour=opening.microusd_per_hour,
            is_spot=spot,
            interruptions_per_hour=1 / self.stay_hours(offer.pool) if spot else None,
        )

    def stay_hours(self, pool: Pool) -> float:
        """How much longer spot of this pool is expected to stay."""
        found = self._stay_hours.get(pool)
        if found is None:
            record = self.fleet.spot.get(pool)
            changes = () if record is None else tuple(record.changes)
            until_s = self.now_s // LEARN_S * LEARN_S
            known = tuple(at_s for at_s in changes if at_s <= until_s)
            age_s = max(0, self.now_s - changes[-1]) if len(changes) % 2 else 0
            found = self._stay_hours[pool] = max(0.05, _spells(known, until_s).expected_hours(age_s))
        return found

    # --- the operator's caps ----------------------------------------------------------------------------

    def over_cap(self, opening: Opening) -> Said | None:
        """Why these nodes may not be ordered; None if they may, and then they count from here on."""
        buying, hourly = self.buying, opening.microusd_per_hour
        if (over := self._over_own_cap(opening)) is not None:
            return over
        if buying.hourly_microusd is not None and self._hourly + hourly > buying.hourly_microusd:
            return say(
                "scheduler.over_hourly_cap",
                cap=Usd(buying.hourly_microusd),
                now=Usd(self._hourly),
                more=Usd(hourly),
            )
        if buying.monthly_microusd is not None:
            owed = hourly * max(opening.offer.least_s, opening.offer.quantum_s, USEFUL_S)
            if self._in_month + owed > buying.monthly_microusd * HOUR_S:
                return say(
                    "scheduler.over_monthly_cap",
                    cap=Usd(buying.monthly_microusd),
                    spent=Usd(self._in_month // HOUR_S),
                    more=Usd(owed // HOUR_S),
                )
        return None

    def take(self, opening: Opening) -> None:
        """Count the order: the next one sees what is left of the caps."""
        self._hourly += opening.microusd_per_hour
        if opening.offer.provider in self._hourly_of:
            self._hourly_of[opening.offer.provider] += opening.microusd_per_hour
        self._in_month += opening.microusd_per_hour * max(
            opening.offer.least_s, opening.offer.quantum_s, USEFUL_S
        )

    def too_many(self) -> list[Machine]:
        """Nodes that must go so that the caps hold, most expensive first."""
        buying = self.buying
        machines = [each for each in self.fleet.cloud.machines.values() if each.returned_s is None]
        machines.sort(key=lambda each: (each.microusd_per_hour, each.node))
        going: list[Machine] = []
        for name, cap in buying.hourly_of.items():
            own = [each for each in machines if each.offer.provider == name]
            while own and sum(each.microusd_per_hour for each in own) > cap:
                going.append(own.pop())
                machines.remove(going[-1])
        hourly = sum(each.microusd_per_hour for each in machines)
        if buying.hourly_microusd is not None:
            while machines and hourly > buying.hourly_microusd:
                hourly -= machines[-1].microusd_per_hour
                going.append(machines.pop())
        if buying.monthly_microusd is not None and machines:
            left = buying.monthly_microusd * HOUR_S - self.fleet.cloud.owed_in_month(self.now_s)
            left -= sum(map(self._ahead, self.fleet.cloud.machines.values()))
            month_s = next_month_s(self.now_s)
            if left <= 0:
                return [*going, *machines]
            self.look_at(min(month_s, self.now_s + max(1, left // max(1, hourly))))
        return going

    def _ahead(self, machine: Machine) -> int:
        """What it will owe on top of today's debt before it can be off the bill."""
        return machine.microusd_per_hour * max(REMOVE_S, machine.offer.quantum_s)

    def look_at(self, at_s: int) -> None:
        if at_s > self.now_s:
            self.look_again_s = at_s if self.look_again_s is None else min(at_s, self.look_again_s)


def checkpoint_bytes(state: JobState) -> int:
    """Bytes to bring along: as measured when its last lease moved them, else as submitted."""
    moved = next((lease.moved_bytes for lease in reversed(state.leases) if lease.moved_bytes), 0)
    return moved or state.job.checkpoint_bytes


def unsaved_s(state: JobState, *, now_s: int) -> float:
    """Time that a stop now would throw away: since the last checkpoint, if it saves only at intervals."""
    lease, every_s = state.open_lease, state.job.checkpoint_interval_s
    if lease is None or not every_s:
        return 0.0
    return max(0, lease.billed_s(now_s) - lease.setup_s) % every_s


def _cheapest(job: Job, pool: Pool, offers: list[OfferSeen]) -> Opening | None:
    if not job.may_be_in(site=pool.site, tier=pool.tier) or job.rate(pool.gpu) <= 0.0:
        return None
    if too_small(job, pool.gpu) is not None:
        return None
    limit = job.limit_microusd_per_gpu_hour
    found: list[Opening] = []
    for offer in offers:
        nodes = -(-max(1, job.gpus) // offer.gpus)
        if (nodes > 1 and job.within in ONE_NODE) or (
            limit is not None and offer.microusd_per_gpu_hour > limit
        ):
            continue
        found.append(Opening(offer, nodes))
    return min(found, key=lambda each: (each.microusd_per_hour, each.nodes), default=None)


def _last_pool(fleet: Fleet, state: JobState) -> Pool | None:
    """The pool where its newest checkpoint was made."""
    lease = state.leases[-1] if state.leases else None
    if lease is None:
        return None
    machine = fleet.cloud.machines.get(lease.node) or fleet.cloud.gone.get(lease.node)
    return None if machine is None else machine.pool


@lru_cache(maxsize=256)
def _spells(changes: tuple[int, ...], until_s: int) -> Spells:
    """Cached; callers must not modify it."""
    return spells_of(changes, until_s=until_s)
