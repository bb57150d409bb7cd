"""Who owes whom: double entry in integer micro-dollars, folded from the event log.

Every movement takes from one account and gives to another, so all balances always sum to zero. A budget is
held when it is set or when the job is submitted, leases are posted against the hold, and the rest is given
back.

Accounts: `tenant:NAME` (negative: has spent), `budget:NAME` (what is left of a budget), `hold:JOB` (of a
job's own budget), `due:LEASE` (what a running lease cost in a period that is over), `site:NAME` (the
operator's earnings there), `seller:NAME` (those of a node's owner, or of a reservation's while it is lent),
`reservation:NAME` (paid ahead), `credit:NAME` (a tenant's, for reservations that were paused or returned),
`operator:overrun` (what ran over a hard budget), `operator:credits` (given away, less what expired),
`operator:bought` and `provider:NAME` (nodes that a provider made), `rounding`. `fleet/money/purse.py` decides
whose money pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from brimful.fleet import events
from brimful.fleet.charge import PARTS, Charge, change_price
from brimful.fleet.cloud import CLOUD, Cloud
from brimful.fleet.events import Event
from brimful.fleet.job import Job
from brimful.fleet.money.prices import PriceLine
from brimful.fleet.money.purse import OVERRUN, Move, Purses, Running
from brimful.fleet.node import Pool
from brimful.fleet.reservations.reservation import RESERVING, Moved, MoveKind, Reservations


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    at_s: int
    source: str
    target: str
    microusd: int
    kind: str  # hold, post, void, overrun, rounding, credit, bought, lent, reserve, spend_credit, expire
    job: str = ""
    lease: str = ""  # bought: the node
    reservation: str = ""


@dataclass(slots=True, kw_only=True)
class Unposted(Charge):
    """A lease that has not been posted yet."""

    job: Job
    pool: Pool
    sellers: tuple[tuple[str, int], ...]  # the owners of its GPUs: account, GPUs
    requeue: bool = False
    reservation: str = ""


class Ledger:
    """Balances and transfers after every event applied so far."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.transfers: list[Transfer] = []
        # By seller: what rounding has withheld, in parts of a micro-dollar. Whole micro-dollars are posted.
        self.remainders: dict[str, int] = {}
        self.spent_microusd: dict[str, int] = {}  # by job; without leases that still run
        self.spent_by_tenant: dict[str, int] = {}
        self.held_by_tenant: dict[str, int] = {}  # for its jobs with their own budgets
        self.unposted: dict[str, Unposted] = {}  # by lease
        self._jobs: dict[str, Job] = {}
        self._nodes: dict[str, tuple[Pool, str]] = {}  # node -> its pool, and who gets its earnings
        self._lines: dict[Pool, PriceLine] = {}
        self._purses = Purses()
        self._cancelled: set[str] = set()
        self._cloud = Cloud()  # nodes that providers made: what the operator owes for them
        self.reservations = Reservations()

    @property
    def rounding(self) -> int:
        """Remainders that do not add up to a micro-dollar yet, in 1/3,600,000."""
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
            case events.LeaseStarted():
                self._start(event)
            case events.LeaseEnding(lease=lease, requeue=requeue):
                self.unposted[lease].requeue = requeue
            case events.LeaseEnded():
                self._post(event)
            case events.PoolPriced():
                self._price(event)
            case events.CancelRequested(job=name, at_s=at_s) | events.JobSkipped(job=name, at_s=at_s):
                self._cancelled.add(name)
                if all(charge.job.job != name for charge in self.unposted.values()):
                    self._carry_out(self._purses.over(self._jobs[name]), at_s=at_s)
            case events.BudgetSet() | events.BudgetsRenewed() | events.CreditGranted():
                self._carry_out(self._fill(event), at_s=event.at_s)
            case _:
                self._reserve(event)
                self._buy(event)

    def _buy(self, event: Event) -> None:
        """Post what the operator owes a provider once the node is gone. Other events move no money."""
        if type(event) in CLOUD:
            self._cloud.apply(event)
        if isinstance(event, events.NodeGone):
            machine = self._cloud.gone[event.node]
            cost = machine.cost_microusd(event.at_s)
            if cost:
                provider = f"provider:{machine.offer.provider}"
                self._move(
                    "operator:bought", provider, cost, at_s=event.at_s, kind="bought", lease=event.node
                )

    def forget(self, job: str) -> int:
        """Drop what is kept about a job that is over, and return its cost: its transfers are history."""
        self._jobs.pop(job, None)
        self._cancelled.discard(job)
        hold = f"hold:{job}"
        if not self.balance(hold):
            self.balances.pop(hold, None)
        return self.spent_microusd.pop(job, 0)

    def forget_transfers(self, *, keep: int) -> None:
        """Keep the newest in memory; the event log can rebuild the others."""
        del self.transfers[:-keep]

    def _submit(self, jobs: Sequence[Job], *, at_s: int) -> None:
        for job in jobs:
            self._jobs[job.job] = job
            self._carry_out(self._purses.submitted(job), at_s=at_s)

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
            gpu_milli=event.gpu_milli or job.gpu_milli,
            microusd_per_gpu_hour=event.microusd_per_gpu_hour,
            granted_s=event.at_s,
            microusd_per_gib=event.microusd_per_gib,
            line=None if event.reservation else self._lines.get(pool),
            reservation=event.reservation,
        )
        size = self.unposted[event.lease].size
        self.reservations.lease_granted(event, pool, tenant=job.tenant, gpus=size)

    def _start(self, event: events.LeaseStarted) -> None:
        self.unposted[event.lease].started_s = event.at_s
        self.reservations.earnings.started(event.lease, at_s=event.at_s)

    def _price(self, event: events.PoolPriced) -> None:
        unposted = self.unposted.values()
        here = (charge for charge in unposted if charge.pool == event.pool and not charge.reservation)
        change_price(self._lines, event, here=here, everywhere=unposted)
        self.reservations.earnings.set_price(event)

    def _fill(self, event: events.BudgetSet | events.BudgetsRenewed | events.CreditGranted) -> list[Move]:
        """What setting or renewing budgets, or a credit, moves into purses and out of them."""
        if isinstance(event, events.CreditGranted):
            return self._purses.credit(event.tenant, event.microusd)
        if isinstance(event, events.BudgetSet):
            return self._purses.set(event)
        running = (
            Running(name, each.job, each.cost_microusd(event.since_s))
            for name, each in self.unposted.items()
            if each.runs_at(event.since_s)
        )
        return self._purses.renewed(event, running)

    def _post(self, event: events.LeaseEnded) -> None:
        charge = self.unposted.pop(event.lease)
        charge.close(event.at_s, moved_bytes=event.moved_bytes)
        job = charge.job
        owed, remainder = divmod(charge.owed(event.at_s), PARTS)
        # A hard budget is never exceeded: what a stop's grace period costs beyond it is paid by the operator.
        parts = self._purses.pay(job, event.lease, owed)
        paid = sum(microusd for source, microusd in parts if source != OVERRUN)
        if not paid:  # it is on the bill nevertheless
            parts = [(f"tenant:{job.tenant}", 0), *parts]
        for source, seller, share in _split(parts, charge.sellers):
            if share or source != OVERRUN:
                kind = "overrun" if source == OVERRUN else "post"
                self._carry_out([Move(source, seller, share, kind, job.job, event.lease)], at_s=event.at_s)
        self._carry_out(self._purses.settled(event.lease), at_s=event.at_s)
        self._round(charge.sellers[0][0], remainder, event)
        for moved in self.reservations.lease_ended(event, owed=owed):
            self._move_reserved(moved, at_s=event.at_s, lease=event.lease)
        self.spent_microusd[job.job] = self.spent_microusd.get(job.job, 0) + paid
        self.spent_by_tenant[job.tenant] = self.spent_by_tenant.get(job.tenant, 0) + paid
        if not (charge.requeue or event.requeue) or job.job in self._cancelled:
            self._carry_out(self._purses.over(job), at_s=event.at_s)

    def _reserve(self, event: Event) -> None:
        if not isinstance(event, RESERVING):
            return  # events that move no money
        for moved in self.reservations.apply(event):
            self._move_reserved(moved, at_s=event.at_s)
            if moved.kind == "post":
                self.balances.pop(f"reservation:{moved.reservation}")
                self.spent_by_tenant[moved.tenant] = (
                    self.spent_by_tenant.get(moved.tenant, 0) + moved.microusd
                )

    def _move_reserved(self, moved: Moved, *, at_s: int, lease: str = "") -> None:
        kind = "lent" if moved.kind == "earn" else moved.kind
        named = {"kind": kind, "lease": lease, "reservation": moved.reservation}
        for source, target, microusd in self._accounts(moved):
            self._move(source, target, microusd, at_s=at_s, **named)

    def _accounts(self, moved: Moved) -> list[tuple[str, str, int]]:
        """(source, target, amount) for each movement."""
        paid, credit, microusd = f"reservation:{moved.reservation}", f"credit:{moved.tenant}", moved.microusd
        if moved.kind == "reserve":
            parts = self._purses.reserve(moved.tenant, microusd) if microusd else []
            return [(source, paid, part) for source, part in parts]
        site = f"site:{moved.site}"
        if moved.kind == "earn":
            moves = self._purses.credit(moved.tenant, microusd, source=site, kind="lent")
            return [move[:3] for move in moves]
        accounts: dict[MoveKind, tuple[str, str]] = {
            "spend_credit": (credit, paid),
            "credit": (paid, credit),
            "post": (paid, site),
            "expire": (credit, "operator:credits"),
            "lent": (site, f"seller:{moved.tenant}"),
        }
        return [(*accounts[moved.kind], microusd)]

    def _round(self, seller: str, remainder: int, event: events.LeaseEnded) -> None:
        """Bills are rounded down; the seller still gets its due, as soon as it adds up to a micro-dollar."""
        due, self.remainders[seller] = divmod(self.remainders.get(seller, 0) + remainder, PARTS)
        if due:
            self._move("rounding", seller, due, at_s=event.at_s, kind="rounding", lease=event.lease)

    def _carry_out(self, moves: Iterable[Move], *, at_s: int) -> None:
        for move in moves:
            self._move(**move._asdict(), at_s=at_s)

    def _move(
        self,
        source: str,
        target: str,
        microusd: int,
        *,
        at_s: int,
        kind: str,
        job: str = "",
        lease: str = "",
        reservation: str = "",
    ) -> None:
        assert microusd >= 0, "money moves forward; a refund is a transfer the other way"
        self.balances[source] = self.balance(source) - microusd
        self.balances[target] = self.balance(target) + microusd
        if source.startswith("hold:"):
            self._hold(source, -microusd)
        if target.startswith("hold:"):
            self._hold(target, microusd)
        if source.startswith(("hold:", "due:")) and not self.balances[source]:
            del self.balances[source]  # closed: every job with a budget ever has one
        self.transfers.append(
            Transfer(
                at_s=at_s,
                source=source,
                target=target,
                microusd=microusd,
                kind=kind,
                job=job,
                lease=lease,
                reservation=reservation,
            )
        )

    def _hold(self, account: str, microusd: int) -> None:
        tenant = self._jobs[account.removeprefix("hold:")].tenant
        self.held_by_tenant[tenant] = self.held_by_tenant.get(tenant, 0) + microusd


def _split(
    parts: Sequence[tuple[str, int]], sellers: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, str, int]]:
    """(payer, seller, share) by GPUs held, to the micro-dollar; the number of payers does not change a
    seller's total."""
    gpus = sum(n for _, n in sellers) or 1
    due = 0
    for payer, microusd in parts:
        seen = given = 0
        for seller, n in sellers:
            seen += n
            upto = (due + microusd) * seen // gpus - due * seen // gpus if seen < gpus else microusd
            yield payer, seller, upto - given
            given = upto
        due += microusd
