"""What a user wants run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# A class is a preset bid: who is willing to wait pays less. Lower rank goes first.
PRIORITIES: dict[str, int] = {"urgent": 0, "normal": 1, "background": 2}

# How close together a gang's GPUs must be, closest first. A wider word allows everything a closer one does.
WITHIN = ("nvlink", "node", "rack", "site", "any")

WHOLE_GPU = 1000  # gpu_milli of a GPU that is not shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang of `gpus` workers and the command they run, as it was submitted.

    Work is counted in seconds of the whole gang at rate 1.0, so that a job of 100 s of work runs 100 s on its
    reference GPUs and 50 s where its rate is 2.0. Times `gpus` this is work in reference-GPU-seconds.
    How much work there is, only the world knows; `predicted_work_s` is what the scheduler may believe.
    """

    job: str
    gpus: int
    name: str = ""
    tenant: str = "default"
    queue: str = ""  # empty: the tenant's own
    priority: str = "normal"
    gpu_types: tuple[str, ...] = ()  # empty: any
    sites: tuple[str, ...] = ()  # empty: any
    tiers: tuple[str, ...] = ()  # owned, reserved, on_demand, spot; empty: any
    budget_microusd: int | None = None  # None: no limit was set
    command: tuple[str, ...] = ()
    folder: str = ""  # where the command runs; with `code`, where it was submitted from
    code: str = ""  # SHA-256 of the packed folder that it runs in; empty: in `folder` itself
    env: tuple[tuple[str, str], ...] = ()
    # What the gang takes besides GPUs, evenly spread over them.
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = WHOLE_GPU  # a share of one GPU: only with gpus=1
    within: str = "node"
    # (GPU type, useful work per second) pairs. Empty: 1.0 everywhere; a type that is left out cannot run it.
    rates: tuple[tuple[str, float], ...] = ()
    spread_rate: float = 1.0  # speed over several nodes, relative to one node
    predicted_work_s: float | None = None
    limit_microusd_per_gpu_hour: int | None = None
    deadline_s: int | None = None
    deferrable: bool = False
    # None: never saves, so a stop loses everything. 0: saves when told to stop, so a stop loses nothing.
    checkpoint_interval_s: int | None = None
    checkpoint_cost_s: int = 0  # time a gang holds its GPUs before it works again after a stop
    min_run_s: int = 0  # left alone this long after each start
    max_run_s: int | None = None  # stopped after this much running time, all leases together
    retries: int = 0
    submitter: str = ""  # the token that handed it in; empty: from before anybody asked
    user: str = ""  # whose token that is
    key: str = ""  # the submitter's own name for this submission: a second one under it is the first
    # What was predicted at submit, by GPU type: the likely peak on one card, and the time of a step.
    peak_bytes: tuple[tuple[str, int], ...] = ()
    step_s: tuple[tuple[str, float], ...] = ()
    # (job or array, "ok" | "any"): it asks for GPUs once these are over; with "ok" only if they finished.
    after: tuple[tuple[str, str], ...] = ()
    array: str = ""  # the array that it is a task of
    array_index: int = 0

    def may_be_in(self, *, site: str, tier: str) -> bool:
        return (not self.sites or site in self.sites) and (not self.tiers or tier in self.tiers)

    def rate(self, gpu: str) -> float:
        """Useful work per second on this GPU type; 0.0 where it may not run."""
        if self.gpu_types and gpu not in self.gpu_types:
            return 0.0
        if not self.rates:
            return 1.0
        for name, rate in self.rates:
            if name == gpu:
                return rate
        return 0.0


def shape_of(job: Job) -> Hashable:
    """Everything that decides where a job may go, and nothing that decides when."""
    return (
        job.gpus,
        job.gpu_milli,
        job.within,
        job.gpu_types,
        job.sites,
        job.tiers,
        job.rates,
        job.peak_bytes,
        job.cpu_milli,
        job.memory_mib,
        job.limit_microusd_per_gpu_hour,
        job.deferrable,
        job.deadline_s if job.deferrable else None,
        job.queue,
    )
