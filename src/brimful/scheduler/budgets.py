"""Budgets in a decision: which have run out, which cannot pay for a request, whose period is over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from brimful.errors import BadInput
from brimful.fleet.events import BudgetsRenewed, BudgetWarned, Event
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Lease
from brimful.language import Sentence, Usd, say
from brimful.market.bid import Bid
from brimful.market.periods import period_at
from brimful.units import HOUR_S

WARN_PERCENT = (80, 100)  # of a budget
WARN_EVERY_S = 60


class Money:
    """What each budget has left now, with running leases counted up to this second.

    Promises made within one decision count too, so that two starts cannot rely on the same dollar.
    """

    def __init__(self, fleet: Fleet, *, now_s: int) -> None:
        self.purses = fleet.purses
        self.left = {name: each.left_microusd for name, each in self.purses.budgets.items()}
        self.leases: dict[str, list[Lease]] = {}  # by the budget they draw on first
        self.hourly: dict[str, int] = {}  # what these cost per hour, in micro-dollars
        for lease in fleet.open_leases.values() if self.left else ():
            job = fleet.jobs[lease.job].job
            near = self.purses.near(job)
            if near and job.budget_microusd is None and not lease.reservation:
                self._take(near, lease.cost_microusd(now_s) - self.purses.due_microusd(lease.lease))
                self.leases.setdefault(near, []).append(lease)
                self.hourly[near] = self.hourly.get(near, 0) + lease.hourly_microusd

    def ahead(self, period_s: int) -> Money:
        """The same, after everything that runs has run on for this long."""
        later = Money.__new__(Money)
        later.purses, later.left = self.purses, dict(self.left)
        later.leases, later.hourly = self.leases, self.hourly
        for near, hourly in self.hourly.items():
            later._take(near, hourly * period_s // HOUR_S)
        return later

    def within(self, near: str) -> tuple[str, int] | None:
        """The first hard budget in the chain, and what may be spent until it is empty; None: none."""
        left = 0
        for budget in self.purses.payers(near):
            left += self.left[budget.name]
            if budget.hard:
                return budget.name, left
        return None

    def for_job(self, job: Job) -> tuple[str, int] | None:
        near = self.purses.near(job)
        return self.within(near) if near else None

    def lacks(self, job: Job, microusd: int) -> Sentence | None:
        """Why this much of the job cannot be paid for; None if it can."""
        found = None if job.budget_microusd is not None else self.for_job(job)
        if found is None or found[1] >= microusd:
            return None
        tenant, left = found
        if left <= 0:
            allowed = self.purses.budgets[tenant].allowed_microusd
            used = {"used": Usd(allowed - min(0, self.left[tenant])), "allowed": Usd(allowed)}
            return say("scheduler.tenant_lacks.spent", tenant=tenant, left=Usd(0), **used)
        return say("scheduler.tenant_lacks", tenant=tenant, left=Usd(left), cost=Usd(microusd))

    def promise(self, job: Job, microusd: int) -> None:
        near = self.purses.near(job)
        if job.budget_microusd is None and near:
            self._take(near, microusd)

    def set_aside(self, job: Job, microusd: int) -> None:
        """For a job that has its own budget."""
        if near := self.purses.near(job):
            self._take(near, microusd)

    def broke(self) -> Iterator[tuple[str, Lease]]:
        """(budget, running lease) where the budget has nothing left."""
        for near, leases in self.leases.items():
            found = self.within(near)
            if found is not None and found[1] <= 0:
                for lease in leases:
                    if lease.phase != "ending":
                        yield found[0], lease

    def runs_out_s(self, now_s: int) -> int | None:
        """When the first hard budget will be spent at today's prices, or slightly before."""
        ends = {near: found for near in self.hourly if (found := self.within(near)) is not None}
        hourly: dict[str, int] = {}
        for near, (hard, _) in ends.items():
            hourly[hard] = hourly.get(hard, 0) + self.hourly[near]
        times = [
            now_s + max(1, -(-max(0, left) * HOUR_S // hourly[hard]))
            for hard, left in ends.values()
            if hourly[hard]
        ]
        return min(times, default=None)

    def _take(self, near: str, microusd: int) -> None:
        self.purses.draw(self.left, near, microusd)


class Payers:
    """Which new winners of a market pool their budgets can pay for together; says which cannot, and why.

    Each sets aside what one period at its own limit may cost, highest rank first; jobs that already run come
    before all of them. So no two jobs win on the same dollar.
    """

    def __init__(self, fleet: Fleet, money: Money, running: Collection[str], *, period_s: int) -> None:
        self._fleet, self._money, self._running, self._period_s = fleet, money, running, period_s
        self.reasons: dict[str, Sentence] = {}

    def __call__(self, winners: Sequence[tuple[Bid, int]]) -> list[str]:
        money, refused = self._money.ahead(self._period_s), []
        for bid, units in winners:
            more = units - bid.held if bid.held else units  # an elastic gang that grows
            if more <= 0 or (bid.bid in self._running and not bid.held):
                continue
            job, worst = self._fleet.jobs[bid.bid].job, self.worst(bid, more)
            reason = money.lacks(job, worst)
            if reason is None:
                money.promise(job, worst)
            else:
                refused.append(bid.bid)
                self.reasons[bid.bid] = reason
        return refused

    def promise(self, winners: Sequence[tuple[Bid, int]]) -> None:
        for bid, units in winners:
            self._money.promise(self._fleet.jobs[bid.bid].job, self.worst(bid, units))

    def worst(self, bid: Bid, units: int) -> int:
        """The most it may owe for this many GPUs before the next look."""
        return max(1, bid.limit * units * self._period_s // HOUR_S)

    def tight(self, bids: Sequence[Bid]) -> tuple[tuple[str, int], ...]:
        """(hard budget, what it has left) that may not cover all of these bids, so winners depend on it."""
        wanted: dict[str, int] = {}
        left: dict[str, int] = {}
        for bid in bids:
            job = self._fleet.jobs[bid.bid].job
            found = None if job.budget_microusd is not None else self._money.for_job(job)
            if found is not None:
                wanted[found[0]] = wanted.get(found[0], 0) + self.worst(bid, bid.quantity)
                left[found[0]] = min(found[1], left.get(found[0], found[1]))
        return tuple((name, left[name]) for name in sorted(wanted) if left[name] < wanted[name])


def renewals(fleet: Fleet, *, now_s: int) -> list[Event]:
    """Budgets whose period is over, grouped by when the new one began."""
    begun: dict[int, list[tuple[str, int]]] = {}
    for name, budget in sorted(fleet.purses.budgets.items()):
        if budget.until_s is None or now_s < budget.until_s:
            continue
        try:
            since_s, until_s = period_at(now_s, budget.period, budget.zone)
        except BadInput:  # a time zone this machine does not know must not stop the loop
            since_s, until_s = period_at(now_s, budget.period, "UTC")
        if until_s is not None:
            begun.setdefault(since_s, []).append((name, until_s))
    return [
        BudgetsRenewed(at_s=now_s, since_s=since_s, budgets=tuple(names))
        for since_s, names in sorted(begun.items())
    ]


def used_microusd(fleet: Fleet, *, now_s: int) -> dict[str, int]:
    """By budget: what was spent in its period, plus the cost so far of running leases under it."""
    purses = fleet.purses
    used = {name: each.spent_microusd for name, each in purses.budgets.items()}
    for lease in fleet.open_leases.values() if used else ():
        job = fleet.jobs[lease.job].job
        accrued = lease.cost_microusd(now_s) - purses.due_microusd(lease.lease)
        for budget in purses.line(purses.near(job)):
            used[budget.name] += accrued
    return used


def warnings(fleet: Fleet, *, now_s: int) -> list[Event]:
    """Budgets that are 80 % or fully used, once per period."""
    found: list[Event] = []
    for name, used in used_microusd(fleet, now_s=now_s).items():
        budget = fleet.purses.budgets[name]
        allowed = budget.allowed_microusd
        reached = max((p for p in WARN_PERCENT if allowed and used * 100 >= allowed * p), default=0)
        if reached > budget.warned_percent:
            found.append(
                BudgetWarned(
                    at_s=now_s, budget=name, percent=reached, used_microusd=used, allowed_microusd=allowed
                )
            )
    return found
