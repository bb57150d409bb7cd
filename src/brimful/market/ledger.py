"""Who owes whom: double entry in integer micro-dollars, folded from the event log.

Every movement takes from one account and gives to another, so all balances always sum to zero. A budget
is held when it is set or when the job is submitted, leases are posted against the hold, and what is left is
given back.

Accounts: `tenant:NAME` (negative: has spent), `budget:NAME` (a tenant's hard budget, what is left of it),
`hold:JOB` (of a job's own budget), `site:NAME` (the operator's earnings there), `seller:NAME` (those of a
node's owner), `operator:overrun` (what ran over a hard budget), `operator:credits` (given away), `rounding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from brimful.fleet.events import (
    BudgetSet,
    CancelRequested,
    CreditGranted,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    PoolPriced,
)
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Pool
from brimful.fleet.prices import PriceLine
from brimful.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    at_s: int
    source: str
    target: str
    microusd: int
    kind: str  # hold, post, void, overrun, rounding, credit
    job: str = ""
    lease: str = ""


# Owed money is counted in 1/3,600,000 micro-dollars: a thousandth of a GPU for a second.
PARTS = HOUR_S * WHOLE_GPU
PRICES_KEPT = 20_000


@dataclass(slots=True, kw_only=True)
class _Meter:
    """A lease on its way to the bill."""

    job: str
    pool: Pool
    sellers: tuple[tuple[str, int], ...]  # whose GPUs it holds: account, GPUs
    gpus: int
    microusd_per_gpu_hour: int
    granted_s: int
    line: PriceLine | None = None  # of a market pool: the price of its time, not of its start
    started_s: int | None = None
    requeue: bool = False

    def owed(self, job: Job, end_s: int) -> int:
        """In parts of a micro-dollar, exactly."""
        if self.started_s is None:
            return 0
        if self.line is None:
            priced = self.microusd_per_gpu_hour * max(0, end_s - self.started_s)
        else:
            price = self.microusd_per_gpu_hour
            priced = self.line.between(self.started_s, end_s, granted_s=self.granted_s, granted=price)
        return priced * self.gpus * job.gpu_milli


def lease_microusd(
    *, microusd_per_gpu_hour: int, gpus: int, seconds: int, gpu_milli: int = WHOLE_GPU
) -> tuple[int, int]:
    """What a lease costs, and the remainder (in 1/3,600,000 micro-dollars) for the rounding account.

    Rounded once, at posting: rounding every tick would charge more for being preempted often. A share of a
    GPU pays that share.
    """
    return divmod(microusd_per_gpu_hour * gpus * gpu_milli * seconds, PARTS)


class Ledger:
    """Balances and transfers after every event applied so far."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.transfers: list[Transfer] = []
        # By seller: what roundings have kept from it, in parts of a micro-dollar. A whole one is posted.
        self.remainders: dict[str, int] = {}
        self.spent_microusd: dict[str, int] = {}  # by job; a lease that still runs is not in it yet
        self.spent_by_tenant: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._meters: dict[str, _Meter] = {}
        self._nodes: dict[str, tuple[Pool, str]] = {}  # node -> its pool, and who earns what it earns
        self._lines: dict[Pool, PriceLine] = {}
        self._budgets: set[str] = set()  # tenants with a hard budget
        self._of_budget: set[str] = set()  # jobs whose hold was taken from their tenant's budget
        self._cancelled: set[str] = set()
        self._open: set[str] = set()  # jobs that hold a lease

    @property
    def rounding(self) -> int:
        """Remainders that do not make a micro-dollar yet, in 1/3,600,000."""
        return sum(self.remainders.values())

    def balance(self, account: str) -> int:
        return self.balances.get(account, 0)

    def apply(self, event: Event) -> None:
        match event:
            case NodeJoined(node=node):
                earner = f"seller:{event.owner}" if event.owner else f"site:{event.site}"
                self._nodes[node] = (event.described().pool, earner)
            case JobSubmitted(job=job, at_s=at_s):
                self._submit(job, at_s=at_s)
            case LeaseGranted():
                self._grant(event)
            case LeaseStarted(lease=lease, at_s=at_s):
                self._meters[lease].started_s = at_s
            case LeaseEnding(lease=lease, requeue=requeue):
                self._meters[lease].requeue = requeue
            case LeaseEnded():
                self._post(event)
            case PoolPriced():
                self._price(event)
            case CancelRequested(job=name, at_s=at_s):
                self._cancelled.add(name)
                if name not in self._open:
                    self._void(at_s, self._jobs[name])
            case BudgetSet():
                self._budget(event)
            case CreditGranted(tenant=tenant, microusd=microusd, at_s=at_s):
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

    def _submit(self, job: Job, *, at_s: int) -> None:
        self._jobs[job.job] = job
        if job.budget_microusd is None:
            return
        purse, hold = self._purse(job.tenant), job.budget_microusd
        if job.tenant in self._budgets:
            hold = min(hold, self.balance(purse))
            self._of_budget.add(job.job)
        self._move(purse, _hold(job), hold, at_s=at_s, kind="hold", job=job.job)

    def _grant(self, event: LeaseGranted) -> None:
        self._open.add(event.job)
        pool = self._nodes[event.node][0]
        held: dict[str, int] = {}
        for node, gpus in ((event.node, event.gpus), *event.rest):
            earner = self._nodes[node][1]
            held[earner] = held.get(earner, 0) + len(gpus)
        self._meters[event.lease] = _Meter(
            job=event.job,
            pool=pool,
            sellers=tuple(held.items()),
            gpus=sum(held.values()),
            microusd_per_gpu_hour=event.microusd_per_gpu_hour,
            granted_s=event.at_s,
            line=self._lines.get(pool),
        )

    def _price(self, event: PoolPriced) -> None:
        line = self._lines.get(event.pool)
        if line is None:
            line = self._lines[event.pool] = PriceLine()
            for meter in self._meters.values():  # those that began at the posted price
                if meter.pool == event.pool:
                    meter.line = line
        line.add(event.point)
        if len(line.points) > 2 * PRICES_KEPT:
            oldest_s = min((meter.granted_s for meter in self._meters.values()), default=event.at_s)
            line.forget_before(min(oldest_s, line.points[-PRICES_KEPT].at_s))

    def _budget(self, event: BudgetSet) -> None:
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

    def _post(self, event: LeaseEnded) -> None:
        meter = self._meters.pop(event.lease)
        self._open.discard(meter.job)
        job = self._jobs[meter.job]
        owed, remainder = divmod(meter.owed(job, event.at_s), PARTS)
        has_limit = job.budget_microusd is not None or job.tenant in self._budgets
        payer = self._purse(job.tenant) if job.budget_microusd is None else _hold(job)
        # A hard budget is never crossed: what a stop's grace period runs over it is the operator's.
        paid = min(owed, self.balance(payer)) if has_limit else owed
        parts = (("post", payer, paid), ("overrun", "operator:overrun", owed - paid))
        for kind, source, microusd in parts:
            for seller, share in _split(microusd, meter.sellers):
                if share or kind == "post":
                    self._move(
                        source, seller, share, at_s=event.at_s, kind=kind, job=job.job, lease=event.lease
                    )
        self._round(meter.sellers[0][0], remainder, event)
        self.spent_microusd[job.job] = self.spent_microusd.get(job.job, 0) + paid
        self.spent_by_tenant[job.tenant] = self.spent_by_tenant.get(job.tenant, 0) + paid
        if not (meter.requeue or event.requeue) or job.job in self._cancelled:
            self._void(event.at_s, job)

    def _round(self, seller: str, remainder: int, event: LeaseEnded) -> None:
        """Bills are rounded down; the seller gets its due all the same, as soon as it is a micro-dollar."""
        whole, self.remainders[seller] = divmod(self.remainders.get(seller, 0) + remainder, PARTS)
        if whole:
            self._move("rounding", seller, whole, at_s=event.at_s, kind="rounding", lease=event.lease)

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
