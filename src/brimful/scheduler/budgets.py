"""Hard budgets of tenants: who has run out, and who could not pay for what it asks."""

from __future__ import annotations

from collections.abc import Iterator

from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Lease
from brimful.language import Sentence, Usd, say


class Money:
    """What each tenant with a budget has left now, running leases counted to this second.

    Promises made within one decision are counted too, so that two starts do not count on the same dollar.
    """

    def __init__(self, fleet: Fleet, *, now_s: int) -> None:
        self.left: dict[str, int] = dict(fleet.purses.left_microusd)
        self.leases: dict[str, list[Lease]] = {}
        self.hourly: dict[str, int] = {}  # what running leases cost an hour, in micro-dollars
        for lease in fleet.open_leases.values() if self.left else ():
            job = fleet.jobs[lease.job].job
            if job.tenant in self.left and job.budget_microusd is None:
                self.left[job.tenant] -= lease.cost_microusd(now_s)
                self.leases.setdefault(job.tenant, []).append(lease)
                self.hourly[job.tenant] = self.hourly.get(job.tenant, 0) + lease.hourly_microusd

    def lacks(self, job: Job, microusd: int) -> Sentence | None:
        """Why the job's tenant cannot pay so much; None where it can."""
        if job.budget_microusd is not None or job.tenant not in self.left:
            return None
        left = self.left[job.tenant]
        if left < microusd:
            return say(
                "scheduler.tenant_lacks", tenant=job.tenant, left=Usd(max(0, left)), cost=Usd(microusd)
            )
        return None

    def promise(self, job: Job, microusd: int) -> None:
        if job.budget_microusd is None and job.tenant in self.left:
            self.left[job.tenant] -= microusd

    def broke(self) -> Iterator[tuple[str, Lease]]:
        """(tenant, running lease) where the tenant has nothing left to pay with."""
        for tenant, leases in self.leases.items():
            if self.left[tenant] <= 0:
                for lease in leases:
                    if lease.phase != "ending":
                        yield tenant, lease

    def runs_out_s(self, now_s: int) -> int | None:
        """When the first tenant will have spent all, at the prices of now."""
        found = [
            now_s + max(1, -(-max(0, self.left[tenant]) * 3600 // hourly))
            for tenant, hourly in self.hourly.items()
            if hourly
        ]
        return min(found, default=None)
