"""What a user wants run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

# A class is a preset bid: a job willing to wait pays less. Lower rank goes first.
PRIORITIES: dict[str, int] = {"urgent": 0, "normal": 1, "background": 2}

# How close together a gang's GPUs must be, closest first. A wider value allows everything a closer one does.
WITHIN = ("nvlink", "node", "rack", "site", "any")

WHOLE_GPU = 1000  # gpu_milli of a GPU that is not shared

# How a gang speeds up if this was neither measured nor predicted: Amdahl's law with this share of a step that
# more GPUs do not shorten. 16 GPUs are then 9.1 times as fast as one.
SERIAL_SHARE = 0.05

# A GPU type ("" for any) and how much faster than at its minimum size a gang is there: (GPUs, factor), in
# order.
Curve = tuple[str, tuple[tuple[int, float], ...]]

# A GPU type, and by the name of another job the share of its own speed that a job keeps beside it there.
Pairs = tuple[str, tuple[tuple[str, float], ...]]


# Makes `python` mean the same in the job as in the shell that submits it. Nothing else of that is sent unless
# it is named. None of it is a secret, so the log holds the values.
SHELL_ENV = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang of `gpus` workers and the command they run, as it was submitted.

    Work is counted in seconds of the whole gang at rate 1.0, so that a job of 100 s of work runs 100 s on its
    reference GPUs and 50 s where its rate is 2.0. Times `gpus` this is work in reference-GPU-seconds. The
    true amount of work is unknown; `predicted_work_s` is what the scheduler may believe.

    An elastic gang has `min_gpus` to `max_gpus`: `gpus` is what it holds, its minimum while it waits. Its
    work is counted at its minimum size, and a larger size has a higher rate (`curves`).
    """

    job: str
    gpus: int
    name: str = ""
    tenant: str = "default"
    project: str = ""  # of the tenant; its budget, if it has one, pays
    queue: str = ""  # empty: the tenant's own
    priority: str = "normal"
    gpu_types: tuple[str, ...] = ()  # empty: any
    sites: tuple[str, ...] = ()  # empty: any
    tiers: tuple[str, ...] = ()  # owned, reserved, on_demand, spot; empty: any
    budget_microusd: int | None = None  # None: no limit
    command: tuple[str, ...] = ()
    folder: str = ""  # where the command runs; with `code`, where it was submitted from
    code: str = ""  # SHA-256 of the packed folder it runs in; empty: in `folder` itself
    env: tuple[tuple[str, str], ...] = ()  # in the log, a value that may be a secret is empty
    # What the gang takes besides GPUs, evenly spread over them.
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = WHOLE_GPU  # a share of one GPU: only with gpus=1
    within: str = "node"
    # (GPU type, useful work per second) pairs. Empty: 1.0 everywhere; a type not listed cannot run it.
    rates: tuple[tuple[str, float], ...] = ()
    spread_rate: float = 1.0  # speed over several nodes, relative to one node
    predicted_work_s: float | None = None
    limit_microusd_per_gpu_hour: int | None = None
    deadline_s: int | None = None
    deferrable: bool = False
    # None: never saves, so a stop loses everything. 0: saves when told to stop, so a stop loses nothing.
    checkpoint_interval_s: int | None = None
    checkpoint_cost_s: int = 0  # time a gang holds its GPUs after a stop before it works again
    checkpoint_bytes: int = 0  # of its newest checkpoint, if known: determines the cost of moving it
    min_run_s: int = 0  # left alone this long after each start
    max_run_s: int | None = None  # stopped after this much running time, all leases together
    retries: int = 0
    submitter: str = ""  # the token that submitted it; empty: from before tokens were recorded
    user: str = ""  # the owner of that token
    key: str = ""  # the submitter's idempotency key: a second submission under it is the first
    peak_bytes: tuple[tuple[str, int], ...] = ()  # predicted at submit, by GPU type: likely, on one card
    step_s: tuple[tuple[str, float], ...] = ()  # predicted likewise
    mfu: tuple[tuple[str, float], ...] = ()  # predicted likewise, 0 to 1
    # (job or array, "ok" | "any"): it asks for GPUs once these are over; with "ok" only if they finished.
    after: tuple[tuple[str, str], ...] = ()
    array: str = ""  # the array it is a task of
    array_index: int = 0
    min_gpus: int = 0  # 0, like `max_gpus`: fixed size
    max_gpus: int = 0
    curves: tuple[Curve, ...] = ()  # of an elastic gang; a type without one scales by `SERIAL_SHARE`
    pairs: tuple[Pairs, ...] = ()  # measured: the jobs it can share a GPU with (sharing.py)
    compute_milli: int = WHOLE_GPU  # the share of a GPU's compute it keeps busy when alone
    gpu_memory_bytes: int = 0  # the most it uses of a card, as stated by its user; `peak_bytes` is better

    def may_be_in(self, *, site: str, tier: str) -> bool:
        return (not self.sites or site in self.sites) and (not self.tiers or tier in self.tiers)

    def rate(self, gpu: str) -> float:
        """Useful work per second on this GPU type; 0.0 if it may not run there."""
        if self.gpu_types and gpu not in self.gpu_types:
            return 0.0
        more = speedup(self, gpu) if self.max_gpus else 1.0
        if not self.rates:
            return more
        for name, rate in self.rates:
            if name == gpu:
                return rate * more
        return 0.0


def lacks_values(env: Iterable[tuple[str, str]]) -> bool:
    """Whether the engines keep it. The log cannot tell a value that it must not hold from an empty one."""
    return not all(value for _, value in env)


def sizes_of(job: Job) -> list[int]:
    """The sizes the gang may have: the divisors of its maximum, so that whole gradient accumulation steps
    keep its effective batch at every size."""
    if not job.max_gpus:
        return [job.gpus]
    return [n for n in range(job.min_gpus, job.max_gpus + 1) if job.max_gpus % n == 0]


def at_size(job: Job, gpus: int) -> Job:
    return job if gpus == job.gpus else replace(job, gpus=gpus)


def speedup(job: Job, gpu: str) -> float:
    """How much faster than at its minimum size an elastic gang of `job.gpus` is on this type.

    Linear between two points of its curve; constant beyond the last.
    """
    curves = dict(job.curves)
    points = curves.get(gpu) or curves.get("")
    if not points:
        return _amdahl(job.gpus) / _amdahl(job.min_gpus)
    below = (job.min_gpus, 1.0)
    for above in points:
        if above[0] >= job.gpus:
            wide = above[0] - below[0]
            return below[1] + (above[1] - below[1]) * (job.gpus - below[0]) / wide if wide else above[1]
        below = above
    return below[1]


def _amdahl(gpus: int) -> float:
    return gpus / (1 + SERIAL_SHARE * (gpus - 1))


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
        job.gpu_memory_bytes,
        job.cpu_milli,
        job.memory_mib,
        job.limit_microusd_per_gpu_hour,
        job.deferrable,
        job.deadline_s if job.deferrable else None,
        job.queue,
        job.min_gpus,
        job.max_gpus,
        job.curves,
    )
