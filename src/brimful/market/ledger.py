"""Who owes whom: double entry in integer micro-dollars, folded from the event log.

Every movement takes from one account and gives to another, so all balances always sum to zero. A budget
is held when it is set or when the job is submitted, leases are posted against the hold, and what is left is
given back.

Accounts: `tenant:NAME` (negative: has spent), `budget:NAME` (a tenant's hard budget, what is left of it),
`hold:JOB` (of a job's own budget), `site:NAME` (the operator's earnings there), `seller:NAME` (those of a
node's owner), `operator:overrun` (what ran over a hard budget), `operator:credits` (given away), `rounding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from brimful.fleet import events
from brimful.fleet.charge import PARTS, Charge, change_price
from brimful.fleet.events import Event
from brimful.fleet.job import Job
from brimful.fleet.node import Pool
from brimful.fleet.prices import PriceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    at_s: int
    source: str
    target: str
    microusd: int
    kind: str  # hold, post, void, overrun, rounding, credit
    job: str = ""
    lease: str = ""


@dataclass(slots=True, kw_only=True)
class Unposted(Charge):
    """A lease on its way to the bill."""

    job: Job
    pool: Pool
    sellers: tuple[tuple[str, int], ...]  # whose GPUs it holds: account, GPUs
    requeue: bool = False


class Ledger:
    """Balances and transfers after every event applied so far."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.transfers: list[Transfer] = []
        # By seller: what roundings have kept from it, in parts of a micro-dollar. A whole one is posted.
        self.remainders: dict[str, int] = {}
        self.spent_microusd: dict[str, int] = {}  # by job; a lease that still runs is not in it yet
        self.spent_by_tenant: dict[str, int] = {}
        self.unposted: dict[str, Unposted] = {}  # by lease
        self._jobs: dict[str, Job] = {}
        self._nodes: dict[str, tuple[Pool, str]] = {}  # node -> its pool, and who earns what it earns
        self._lines: dict[Pool, PriceLine] = {}
        self._budgets: set[str] = set()  # tenants with a hard budget
        self._of_budget: set[str] = set()  # jobs whose hold was taken from their tenant's budget
        self._cancelled: set[str] = set()

    @property
    def rounding(self) -> int:
        """Remainders that do not make a micro-dollar yet, in 1/3,600,000."""
        return sum(self.remainders.values())

    def balance(self, account: str) -> int:
        return self.balances.get(account, 0)

    def apply(self, event: Event) -> None:
        match event:
            case events.NodeJoined(node=node):
                earner = f"seller:{event.owner}" if event.owner else f"site:{event.site}"
                self._nodes[node] = (event.pool, earner)
            case events.JobSubmitted() | events.ArraySubmitted():
                self._submit(event.tasks(), at_s=event.at_s)
            case events.LeaseGranted():
                self._grant(event)
            case events.LeaseStarted(lease=lease, at_s=at_s):
                self.unposted[lease].started_s = at_s
            case events.LeaseEnding(lease=lease, requeue=requeue):
                self.unposted[lease].requeue = requeue
            case events.LeaseEnded():
                self._post(event)
            case events.PoolPriced():
                self._price(event)
            case events.CancelRequested(job=name, at_s=at_s) | events.JobSkipped(job=name, at_s=at_s):
                self._cancelled.add(name)
                if all(charge.job.job != name for charge in self.unposted.values()):
                    self._void(at_s, self._jobs[name])
            case events.BudgetSet():
                self._budget(event)
            case events.CreditGranted(tenant=tenant, microusd=microusd, at_s=at_s):
                self._move("operator:credits", self._purse(tenant), microusd, at_s=at_s, kind="credit")
            case _:
                pass  # what moves no money

    def forget(self, job: str) -> int:
        """Drop what is kept about a job that is over, and say what it cost: its transfers are history."""
        self._jobs.pop(job, None)
        self._cancelled.discard(job)
        self._of_budget.discard(job)
        hold = f"hold:{job}"
        if not self.balance(hold):
            self.balances.pop(hold, None)
        return self.spent_microusd.pop(job, 0)

    def forget_transfers(self, *, keep: int) -> None:
        """Keep the newest in memory; the event log rebuilds the others."""
        del self.transfers[:-keep]

    def _submit(self, jobs: Sequence[Job], *, at_s: int) -> None:
        for job in jobs:
            self._jobs[job.job] = job
            if job.budget_microusd is None:
                continue
            purse, hold = self._purse(job.tenant), job.budget_microusd
            if job.tenant in self._budgets:
                hold = min(hold, self.balance(purse))
                self._of_budget.add(job.job)
            self._move(purse, _hold(job), hold, at_s=at_s, kind="hold", job=job.job)

    def _grant(self, event: events.LeaseGranted) -> None:
        pool, job = self._nodes[event.node][0], self._jobs[event.job]
        held: dict[str, int] = {}
        for node, gpus in ((event.node, event.gpus), *event.rest):
            earner = self._nodes[node][1]
            held[earner] = held.get(earner, 0) + len(gpus)
        self.unposted[event.lease] = Unposted(
            job=job,
            pool=pool,
            sellers=tuple(held.items()),
            size=sum(held.values()),
            gpu_milli=job.gpu_milli,
            microusd_per_gpu_hour=event.microusd_per_gpu_hour,
            granted_s=event.at_s,
            microusd_per_gib=event.microusd_per_gib,
            line=self._lines.get(pool),
        )

    def _price(self, event: events.PoolPriced) -> None:
        unposted = self.unposted.values()
        here = (charge for charge in unposted if charge.pool == event.pool)
        change_price(self._lines, event, here=here, everywhere=unposted)

    def _budget(self, event: events.BudgetSet) -> None:
        """Set aside what the tenant may spend, or give back what is left of it."""
        tenant, budget = f"tenant:{event.tenant}", f"budget:{event.tenant}"
        more = (event.microusd or 0) - self.balance(budget)
        if more >= 0:
            self._move(tenant, budget, more, at_s=event.at_s, kind="hold")
        else:
            self._move(budget, tenant, -more, at_s=event.at_s, kind="void")
        if event.microusd is None:
            self._budgets.discard(event.tenant)
            self.balances.pop(budget, None)
        else:
            self._budgets.add(event.tenant)

    def _purse(self, tenant: str) -> str:
        """Where a tenant's money is taken from."""
        return f"budget:{tenant}" if tenant in self._budgets else f"tenant:{tenant}"

    def _post(self, event: events.LeaseEnded) -> None:
        charge = self.unposted.pop(event.lease)
        charge.close(event.at_s, moved_bytes=event.moved_bytes)
        job = charge.job
        owed, remainder = divmod(charge.owed(event.at_s), PARTS)
        has_limit = job.budget_microusd is not None or job.tenant in self._budgets
        payer = self._purse(job.tenant) if job.budget_microusd is None else _hold(job)
        # A hard budget is never crossed: what a stop's grace period runs over it is the operator's.
        paid = min(owed, self.balance(payer)) if has_limit else owed
        parts = (("post", payer, paid), ("overrun", "operator:overrun", owed - paid))
        for kind, source, microusd in parts:
            for seller, share in _split(microusd, charge.sellers):
                if share or kind == "post":
                    self._move(
                        source, seller, share, at_s=event.at_s, kind=kind, job=job.job, lease=event.lease
                    )
        self._round(charge.sellers[0][0], remainder, event)
        self.spent_microusd[job.job] = self.spent_microusd.get(job.job, 0) + paid
        self.spent_by_tenant[job.tenant] = self.spent_by_tenant.get(job.tenant, 0) + paid
        if not (charge.requeue or event.requeue) or job.job in self._cancelled:
            self._void(event.at_s, job)

    def _round(self, seller: str, remainder: int, event: events.LeaseEnded) -> None:
        """Bills are rounded down; the seller gets its due all the same, as soon as it is a micro-dollar."""
        due, self.remainders[seller] = divmod(self.remainders.get(seller, 0) + remainder, PARTS)
        if due:
            self._move("rounding", seller, due, at_s=event.at_s, kind="rounding", lease=event.lease)

    def _void(self, at_s: int, job: Job) -> None:
        rest = self.balance(_hold(job))
        if rest:
            purse = self._purse(job.tenant) if job.job in self._of_budget else f"tenant:{job.tenant}"
            self._move(_hold(job), purse, rest, at_s=at_s, kind="void", job=job.job)

    def _move(
        self, source: str, target: str, microusd: int, *, at_s: int, kind: str, job: str = "", lease: str = ""
    ) -> None:
        assert microusd >= 0, "money moves forward; a refund is a transfer the other way"
        self.balances[source] = self.balance(source) - microusd
        self.balances[target] = self.balance(target) + microusd
        if source.startswith("hold:") and not self.balances[source]:
            del self.balances[source]  # closed: there is one for every job that ever had a budget
        self.transfers.append(
            Transfer(
                at_s=at_s, source=source, target=target, microusd=microusd, kind=kind, job=job, lease=lease
            )
        )


def _split(microusd: int, sellers: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Shares by GPUs held that add up to the sum, to the micro-dollar."""
    sellers = list(sellers)
    gpus = sum(n for _, n in sellers) or 1
    before = seen = 0
    for seller, n in sellers:
        seen += n
        upto = microusd * seen // gpus if seen < gpus else microusd
        yield seller, upto - before
        before = upto


def _hold(job: Job) -> str:
    return f"hold:{job.job}"
