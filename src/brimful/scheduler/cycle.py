"""One decision in progress: what it looks at and what it has decided so far. Actions write to it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from brimful.errors import Said
from brimful.fleet.events import Event, LeaseEnding, LeaseGranted, Parts
from brimful.fleet.job import Job, at_size
from brimful.fleet.sharing import HALF_GPU, may_share, tenants
from brimful.fleet.state import Fleet, JobState, Lease, Pool
from brimful.language import Usd, say
from brimful.scheduler.auction import Auctions
from brimful.scheduler.budgets import Money
from brimful.scheduler.cloud.buying import Shop
from brimful.scheduler.deadlines.finish import Finish
from brimful.scheduler.draft import Draft
from brimful.scheduler.limits import Limits
from brimful.scheduler.offpeak import defer, promised, same_quote
from brimful.scheduler.placing.pools import allowed_pools, is_mixed
from brimful.scheduler.placing.reserve import Reservation
from brimful.scheduler.placing.victims import REVIEW_S, Cell, Search
from brimful.scheduler.plan import Review, earliest
from brimful.scheduler.quotas import is_own, over_quota, queue_of
from brimful.scheduler.rules import Rules
from brimful.units import HOUR_S

AHEAD_S = 60  # a start must be covered this long, so that a tenant's last cent does not start many jobs


class Cycle:
    """What one decision knows, and its starts and stops so far."""

    def __init__(  # noqa: PLR0917 - keywords to a class go through a dict, and this is made at every event
        self,
        fleet: Fleet,
        rules: Rules,
        prices: Mapping[Pool, int],
        now_s: int,
        unreachable: Collection[str] = (),
        market: Auctions | None = None,
    ) -> None:
        self.fleet, self.rules, self.prices, self.now_s = fleet, rules, prices, now_s
        self.unreachable, self.market = unreachable, market
        self.draft = draft = Draft(fleet.capacity)
        if unreachable or market is not None:
            draft.closed = unreachable
            draft.sold = () if market is None else frozenset(market.market.in_fleet(fleet))
        self.money = Money(fleet, now_s=now_s) if fleet.purses else None
        # GPUs that each queue holds, or will hold after this decision.
        self.held = {name: usage.held for name, usage in fleet.usage.items()} if rules.quotas else {}
        self.limits: Limits | None = None  # of users and GPU types within a queue
        if rules.quotas and any(quota.has_limits for quota in rules.quotas):
            self.limits = Limits(fleet, rules)
        self.waited_for: dict[str, int] = {}  # how many of its own GPUs each lending queue waits for
        self.spoken_for: set[str] = set()  # leases that will end: none is stopped twice
        self.starts: list[LeaseGranted] = []
        self.stops: list[LeaseEnding] = []
        self.reservations: list[Reservation] = []
        self.cells: dict[str, Cell] = {}  # cells being cleared, by the job they are cleared for
        self.moved = 0  # jobs that move to complete a cell
        self.move_tries = rules.tries  # gangs that may still look for such a cell
        # Jobs already dealt with: they start in a market pool, or it was their turn.
        self.settled: set[str] = set()
        self.deferred: set[Hashable] = set()  # quotes with which jobs wait for a cheaper hour
        self.finish: Finish | None = None  # what jobs with a deadline may use, if there is spot to choose
        self.kept: set[str] = set()  # jobs in the slot of their promise: never preempted
        self.claimed: dict[Pool, int] = {}  # GPUs that jobs with a promise wait for
        # The same by node, or by a pool's first node: GPUs of ending leases.
        self.awaited: dict[int, int] = {}
        self.slot_begins_s: int | None = None  # the next one
        self.in_turn: Mapping[str, None] = {}  # waiting jobs that go before their class, in order
        self.borrowed: Mapping[str, int] = {}  # GPUs that each queue may be asked to give back
        self.review: Review | None = None  # of a mixed fleet, while it is being carried out
        self.targets: dict[str, Pool | None] | None = None  # each job's pool in that review
        self.closed: frozenset[Pool] = frozenset()  # pools where a blocked job lets none pass
        self.worth: Mapping[str, float] | None = None  # of a GPU of each type, once asked
        self.blocked: JobState | None = None  # the first job that waits, if waiting helps
        # When the jobs that a blocked job may stop reach their minimum run time.
        self.ready_s: int | None = None
        self.resize_ready_s: int | None = None  # when the next elastic gang reaches its minimum run time
        self._search: Search | None = None  # built on first use: not needed when every job finds a place
        self.shop: Shop | None = None  # what could be bought, if buying is allowed
        self.orders: list[Event] = []  # nodes to make and to return
        self.market_events: Sequence[Event] = ()
        self.market_again_s: int | None = None
        self.avoided_until_s: tuple[int, ...] = ()  # when jobs may go back to a site that failed

    # --- what is decided --------------------------------------------------------------------------------

    def start(
        self, state: JobState, parts: Parts, *, reservation: str = "", beside: Lease | None = None
    ) -> None:
        """`reservation`: the tenant has already paid for these GPUs. `beside`: who it shares its GPU with."""
        job = state.job
        if job.max_gpus:
            job = at_size(job, sum(len(gpus) for _, gpus in parts))
        if beside is None:
            self.draft.take(parts, job)
        if self.in_turn:
            self.settled.add(job.job)
        node, gpus = parts[0]
        pool = self.fleet.nodes[node].pool
        price = 0 if reservation else promised(self.fleet, state, pool, self.prices[pool], now_s=self.now_s)
        if self.money is not None:
            self.money.promise(job, price * job.gpus * AHEAD_S // HOUR_S)
        if self.rules.quotas:
            self._count(job, (self.fleet.nodes[node].gpu,))
        self.starts.append(
            LeaseGranted(
                at_s=self.now_s,
                job=job.job,
                lease=f"{job.job}.{len(state.leases) + 1}",
                node=node,
                gpus=gpus,
                microusd_per_gpu_hour=price,
                rest=parts[1:],
                in_turn=job.job in self.in_turn,
                microusd_per_gib=self.fleet.nodes[node].microusd_per_gib,
                reservation=reservation,
                gpu_milli=HALF_GPU if self._may_share(job, node) and not reservation else 0,
            )
        )

    def take_back(self, start: LeaseGranted) -> None:
        """Undo a start of this decision."""
        parts = ((start.node, start.gpus), *start.rest)
        gpus = sum(len(each) for _, each in parts)
        job = at_size(self.fleet.jobs[start.job].job, gpus)
        self.draft.give(parts, job)
        self.starts = [each for each in self.starts if each is not start]
        if self.money is not None:
            self.money.promise(job, -(start.microusd_per_gpu_hour * gpus * AHEAD_S // HOUR_S))
        if self.rules.quotas:
            self._count(at_size(job, -gpus), (self.fleet.nodes[start.node].gpu,))

    def _may_share(self, job: Job, name: str) -> bool:
        """Whether its GPU there may have a second tenant. The market sells whole GPUs, and engines that
        choose the GPUs themselves give each lease its own."""
        node = self.fleet.nodes[name]
        return (
            self.rules.share
            and may_share(job)
            and node.chosen_by == "index"
            and node.pool not in self.draft.sold
        )

    def stop(self, lease: Lease, reason: Said | None, *, requeue: bool = True, beside: bool = True) -> None:
        """End the lease, once: the first reason stands.

        It gives up its GPU for another job, and so does the job `beside` it, unless it ends for good.
        """
        if beside and requeue and lease.may_share:
            for each in tenants(self.fleet, lease):
                if each.phase != "ending":
                    self.stop(each, reason, beside=False)
        if lease.lease not in self.spoken_for:
            self.spoken_for.add(lease.lease)
            self.stops.append(LeaseEnding(at_s=self.now_s, lease=lease.lease, reason=reason, requeue=requeue))

    def make_room(self, state: JobState, cell: Cell, why: Said | None = None) -> None:
        """Whole gangs leave one cell; the blocked gang gets the GPUs once they have really stopped."""
        for lease in cell.victims:
            if lease.phase != "ending":
                self.stop(lease, why or say("scheduler.preempted_by", job=state.job.job))
        if self.in_turn:
            self.settled.add(state.job.job)
        if self.rules.quotas:
            self._count(state.job, self._types(state))
        self.cells[state.job.job] = cell

    def _count(self, job: Job, types: Collection[str]) -> None:
        """The job's queue holds, or will hold, this many more, of one of these types."""
        if self.limits is not None:
            self.limits.take(job, types)
        queue = queue_of(job)
        self.held[queue] = self.held.get(queue, 0) + job.gpus
        if queue in self.waited_for:
            self.waited_for[queue] = max(0, self.waited_for[queue] - job.gpus)

    # --- what a job may have ----------------------------------------------------------------------------

    def pools(self, shape: int) -> list[Pool]:
        """Queue pools where jobs of this shape can run, at a price they accept."""
        return allowed_pools(self.fleet, shape, self.draft, self.prices)

    def open_pools(self, shape: int) -> list[Pool]:
        """The same, without pools where a blocked job lets none pass."""
        pools = allowed_pools(self.fleet, shape, self.draft, self.prices)
        return [pool for pool in pools if pool not in self.closed] if self.closed else pools

    def planned(self, state: JobState, pools: list[Pool]) -> list[Pool]:
        """The pools that the job's deadline plan lets it use now."""
        return pools if self.finish is None else self.finish.only(state.job.job, pools)

    def within_limits(self, state: JobState, pools: list[Pool]) -> list[Pool]:
        """The pools of GPU types that the job's queue may hold more of."""
        return pools if self.limits is None else self.limits.open(state.job, pools)

    def elsewhere(self, state: JobState, pools: list[Pool]) -> list[Pool]:
        """The pools without the site that just failed or evicted this job, if others could hold it."""
        if not state.avoid_site or self.now_s >= state.avoid_until_s:
            return pools
        others = [pool for pool in pools if pool.site != state.avoid_site]
        return others or pools

    def may_be_held(self, job: Job) -> bool:
        """Whether `not_now` has anything to check; usually it does not."""
        return (
            job.budget_microusd is not None
            or job.deferrable
            or bool(self.rules.quotas)
            or self.money is not None
        )

    def not_now(self, state: JobState, *, quotas: bool = True) -> Said | None:
        """Why a job that would fit may not start yet: money, a limit or quota, or a quiet hour ahead."""
        return self._refused(state, quotas=quotas) or self._defer(state)

    def is_held_back(self, state: JobState) -> bool:
        """Whether `not_now` has a reason. Thousands may wait for the same hour, so one of them is asked."""
        if not (self.rules.off_peak and state.job.deferrable):
            return self._refused(state) is not None
        quote = same_quote(state, self.fleet, now_s=self.now_s)
        if quote not in self.deferred and self._defer(state) is not None:
            self.deferred.add(quote)
        return quote in self.deferred or self._refused(state) is not None

    def _refused(self, state: JobState, *, quotas: bool = True) -> Said | None:
        reason = self.unpaid(state) or self.over_limit(state)
        return self.over_quota(state.job) if reason is None and quotas else reason

    def _defer(self, state: JobState) -> Said | None:
        if not (self.rules.off_peak and state.job.deferrable):
            return None
        free = sum(self.draft.free_in(pool) for pool in self.fleet.capacity.pools)
        return defer(state, self.fleet, free=free, now_s=self.now_s)

    def may_start(self, state: JobState) -> bool:
        """Whether only quotas could hold it back now."""
        return not self.may_be_held(state.job) or self.not_now(state, quotas=False) is None

    def unpaid(self, state: JobState) -> Said | None:
        """Why no budget pays for it: its own or its tenant's is used up."""
        budget = state.job.budget_microusd
        if budget is not None and state.leases and state.cost_microusd(self.now_s) >= budget:
            return say("scheduler.budget_used_up", budget=Usd(budget))
        return None if self.money is None else self.money.lacks(state.job, 1)

    def over_limit(self, state: JobState) -> Said | None:
        """Why its user, or its queue for its GPU types, may not hold more."""
        if self.limits is None:
            return None
        return self.limits.over_user(state.job) or self.limits.over_type(state.job, self._types(state))

    def _types(self, state: JobState) -> set[str]:
        return {pool.gpu for pool in self.fleet.able_pools(state.shape)}

    def over_quota(self, job: Job) -> Said | None:
        if not self.rules.quotas:
            return None
        return over_quota(job, self.rules, self.held, self.fleet.capacity.gpus, self.waited_for)

    def owns(self, job: Job) -> bool:
        """Whether other queues hold GPUs owed to this job's queue that it may reclaim."""
        return bool(self.borrowed) and is_own(job, self.rules, self.held)

    def search(self) -> Search | None:
        """Chooses which jobs to stop so that others fit; None if the rules allow no preemption."""
        if self._search is None and (self.rules.preempt != "none" or self.borrowed):
            self._search = Search(self)
        return self._search

    # --- when to think again ----------------------------------------------------------------------------

    def look_again_s(self) -> int | None:
        fleet, rules = self.fleet, self.rules
        limit = earliest(
            fleet.limits.next_s(self.now_s),
            self.slot_begins_s,
            self.ready_s,
            self.resize_ready_s,
            self.market_again_s,
            *self.avoided_until_s,
            None if self.finish is None else self.finish.look_again_s,
            None if self.shop is None else self.shop.look_again_s,
        )
        if self.avoided_until_s or self.market_again_s is not None or self.money is not None:
            broke_s = self.money.runs_out_s(self.now_s) if self.money is not None else None
            limit = earliest(limit, broke_s, fleet.purses.next_end_s())
        if self.targets is not None:  # until then no other job starts
            over_s = self.now_s - self.now_s % rules.rerank_s + REVIEW_S
            limit = earliest(limit, over_s)
        waiting = len(fleet.waiting) > len(self.starts)
        due = rules.deadlines and fleet.due
        if (waiting and (rules.preempt != "none" or rules.off_peak or rules.moves or due)) or (
            (fleet.open_leases or self.starts) and (is_mixed(fleet, rules) or fleet.elastic)
        ):
            every_s = rules.rerank_s
            review_s = (self.now_s // every_s + 1) * every_s  # on the hour's grid, so that reviews coincide
            return earliest(limit, review_s)
        return limit
