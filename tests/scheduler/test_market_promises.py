"""Random fleets and events once more, where bids decide: elastic bids, quotas, windows and budgets."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from brimful.errors import BrimfulError
from brimful.fleet.events import BidChanged, BudgetSet, JobSubmitted, from_record, to_record
from brimful.fleet.job import Curve, Job
from brimful.fleet.node import Node, Pool
from brimful.fleet.state import Fleet
from brimful.market.ledger import Ledger
from brimful.market.pools import Market, ReserveTerms, limit_of
from brimful.market.reservation import buy, give_back, pause, quote, resume
from brimful.market.spot import Terms
from brimful.scheduler.auction import Auctions
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Ports
from brimful.scheduler.rules import Rules
from brimful.sim.world import SITE
from tests.builders import USD
from tests.scheduler.test_elastic_promises import CURVES, RANGES, ElasticPromises
from tests.scheduler.test_promises import QUOTA, TYPES, jobs, nodes

RULES = [
    POLICIES["brim"],
    replace(POLICIES["brim"], quotas=QUOTA, rerank_s=60),
    replace(POLICIES["backfill"], quotas=QUOTA, min_run_s=0),
]
FLOOR = 1_000_000  # what every node costs
limits = st.none() | st.sampled_from([FLOOR // 2, FLOOR, 2 * FLOOR, 5 * FLOOR])
tenants = st.sampled_from(["ann", "bob", "xi"])


class MarketPromises(ElasticPromises):
    """Two market pools, one of each GPU type: what holds where an order decides, and the money besides."""

    @initialize(
        rules=st.sampled_from(RULES),
        new=nodes,
        old=nodes,
        notice_s=st.sampled_from([30, 60]),
        hard=st.booleans(),
    )
    def begin(self, rules: Rules, new: Node, old: Node, notice_s: int, hard: bool) -> None:
        self._begin(rules, [replace(new, node="n0", gpu="new"), replace(old, node="n1", gpu="old")])
        self.market = Market(
            terms=Terms(notice_s=notice_s, period_s=30, max_wait_s=900, drain_s=120),
            reserve=ReserveTerms(idle_s=60),
        )
        self.ports = Ports(store=self.store, engines={SITE: self.engine}, market=Auctions(self.market))
        self.ledger, self.seen = Ledger(), 0
        self._write(BudgetSet(at_s=0, tenant="ann", microusd=20 * USD, hard=hard))

    @rule(job=jobs, limit=limits, tenant=tenants, work_s=st.integers(0, 2000))
    def bid(self, job: Job, limit: int | None, tenant: str, work_s: int) -> None:
        self._bid(job, limit, tenant, work_s)

    @rule(
        job=jobs,
        least_most=st.sampled_from(RANGES),
        curves=st.sampled_from(CURVES),
        limit=limits,
        tenant=tenants,
        work_s=st.integers(0, 4000),
    )
    def bid_for_a_range(
        self,
        job: Job,
        least_most: tuple[int, int],
        curves: tuple[Curve, ...],
        limit: int | None,
        tenant: str,
        work_s: int,
    ) -> None:
        least, most = least_most
        job = replace(job, gpus=least, min_gpus=least, max_gpus=most, curves=curves)
        self._bid(job, limit, tenant, work_s)

    def _bid(self, job: Job, limit: int | None, tenant: str, work_s: int) -> None:
        name = f"j{len(self.work_s)}"
        self.work_s[name] = work_s
        job = replace(job, job=name, tenant=tenant, limit_microusd_per_gpu_hour=limit)
        self._write(JobSubmitted(at_s=self.engine.now_s, job=job))

    @rule(pick=st.integers(0, 20), limit=st.sampled_from([2 * FLOOR, 8 * FLOOR]))
    def raise_a_bid(self, pick: int, limit: int) -> None:
        state = self.fleet.jobs.get(f"j{pick}")
        if state is not None and state.ended_s is None and limit > limit_of(state.job, floor=FLOOR):
            self._write(BidChanged(at_s=self.engine.now_s, job=f"j{pick}", limit_microusd_per_gpu_hour=limit))

    @rule(gpu=st.sampled_from(TYPES), gpus=st.integers(1, 8), tenant=tenants, granted=st.booleans())
    def a_window_is_bought_or_granted(self, gpu: str, gpus: int, tenant: str, granted: bool) -> None:
        now_s, pool = self.engine.now_s, Pool(SITE, gpu)
        try:
            offered = quote(self.fleet, self.market, pool, gpus=gpus, hours=1, now_s=now_s, granted=granted)
            self._write(buy(self.fleet, offered, self.market.reserve, tenant=tenant, now_s=now_s))
        except BrimfulError:
            return
        self._tick()

    @rule(verb=st.sampled_from([pause, resume, give_back]), pick=st.integers(0, 5))
    def a_window_changes(self, verb: object, pick: int) -> None:
        names = sorted(self.fleet.reservations.by_name)
        try:
            assert callable(verb)
            event = verb(self.fleet, names[pick % len(names)], gpus=None, now_s=self.engine.now_s)
        except (BrimfulError, ZeroDivisionError):
            return
        self._write(event)
        self._tick()

    @rule(minutes=st.integers(1, 15))
    def the_market_goes_on(self, minutes: int) -> None:
        """A look whenever the market asks for one, as the server's loop does."""
        until_s = self.engine.now_s + 60 * minutes
        for _ in range(200):
            look_s = self.ports.decided.plan.look_again_s
            if look_s is None or look_s >= until_s:
                break
            self.time_passes(max(1, look_s - self.engine.now_s))
        self.time_passes(max(0, until_s - self.engine.now_s))

    def _no_queue_is_over_its_quota(self) -> None:
        """What a reservation has paid for does not count: no quota stands in its way."""
        if self.policy.quotas:
            held = [
                lease.size
                for lease in self.fleet.open_leases.values()
                if self.fleet.jobs[lease.job].job.queue == "a" and not lease.reservation
            ]
            assert sum(held) <= 6

    def _post(self) -> None:
        """Everything the fleet has folded, event by event."""
        for event in self.store.log[self.seen : self.fleet.seq]:
            self.ledger.apply(event)
            assert sum(self.ledger.balances.values()) == 0
        self.seen = self.fleet.seq

    @invariant()
    def purses_are_what_the_accounts_say_and_hard_budgets_are_never_crossed(self) -> None:
        self._post()
        for name, budget in self.fleet.purses.budgets.items():
            assert budget.left_microusd == self.ledger.balance(f"budget:{name}") >= 0
        assert self.fleet.reservations == self.ledger.reservations

    @invariant()
    def nobody_is_billed_above_its_limit_and_all_of_a_pool_pay_the_same(self) -> None:
        for lease in self.fleet.open_leases.values():
            if lease.reservation:
                assert lease.price_now() == 0
            elif lease.line is not None:
                assert lease.line is self.fleet.prices[self.fleet.nodes[lease.node].pool]
                job = self.fleet.jobs[lease.job].job
                assert lease.price_now() <= limit_of(job, floor=FLOOR), lease.lease

    @invariant()
    def a_reserved_gpu_is_used_once(self) -> None:
        for name, each in self.fleet.reservations.by_name.items():
            used = [x.size for x in self.fleet.open_leases.values() if x.reservation == name]
            assert sum(used) == each.used
            assert 0 <= each.lent <= each.gpus - each.used

    def teardown(self) -> None:
        """The log alone, through JSON, gives the same state."""
        if not hasattr(self, "ledger"):
            return
        self._post()
        again, books = Fleet(), Ledger()
        for event in self.store.log[: self.seen]:
            back = from_record(*to_record(event))
            again.apply(back)
            books.apply(back)
        assert again.open_leases == self.fleet.open_leases
        assert books.balances == self.ledger.balances
        assert again.purses == self.fleet.purses


HISTORIES = int(os.environ.get("BRIMFUL_HISTORIES", "25"))
MarketPromises.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=50, deadline=None)
TestMarketPromises = MarketPromises.TestCase
