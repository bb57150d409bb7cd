"""Budgets: a tree of purses, and which of them pays for what.

A budget belongs to a tenant (a team), to a tenant's project (`TEAM/PROJECT`) or to an organisation that has
no jobs itself. What a child may spend is taken out of its parent's purse when it is set or renewed, so the
children of a budget can never have more than it has. A hard budget ends spending; one that only warns goes on
with what its parent has left.

All the rules are here. The scheduler asks for what is left, and the ledger (market/ledger.py) moves what the
functions here return between its accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from brimful.fleet.events import BudgetSet, BudgetsRenewed, BudgetWarned, Period
from brimful.fleet.job import Job

if TYPE_CHECKING:
    from brimful.fleet.reservations.reservation import Moved


class Move(NamedTuple):
    source: str  # an account of the ledger
    target: str
    microusd: int
    kind: str  # hold, void, credit
    job: str = ""
    lease: str = ""


class Running(NamedTuple):
    """A started lease, and its cost so far."""

    lease: str
    job: Job
    microusd: int


@dataclass(slots=True, kw_only=True)
class Budget:
    name: str
    within: str  # its parent; empty: none
    limit_microusd: int  # per period
    period: Period
    zone: str
    hard: bool
    since_s: int
    until_s: int | None  # when it renews; None: never
    left_microusd: int = 0  # neither spent, nor set aside for a job, nor given to a child
    spent_microusd: int = 0  # in this period, by it and all budgets below it
    allowed_microusd: int = 0  # in this period; less than the limit if its parent had too little
    warned_percent: int = 0
    last_spent_microusd: int | None = None  # in the previous period
    last_s: int = 0  # how long that was

    @property
    def account(self) -> str:
        return f"budget:{self.name}"


@dataclass(slots=True)
class _Held:
    """What is set aside for a job with its own budget."""

    near: str  # the budget it was taken from; empty: its tenant had none
    parts: list[tuple[str, int]]  # (account, micro-dollars), nearest first

    @property
    def microusd(self) -> int:
        return sum(microusd for _, microusd in self.parts)


class _Due(NamedTuple):
    """The cost of a still running lease in a period that is over."""

    paid: int
    overrun: int  # paid by the operator
    funder: str  # who gets back what turns out to be too much


@dataclass(slots=True)
class Purses:
    budgets: dict[str, Budget] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)  # by job
    _due: dict[str, _Due] = field(default_factory=dict)  # by lease

    def __bool__(self) -> bool:
        return bool(self.budgets)

    # -- questions -------------------------------------------------------------------------------------

    def near(self, job: Job) -> str:
        """The budget that pays for the job's leases first; empty: none."""
        project = f"{job.tenant}/{job.project}" if job.project else job.tenant
        return project if project in self.budgets else job.tenant if job.tenant in self.budgets else ""

    def line(self, name: str) -> Iterator[Budget]:
        """The budget and its ancestors, nearest first."""
        while name:
            found = self.budgets[name]
            yield found
            name = found.within

    def payers(self, name: str) -> Iterator[Budget]:
        """The budgets whose money it may use: up to the first hard one."""
        for budget in self.line(name):
            yield budget
            if budget.hard:
                return

    def draw(self, left: dict[str, int], near: str, microusd: int) -> None:
        """Take this much out of what each budget has left: nearest first, the hard one may go below zero."""
        for budget in self.payers(near):
            n = microusd if budget.hard else min(microusd, max(0, left[budget.name]))
            left[budget.name] -= n
            microusd -= n

    def children(self, name: str) -> list[Budget]:
        return [each for each in self.budgets.values() if each.within == name]

    def total(self, name: str) -> int:
        """What it, its children and the jobs with money set aside from them may still spend."""
        account = self.budgets[name].account
        held = sum(n for each in self._held.values() for source, n in each.parts if source == account)
        return (
            self.budgets[name].left_microusd
            + held
            + sum(self.total(each.name) for each in self.children(name))
        )

    def due_microusd(self, lease: str) -> int:
        """How much of a running lease was paid, or charged to the operator, when a period ended."""
        due = self._due.get(lease)
        return 0 if due is None else due.paid + due.overrun

    def lacking(self, event: BudgetSet, parent_left: int) -> int:
        """How much its parent, with this much left, is short of filling the budget to be set."""
        trial = deepcopy(self)
        parent = trial.budgets.get(event.within)
        if parent is None:
            return 0
        parent.left_microusd = plenty = 1 << 62
        trial.set(event)
        return max(0, plenty - parent.left_microusd - parent_left)

    def next_end_s(self) -> int | None:
        ends = (each.until_s for each in self.budgets.values() if each.until_s is not None)
        return min(ends, default=None)

    # -- setting ---------------------------------------------------------------------------------------

    def set(self, event: BudgetSet) -> list[Move]:
        """A fixed budget is what may be spent from here on; in a periodic one, earlier spending counts."""
        name, before = event.tenant, self.budgets.get(event.tenant)
        moves: list[Move] = []
        if before is not None and (event.microusd is None or before.within != event.within):
            moves += self._return_to_parent(before, before.left_microusd)
            self._forget(before)
        if event.microusd is None:
            return moves
        now = Budget(
            name=name,
            within=event.within if event.within in self.budgets else "",
            limit_microusd=event.microusd,
            period=event.period,
            zone=event.zone,
            hard=event.hard,
            since_s=event.since_s,
            until_s=event.until_s,
            left_microusd=self.budgets[name].left_microusd if name in self.budgets else 0,
        )
        same = before is not None and before.until_s is not None and before.until_s == event.until_s
        if same and before is not None:
            now.spent_microusd = before.spent_microusd
            now.last_spent_microusd, now.last_s = before.last_spent_microusd, before.last_s
        self.budgets[name] = now
        return moves + self._fund(now)

    def _fund(self, budget: Budget) -> list[Move]:
        """Fill it to its limit from its parent, or give back what is above the limit."""
        aside = self.total(budget.name) - budget.left_microusd  # held by its children and jobs
        if budget.period == "fixed":  # what was set aside for its jobs before comes on top
            account = budget.account
            aside -= sum(n for each in self._held.values() for source, n in each.parts if source == account)
        wanted = max(0, budget.limit_microusd - budget.spent_microusd - aside)
        more = wanted - budget.left_microusd
        moves = self._return_to_parent(budget, -more) if more < 0 else self._fill_from_parent(budget, more)
        budget.allowed_microusd = budget.spent_microusd + self.total(budget.name)
        return moves

    def _fill_from_parent(self, budget: Budget, microusd: int) -> list[Move]:
        parent = self.budgets.get(budget.within)
        if parent is not None:
            microusd = min(microusd, parent.left_microusd)
            parent.left_microusd -= microusd
        budget.left_microusd += microusd
        return _moves((self._funding_account(budget), budget.account, microusd, "hold"))

    def _return_to_parent(self, budget: Budget, microusd: int) -> list[Move]:
        parent = self.budgets.get(budget.within)
        if parent is not None:
            parent.left_microusd += microusd
        budget.left_microusd -= microusd
        return _moves((budget.account, self._funding_account(budget), microusd, "void"))

    def _funding_account(self, budget: Budget) -> str:
        """The account that funds it."""
        return f"budget:{budget.within}" if budget.within in self.budgets else f"tenant:{budget.name}"

    def _forget(self, budget: Budget) -> None:
        """What is set aside for its jobs belongs to its parent from here on."""
        del self.budgets[budget.name]
        above = self._funding_account(budget)
        for held in self._held.values():
            held.parts = [(above if a == budget.account else a, n) for a, n in held.parts]
            if held.near == budget.name:
                held.near = budget.within
        for child in self.children(budget.name):
            child.within = ""

    def credit(
        self, tenant: str, microusd: int, *, source: str = "operator:credits", kind: str = "credit"
    ) -> list[Move]:
        """It may spend this much more, until its budget is renewed."""
        if tenant not in self.budgets:
            return _moves((source, f"tenant:{tenant}", microusd, kind))
        self.budgets[tenant].left_microusd += microusd
        for budget in self.line(tenant):
            budget.allowed_microusd += microusd
        return _moves((source, f"budget:{tenant}", microusd, kind))

    def earned(self, moved: Iterable[Moved]) -> None:
        """What quotas earned is their owners' to spend."""
        for each in moved:
            if each.kind == "earn":
                self.credit(each.tenant, each.microusd)

    # -- spending --------------------------------------------------------------------------------------

    def submitted(self, job: Job) -> list[Move]:
        """A job's own budget is set aside at once, as far as its tenant has the money."""
        if job.budget_microusd is None:
            return []
        near = self.near(job)
        parts = [part for part in self._take(job.tenant, near, job.budget_microusd) if part[0] != OVERRUN]
        self._held[job.job] = _Held(near, parts)
        return [Move(source, _hold(job), microusd, "hold", job.job) for source, microusd in parts]

    def pay(self, job: Job, lease: str, microusd: int) -> list[tuple[str, int]]:
        """Which accounts pay the cost of a lease: (account, micro-dollars), with no remainder."""
        due, held = self._due.get(lease), self._held.get(job.job)
        if due is None and held is None and not self.budgets:
            payer = f"tenant:{job.tenant}" if job.budget_microusd is None else OVERRUN
            return [(payer, microusd)] if microusd else []
        paid: list[tuple[str, int]] = []
        if due is not None:
            paid = [(f"due:{lease}", min(microusd, due.paid))]
            microusd -= paid[0][1]
            paid.append((OVERRUN, min(microusd, due.overrun)))
            microusd -= paid[1][1]
            self._due[lease] = due._replace(paid=due.paid - paid[0][1])
        return [part for part in (*paid, *self._charge(job, microusd)) if part[1]]

    def close(self, job: Job, lease: str, microusd: int) -> int:
        """Pay for a lease that is over; returns what the operator bears of it."""
        parts = self.pay(job, lease, microusd)
        self.settled(lease)
        return sum(n for account, n in parts if account == OVERRUN)

    def _charge(self, job: Job, microusd: int) -> list[tuple[str, int]]:
        """Which accounts pay this much more for the job; it is counted as spent there."""
        if job.budget_microusd is None:
            near = self.near(job)
            parts = self._take(job.tenant, near, microusd)
            self._spend(near, sum(n for account, n in parts if account != OVERRUN))
            return parts
        held = self._held.get(job.job)
        spent = min(microusd, 0 if held is None else held.microusd)
        if held is not None:
            held.parts = _without(held.parts, spent)
            self._spend(held.near, spent)
        return [(_hold(job), spent), (OVERRUN, microusd - spent)]

    def settled(self, lease: str) -> list[Move]:
        """The lease is over: what was paid too early goes back."""
        due = self._due.pop(lease, None)
        return [] if due is None else _moves((f"due:{lease}", due.funder, due.paid, "void"))

    def over(self, job: Job) -> list[Move]:
        """The unused part of a job's own budget goes back where it came from."""
        held = self._held.pop(job.job, None)
        if held is None:
            return []
        for account, microusd in held.parts:
            budget = self.budgets.get(account.removeprefix("budget:"))
            if budget is not None and account == budget.account:
                budget.left_microusd += microusd
        return [Move(_hold(job), account, microusd, "void", job.job) for account, microusd in held.parts]

    def _take(self, tenant: str, near: str, microusd: int) -> list[tuple[str, int]]:
        """(account, micro-dollars) that add up to the sum; beyond a hard budget the operator pays."""
        parts: list[tuple[str, int]] = []
        is_hard = False
        for budget in self.payers(near):
            n = min(microusd, budget.left_microusd)
            budget.left_microusd -= n
            microusd -= n
            parts.append((budget.account, n))
            is_hard = budget.hard
        parts.append((OVERRUN if is_hard else f"tenant:{tenant}", microusd))
        return [part for part in parts if part[1]]

    def reserve(self, tenant: str, microusd: int) -> list[tuple[str, int]]:
        """Which accounts pay for a reservation, up front: (account, micro-dollars)."""
        near = tenant if tenant in self.budgets else ""
        parts = self._take(tenant, near, microusd)
        self._spend(near, microusd)
        return parts

    def paid(self, parts: Iterable[tuple[str, int]]) -> None:
        """(tenant, micro-dollars) for reservations."""
        for tenant, microusd in parts:
            self.reserve(tenant, microusd)

    def _spend(self, near: str, microusd: int) -> None:
        for budget in self.line(near):
            budget.spent_microusd += microusd

    # -- periods ---------------------------------------------------------------------------------------

    def renewed(self, event: BudgetsRenewed, running: Iterable[Running]) -> list[Move]:
        """Begin a new period: running leases pay for the old one out of its money, and the rest lapses."""
        ends = {name: until_s for name, until_s in event.budgets if name in self.budgets}
        moves: list[Move] = []
        for each in running:
            line = list(self.line(self.near(each.job)))
            if any(budget.name in ends for budget in line):
                moves += self._set_aside(each, f"tenant:{line[-1].name}")
        downwards = sorted(ends, key=lambda name: (len(list(self.line(name))), name))
        for name in reversed(downwards):
            budget = self.budgets[name]
            moves += self._return_to_parent(budget, budget.left_microusd)
        for name in downwards:
            budget = self.budgets[name]
            budget.last_spent_microusd, budget.last_s = budget.spent_microusd, event.since_s - budget.since_s
            budget.spent_microusd = budget.warned_percent = 0
            budget.since_s, budget.until_s = event.since_s, ends[name]
            moves += self._fund(budget)
        return moves

    def _set_aside(self, running: Running, funder: str) -> list[Move]:
        lease, job, microusd = running
        before = self._due.get(lease, _Due(0, 0, funder))
        parts = self._charge(job, max(0, microusd - before.paid - before.overrun))
        paid = [part for part in parts if part[0] != OVERRUN and part[1]]
        self._due[lease] = _Due(
            before.paid + sum(n for _, n in paid),
            before.overrun + sum(n for account, n in parts if account == OVERRUN),
            funder,
        )
        return [Move(source, f"due:{lease}", n, "hold", job.job, lease) for source, n in paid]

    def warned(self, event: BudgetWarned) -> None:
        if event.budget in self.budgets:
            self.budgets[event.budget].warned_percent = event.percent


OVERRUN = "operator:overrun"


def _hold(job: Job) -> str:
    return f"hold:{job.job}"


def _moves(*found: tuple[str, str, int, str]) -> list[Move]:
    return [Move(*each) for each in found if each[2]]


def _without(parts: list[tuple[str, int]], microusd: int) -> list[tuple[str, int]]:
    """What is left of them after using this much, in order."""
    left = []
    for account, n in parts:
        used = min(n, microusd)
        microusd -= used
        if n > used:
            left.append((account, n - used))
    return left
