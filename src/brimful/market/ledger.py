"""Who owes whom: double entry in integer micro-dollars, folded from the event log.

Every movement takes from one account and gives to another, so all balances always sum to zero. A budget
is held when the job is submitted, leases are posted against the hold, and what is left is given back.

Accounts: `tenant:NAME` (negative: has spent), `hold:JOB`, `site:NAME` (earned), `operator:overrun`.
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
    SiteFound,
    SiteLost,
)
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    at_s: int
    source: str
    target: str
    microusd: int
    kind: str  # hold, post, void
    job: str
    lease: str = ""


@dataclass(slots=True, kw_only=True)
class _Meter:
    """A lease on its way to the bill."""

    job: str
    site: str
    gpus: int
    microusd_per_gpu_hour: int
    started_s: int | None = None
    requeue: bool = False


def lease_microusd(
    *, microusd_per_gpu_hour: int, gpus: int, seconds: int, gpu_milli: int = WHOLE_GPU
) -> tuple[int, int]:
    """What a lease costs, and the remainder (in 1/3,600,000 micro-dollars) for the rounding account.

    Rounded once, at posting: rounding every tick would charge more for being preempted often. A share of a
    GPU pays that share.
    """
    return divmod(microusd_per_gpu_hour * gpus * gpu_milli * seconds, HOUR_S * WHOLE_GPU)


class Ledger:
    """Balances and transfers after every event applied so far."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.transfers: list[Transfer] = []
        # Remainders of postings, in 1/3,600,000 micro-dollars: kept, so that nothing vanishes by rounding.
        self.rounding = 0
        self.spent_microusd: dict[str, int] = {}  # by job; a lease that still runs is not in it yet
        self.spent_by_tenant: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._meters: dict[str, _Meter] = {}
        self._sites: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._open: set[str] = set()  # jobs that hold a lease

    def balance(self, account: str) -> int:
        return self.balances.get(account, 0)

    def apply(self, event: Event) -> None:
        match event:
            case NodeJoined(node=node, site=site):
                self._sites[node] = site
            case JobSubmitted(job=job, at_s=at_s):
                self._jobs[job.job] = job
                if job.budget_microusd is not None:
                    self._move(
                        _tenant(job), _hold(job), job.budget_microusd, at_s=at_s, kind="hold", job=job.job
                    )
            case LeaseGranted():
                self._open.add(event.job)
                self._meters[event.lease] = _Meter(
                    job=event.job,
                    site=self._sites[event.node],
                    gpus=len(event.gpus) + sum(len(gpus) for _, gpus in event.rest),
                    microusd_per_gpu_hour=event.microusd_per_gpu_hour,
                )
            case LeaseStarted(lease=lease, at_s=at_s):
                self._meters[lease].started_s = at_s
            case LeaseEnding(lease=lease, requeue=requeue):
                self._meters[lease].requeue = requeue
            case LeaseEnded():
                self._post(event)
            case CancelRequested(job=name, at_s=at_s):
                self._cancelled.add(name)
                if name not in self._open:
                    self._void(at_s, self._jobs[name])
            case NodeLeft() | SiteLost() | SiteFound():
                pass

    def forget(self, job: str) -> int:
        """Drop what is kept about a job that is over, and say what it cost: its transfers are history."""
        self._jobs.pop(job, None)
        self._cancelled.discard(job)
        hold = f"hold:{job}"
        if not self.balance(hold):
            self.balances.pop(hold, None)
        return self.spent_microusd.pop(job, 0)

    def forget_transfers(self, *, keep: int) -> None:
        """Keep the newest in memory; the event log rebuilds the others."""
        del self.transfers[:-keep]

    def _post(self, event: LeaseEnded) -> None:
        meter = self._meters.pop(event.lease)
        self._open.discard(meter.job)
        job = self._jobs[meter.job]
        seconds = 0 if meter.started_s is None else max(0, event.at_s - meter.started_s)
        owed, remainder = lease_microusd(
            microusd_per_gpu_hour=meter.microusd_per_gpu_hour,
            gpus=meter.gpus,
            gpu_milli=job.gpu_milli,
            seconds=seconds,
        )
        self.rounding += remainder
        payer = _tenant(job) if job.budget_microusd is None else _hold(job)
        # A hard budget is never crossed: what a stop's grace period runs over it is the operator's.
        paid = owed if job.budget_microusd is None else min(owed, self.balance(payer))
        site = f"site:{meter.site}"
        self._move(payer, site, paid, at_s=event.at_s, kind="post", job=job.job, lease=event.lease)
        self.spent_microusd[job.job] = self.spent_microusd.get(job.job, 0) + paid
        self.spent_by_tenant[job.tenant] = self.spent_by_tenant.get(job.tenant, 0) + paid
        if owed > paid:
            self._move(
                "operator:overrun",
                site,
                owed - paid,
                at_s=event.at_s,
                kind="overrun",
                job=job.job,
                lease=event.lease,
            )
        if not (meter.requeue or event.requeue) or job.job in self._cancelled:
            self._void(event.at_s, job)

    def _void(self, at_s: int, job: Job) -> None:
        rest = self.balance(_hold(job))
        if rest:
            self._move(_hold(job), _tenant(job), rest, at_s=at_s, kind="void", job=job.job)

    def _move(
        self, source: str, target: str, microusd: int, *, at_s: int, kind: str, job: str, lease: str = ""
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


def _tenant(job: Job) -> str:
    return f"tenant:{job.tenant}"


def _hold(job: Job) -> str:
    return f"hold:{job.job}"
