"""What tenants with a hard budget may still spend, as far as the log has posted it.

The scheduler must know this to let nobody win who cannot pay; the ledger (market/ledger.py) moves the same
sums between its accounts, and a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brimful.fleet.job import Job


@dataclass(slots=True)
class Purses:
    left_microusd: dict[str, int] = field(
        default_factory=dict
    )  # by tenant; one without a budget is not in it
    _held: dict[str, int] = field(default_factory=dict)  # by job with a budget of its own, what is left of it

    def __bool__(self) -> bool:
        return bool(self.left_microusd or self._held)

    def set(self, tenant: str, microusd: int | None) -> None:
        if microusd is None:
            self.left_microusd.pop(tenant, None)
        else:
            self.left_microusd[tenant] = microusd

    def add(self, tenant: str, microusd: int) -> None:
        if tenant in self.left_microusd:
            self.left_microusd[tenant] += microusd

    def submitted(self, job: Job) -> None:
        """A job's own budget is set aside at once."""
        if job.budget_microusd is not None and job.tenant in self.left_microusd:
            aside = min(job.budget_microusd, self.left_microusd[job.tenant])
            self.left_microusd[job.tenant] -= aside
            self._held[job.job] = aside

    def ended(self, job: Job, microusd: int) -> None:
        """A lease was posted."""
        if job.job in self._held:
            self._held[job.job] -= min(microusd, self._held[job.job])
        elif job.budget_microusd is None and job.tenant in self.left_microusd:
            left = self.left_microusd[job.tenant]
            self.left_microusd[job.tenant] = left - min(microusd, left)

    def over(self, job: Job) -> None:
        """What a job did not use of its own budget is its tenant's again."""
        rest = self._held.pop(job.job, 0)
        if job.tenant in self.left_microusd:
            self.left_microusd[job.tenant] += rest
