"""Every sentence that says why a job waits or why its lease ends, with its numbers. Nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.units import show_bytes, show_seconds, show_usd

CANCELLED = "cancelled"
MAKES_ROOM = "makes room for jobs that gain more"


# --- why a lease ends ------------------------------------------------------------------------------------


def has_run_its(longest_s: int) -> str:
    return f"it has run its {show_seconds(longest_s)}"


def budget_used_up(budget_microusd: int) -> str:
    return f"its budget of {show_usd(budget_microusd)} is used up"


def tenant_spent(tenant: str) -> str:
    return f"{tenant} has spent its budget"


def preempted_by(job: str) -> str:
    return f"preempted by {job}"


def moves_to(gpu: str) -> str:
    return f"moves to {gpu}"


def makes_a_node(job: str) -> str:
    return f"makes a whole node for {job}"


def gives_back(queue: str, *, held: int, own: int, gives: int) -> str:
    return f"queue {queue} held {held} of its {own} GPUs and gives {gives} back to those who lent them"


def lost_by_engine(site: str) -> str:
    return f"the engine at {site} has lost it"


# --- why a job waits: its place in the queue -------------------------------------------------------------


def both(reason: str, told: str) -> str:
    return f"{reason}; {told}"


def others_will_stop(reason: str, jobs: Sequence[str]) -> str:
    return f"{reason}; {', '.join(jobs)} will stop for it"


def not_back(reason: str, site: str, left_s: int) -> str:
    return f"{reason}; not back to {site}, where it has just failed, for {left_s} s"


def waits_behind(blocked: Job, reason: str) -> str:
    return f"waits behind {blocked.job}, which needs {blocked.gpus}; {reason}"


def kept_for(reason: str, jobs: Sequence[str]) -> str:
    return f"{reason}; they are kept for {', '.join(jobs) or 'gangs that are being made room for'}"


# --- why a job waits: money, quotas, quiet hours ---------------------------------------------------------


def tenant_lacks(tenant: str, *, left_microusd: int, microusd: int) -> str:
    return (
        f"{tenant} has {show_usd(max(0, left_microusd))} of its budget left and this may cost "
        f"{show_usd(microusd)} before anybody looks again; `brimful budget` shows and sets it"
    )


def may_not_borrow(queue: str, *, held: int, own: int, gpus: int, borrows: int, most: int) -> str:
    return (
        f"queue {queue} holds {held} of its {own} GPUs; {gpus} more would borrow {borrows}, "
        f"and it may borrow {most}"
    )


def too_few_to_lend(queue: str, *, held: int, own: int, gpus: int, idle: int) -> str:
    return (
        f"queue {queue} holds {held} of its {own} GPUs and would borrow; "
        f"{max(0, idle)} are there to lend, it wants {gpus}"
    )


def quiet_hour(*, free: int, gpus: int, left_h: float) -> str:
    return f"waits for a quiet hour: {free} of {gpus} GPUs are free; starts in {left_h:.1f} h at the latest"


# --- why a job waits: no place ---------------------------------------------------------------------------


def no_such_gpus(job: Job, has: Sequence[str], drained: int) -> str:
    none = "no node that takes work" if drained else "no nodes at all"
    whose = f"the site {' or '.join(job.sites)}" if job.sites else "the fleet"
    return f"wants GPUs of {_kind(job)}; {whose} has {', '.join(has) or none}{_drained(drained)}"


def too_little_memory(job: Job, small: Mapping[str, tuple[int, int]]) -> str:
    """`small`: by GPU type, the bytes it needs and those it would have."""
    share = f"its share of {job.gpu_milli / 10:g} % of a GPU" if job.gpu_milli < WHOLE_GPU else "a GPU"
    told = (
        f"{show_bytes(needs)} on {gpu}, of which {share} has {show_bytes(has)}"
        for gpu, (needs, has) in sorted(small.items())
    )
    return f"does not fit in memory: needs {'; '.join(told)}"


def too_large_for_a_node(job: Job, drained: int) -> str:
    return f"wants {_host(job)} on one node; no node has as much{_drained(drained)}"


def too_large_for_hosts(job: Job, most: int, drained: int) -> str:
    wants = f"{_gpus(job)} ({_kind(job)}) with {_host(job)}"
    return f"wants {wants}; its nodes have room for {most}{_drained(drained)}"


def too_wide(job: Job, within: str, most: int, drained: int) -> str:
    where, largest = {
        "nvlink": ("in one NVLink domain", "the largest"),
        "node": ("on one node", "the largest node"),
        "rack": ("within one rack", "the largest rack"),
        "pool": ("of one type", "the largest pool"),
    }[within]
    return f"wants {job.gpus} GPUs ({_kind(job)}) {where}; {largest} has {most}{_drained(drained)}"


def no_pool_open(job: Job) -> str:
    return f"wants {_gpus(job)} ({_kind(job)}); no such site can be reached at a price it accepts"


def too_few_free(job: Job, most: int, total: int) -> str:
    where = {"nvlink": "on one node", "node": "on one node", "any": "in one pool"}
    place = where.get(job.within, f"within one {job.within}")
    return f"wants {_gpus(job)} {place}; {most} free on the best node ({total} in all)"


def _kind(job: Job) -> str:
    return " or ".join(job.gpu_types or [name for name, _ in job.rates]) or "any type"


def _gpus(job: Job) -> str:
    return "1 GPU" if job.gpus == 1 else f"{job.gpus} GPUs"


def _host(job: Job) -> str:
    cpus = [f"{job.cpu_milli / 1000:,.10g} CPUs"] if job.cpu_milli else []
    return " and ".join(cpus + [show_bytes(job.memory_mib << 20)] * bool(job.memory_mib))


def _drained(nodes: int) -> str:
    return f" ({nodes} of its nodes drained)" if nodes else ""
