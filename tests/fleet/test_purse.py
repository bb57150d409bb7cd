"""Budgets in trees: a hard one is never crossed at any level, and money is neither made nor lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime

from brimful.fleet.events import (
    BudgetSet,
    BudgetsRenewed,
    CancelRequested,
    CreditGranted,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    Period,
    from_record,
    to_record,
)
from brimful.fleet.money.purse import Budget
from brimful.fleet.state import Fleet
from brimful.market.ledger import Ledger
from brimful.market.periods import period_at
from brimful.scheduler.budgets import renewals, used_microusd, warnings
from tests.builders import USD, a_fleet, a_job, a_node, granted, joined

HISTORIES, STEPS = 100, 60
START_S = int(datetime(2026, 1, 15, tzinfo=UTC).timestamp())
DAY_S = 86400
TENANTS = ("red", "green")
NAMES = ("acme", *TENANTS, "red/one", "red/two", "green/one")
PERIODS: tuple[Period, ...] = ("fixed", "monthly", "monthly", "quarterly")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland")


class History:
    """A fleet and a ledger under random orders, with what each budget has let through counted beside them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fleet, self.ledger = Fleet(), Ledger()
        self.log: list[Event] = []
        self.now_s, self.jobs = START_S, 0
        self.through: Counter[str] = Counter()  # money of jobs under it, in its period
        self.credits: Counter[str] = Counter()
        self.under: dict[str, list[str]] = {}  # by job with a budget of its own: whose money was set aside
        self.then(joined(a_node(gpus=64), at_s=0))

    def then(self, event: Event) -> None:
        lines = {job: self._line(job) for job in self.fleet.jobs}
        known = len(self.ledger.transfers)
        self.log.append(event)
        self.fleet.apply(event)
        self.ledger.apply(event)
        for t in self.ledger.transfers[known:]:
            if t.job and t.target.startswith(("site:", "due:")) and t.source.startswith(("budget:", "hold:")):
                self.through.update(dict.fromkeys(self.under.get(t.job, lines.get(t.job, [])), t.microusd))
        self._count(event)
        self._check()

    def _line(self, job: str) -> list[str]:
        purses = self.fleet.purses
        return [each.name for each in purses.line(purses.near(self.fleet.jobs[job].job))]

    def _count(self, event: Event) -> None:
        match event:
            case JobSubmitted(job=job) if job.budget_microusd is not None:
                self.under[job.job] = self._line(job.job)
            case CreditGranted(tenant=tenant, microusd=microusd) if tenant in self.fleet.purses.budgets:
                names = [each.name for each in self.fleet.purses.line(tenant)]
                self.credits.update(dict.fromkeys(names, microusd))
            case BudgetSet(tenant=name):
                self.through[name] = self.fleet.purses.budgets[name].spent_microusd
                self._carry(name)
            case BudgetsRenewed(budgets=names):
                for name, _ in names:
                    self.through[name] = 0
                    self._carry(name)
            case _:
                pass

    def _carry(self, name: str) -> None:
        """What jobs had set aside before, out of a higher limit or a credit, stays theirs alone."""
        budget = self.fleet.purses.budgets[name]
        self.credits[name] = max(0, budget.allowed_microusd - budget.limit_microusd)
        if budget.period != "fixed" and self.credits[name]:
            assert budget.left_microusd == 0

    def _check(self) -> None:
        budgets, purses = self.fleet.purses.budgets, self.fleet.purses
        assert sum(self.ledger.balances.values()) == 0
        for name, budget in budgets.items():
            assert self.ledger.balance(f"budget:{name}") == budget.left_microusd >= 0
            assert budget.allowed_microusd <= budget.limit_microusd + self.credits[name]
            assert sum(purses.total(child.name) for child in purses.children(name)) <= purses.total(name)
            assert sum(child.limit_microusd for child in purses.children(name)) <= budget.limit_microusd
            if budget.hard:
                assert self.through[name] <= budget.limit_microusd + self.credits[name], name
                assert budget.spent_microusd + purses.total(name) <= budget.allowed_microusd
        for name, state in self.fleet.jobs.items():  # what lists show is what invoices sum up
            if state.open_lease is None:
                assert state.billed_microusd(self.now_s) == self.ledger.spent_microusd.get(name, 0)
        assert all(n >= 0 for a, n in self.ledger.balances.items() if a.startswith(("hold:", "due:")))

    def step(self) -> None:
        choose = self.random.choice
        self.now_s += choose((0, 60, 3600, DAY_S, 9 * DAY_S))
        for event in (*renewals(self.fleet, now_s=self.now_s), *warnings(self.fleet, now_s=self.now_s)):
            self.then(event)
        choose((self.set_budget, self.submit, self.submit, self.start, self.end, self.end, self.grant))()

    def set_budget(self) -> None:
        rnd, purses = self.random, self.fleet.purses
        name = rnd.choice(NAMES)
        team, _, project = name.partition("/")
        before: Budget | None = purses.budgets.get(name)
        parent = team if project else "acme" if name != "acme" and rnd.random() < 0.8 else ""
        parent = before.within if before else parent if parent in purses.budgets else ""
        if project and parent != team:
            return
        period = rnd.choice(PERIODS)
        zone, microusd = rnd.choice(ZONES), rnd.randrange(0, 100) * USD
        since_s, until_s = period_at(self.now_s, period, zone)
        if sum(child.limit_microusd for child in purses.children(name)) > microusd:
            return
        if parent:
            others = [each for each in purses.children(parent) if each.name != name]
            room = purses.budgets[parent].limit_microusd - sum(each.limit_microusd for each in others)
            microusd = min(microusd, max(0, room))
        self.then(
            BudgetSet(
                at_s=self.now_s,
                tenant=name,
                microusd=microusd,
                within=parent,
                period=period,
                zone=zone,
                hard=rnd.random() < 0.7,
                since_s=since_s,
                until_s=until_s,
            )
        )

    def submit(self) -> None:
        rnd, name = self.random, f"job-{self.jobs}"
        self.jobs += 1
        job = a_job(
            name,
            tenant=rnd.choice((*TENANTS, "blue")),
            project=rnd.choice(("", "one", "two")),
            budget_microusd=rnd.choice((None, None, rnd.randrange(1, 50) * USD)),
        )
        self.then(JobSubmitted(at_s=self.now_s, job=job))
        if rnd.random() < 0.1:
            self.then(CancelRequested(at_s=self.now_s, job=name))

    def start(self) -> None:
        free = self.fleet.free("node-0")
        if len(self.fleet.waiting) and free:
            name = next(iter(self.fleet.waiting.values())).job.job
            self.then(granted(name, gpus=free[:1], at_s=self.now_s, usd=self.random.randrange(1, 4)))
            self.then(LeaseStarted(at_s=self.now_s, lease=f"{name}.1"))

    def end(self) -> None:
        if self.fleet.open_leases:
            lease = self.random.choice(list(self.fleet.open_leases))
            # An engine may tell late: of an end before the last renewal.
            started_s = self.fleet.open_leases[lease].started_s or 0
            at_s = max(started_s, self.now_s - self.random.choice((0, 0, DAY_S)))
            self.then(LeaseEnded(at_s=at_s, lease=lease, exit_code=0))

    def grant(self) -> None:
        tenant = self.random.choice(TENANTS)
        self.then(CreditGranted(at_s=self.now_s, tenant=tenant, microusd=self.random.randrange(1, 20) * USD))


def test_no_hard_budget_is_crossed_at_any_level_in_random_trees_and_histories() -> None:
    renewed = crossed_soft = overrun = 0
    for seed in range(HISTORIES):
        history = History(seed)
        for _ in range(STEPS):
            history.step()
        renewed += sum(isinstance(event, BudgetsRenewed) for event in history.log)
        overrun += history.ledger.balance("operator:overrun") < 0
        crossed_soft += any(
            not each.hard and each.spent_microusd > each.allowed_microusd
            for each in history.fleet.purses.budgets.values()
        )
        _replays(history)
    assert renewed > HISTORIES
    assert overrun > HISTORIES // 10
    assert crossed_soft > HISTORIES // 100  # what only warns does not stop anybody


def _replays(history: History) -> None:
    """From the bytes of the log, to the same bytes."""
    fleet, ledger = Fleet(), Ledger()
    for event in history.log:
        kind, version, body = json.loads(json.dumps(to_record(event)))
        again = from_record(kind, version, body)
        fleet.apply(again)
        ledger.apply(again)
    assert ledger.balances == history.ledger.balances
    assert ledger.transfers == history.ledger.transfers
    assert repr(fleet.purses) == repr(history.fleet.purses)


def a_budget(name: str, usd: int, *, hard: bool = True, within: str = "", at_s: int = 0) -> BudgetSet:
    return BudgetSet(at_s=at_s, tenant=name, microusd=usd * USD, hard=hard, within=within)


def test_what_only_warns_goes_on_with_what_its_parent_has_left_and_not_with_its_siblings() -> None:
    world = a_fleet()
    world.then(
        a_budget("acme", 10),
        a_budget("red", 2, hard=False, within="acme"),
        a_budget("green", 5, within="acme"),
    )
    world.running(a_job("a", gpus=4, tenant="red")).then(LeaseEnded(at_s=3600, lease="a.1", exit_code=0))
    budgets = world.fleet.purses.budgets  # the lease came to 8 USD: 2 of red, 3 of acme, 3 the operator's
    assert {name: each.left_microusd // USD for name, each in budgets.items()} == {
        "acme": 0,
        "red": 0,
        "green": 5,
    }
    assert (budgets["red"].spent_microusd, budgets["acme"].spent_microusd) == (5 * USD, 5 * USD)


def test_a_lease_over_the_end_of_a_month_pays_each_month_its_part() -> None:
    since_s, until_s = period_at(START_S, "monthly", "Europe/Berlin")
    assert until_s is not None
    world = a_fleet().then(
        BudgetSet(
            at_s=START_S,
            tenant="red",
            microusd=10 * USD,
            period="monthly",
            zone="Europe/Berlin",
            since_s=since_s,
            until_s=until_s,
        )
    )
    world.running(a_job("a", tenant="red"), at_s=until_s - 3 * 3600)  # 2 USD an hour: 6 in the old month
    world.then(*renewals(world.fleet, now_s=until_s + 30))
    assert used_microusd(world.fleet, now_s=until_s) == {"red": 0}
    assert used_microusd(world.fleet, now_s=until_s + 3600) == {"red": 2 * USD}
    world.then(LeaseEnded(at_s=until_s + 3600, lease="a.1", exit_code=0))
    budget = world.fleet.purses.budgets["red"]
    assert (budget.last_spent_microusd, budget.spent_microusd, budget.left_microusd) == (
        6 * USD,
        2 * USD,
        8 * USD,
    )
    ledger = Ledger()
    for event in world.events:
        ledger.apply(event)
    assert ledger.spent_by_tenant == {"red": 8 * USD}
    assert ledger.balance("site:here") == 8 * USD
