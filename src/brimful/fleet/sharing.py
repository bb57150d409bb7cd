"""Two jobs on one GPU: how fast each is beside the other, and whether their memory fits.

Speed is measured, pair by pair (`Job.pairs`), or follows from how much of a GPU's compute each keeps busy
(`Job.compute_milli`). A job with neither does not share. Two tenants at most: three were never measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.memory import peak_on, usable_bytes

if TYPE_CHECKING:
    from brimful.fleet.events import LeaseGranted
    from brimful.fleet.lease import Lease
    from brimful.fleet.state import Fleet

# What each of two tenants holds and pays for, whether or not the other half is taken.
HALF_GPU = WHOLE_GPU // 2

Paces = tuple[tuple[int, float], ...]  # (until when, speed) of a lease before its current speed


def may_share(job: Job) -> bool:
    """Whether any job could be put beside it. Not if it has a deadline: then it counts on the whole GPU."""
    if job.gpus != 1 or job.gpu_milli < WHOLE_GPU or job.deadline_s is not None:
        return False
    return bool(job.pairs) or job.compute_milli < WHOLE_GPU


def speed_beside(job: Job, other: Job, gpu: str) -> float:
    """The share of its own speed that the job keeps beside the other; 0.0 if unknown.

    As measured, if this pair was. Otherwise, if both state how much compute they keep busy: together they
    want a + b of a GPU, and beyond 1 each waits for the other in the same proportion, 1 / (a + b). That
    leaves out caches, memory bandwidth and the cost of switching: real pairs are slower.
    """
    measured = _measured(job, other, gpu)
    if measured is not None:
        return measured
    if max(job.compute_milli, other.compute_milli) >= WHOLE_GPU:
        return 0.0
    return min(1.0, WHOLE_GPU / (job.compute_milli + other.compute_milli))


def _measured(job: Job, other: Job, gpu: str) -> float | None:
    for name, beside in job.pairs if other.pairs else ():
        for kind, share in beside if name == gpu else ():
            if kind == other.name:
                return share
    return None


def together(one: Job, other: Job, gpu: str) -> tuple[float, float] | None:
    """What each keeps of its speed beside the other; None if they cannot share a GPU of this type.

    Memory is never oversubscribed: both peaks fit into one card. If a peak is unknown, only a measured pair
    may share: the two were in memory together when they were measured.
    """
    peaks = [peak for job in (one, other) if (peak := peak_on(job, gpu)) is not None]
    usable = usable_bytes(gpu)
    if usable is not None and sum(peaks) > usable:
        return None
    is_measured = None not in (_measured(one, other, gpu), _measured(other, one, gpu))
    if not is_measured and (usable is None or len(peaks) < 2):
        return None
    shares = speed_beside(one, other, gpu), speed_beside(other, one, gpu)
    return shares if min(shares) > 0.0 else None


def work_done_s(before: Paces, speed: float, *, began_s: int, until_s: float) -> float:
    """Useful work from `began_s` on, at the speeds of `before` and then at `speed`."""
    done, since_s = 0.0, float(began_s)
    for end_s, was in before:
        stop_s = min(float(end_s), until_s)
        if stop_s > since_s:
            done += (stop_s - since_s) * was
            since_s = stop_s
    return done + max(0.0, until_s - since_s) * speed


def tenants(fleet: Fleet, lease: Lease) -> list[Lease]:
    """All leases on the GPU of a lease that may share it, itself included while it is open."""
    return [each for each in fleet.leases_on[lease.node].values() if each.gpus == lease.gpus]


def beside_whom(fleet: Fleet, event: LeaseGranted) -> list[Lease]:
    """The lease already on the GPU that the job is to share: at most one, and one that may share.

    Whether their memory fits was decided at the grant. It is not checked here: later releases fold the log
    again, and their catalog may say something else about the card.
    """
    here = fleet.leases_on.get(event.node, {}).values()
    found = [each for each in here if each.gpus == event.gpus]
    for each in found:
        is_free = each.may_share and len(found) == 1
        assert is_free, f"GPU {event.gpus[0]} of {event.node} already has a tenant"
    return found


def change_pace(fleet: Fleet, lease: Lease, *, at_s: int) -> None:
    """Set the speed of each lease on this GPU to what its neighbour leaves it."""
    pair = [(fleet.jobs[each.job], each) for each in tenants(fleet, lease) if each.started_s is not None]
    for state, each in pair:
        speed = state.job.rate(each.gpu)
        for other, beside in pair:
            if beside is not each:
                speed *= speed_beside(state.job, other.job, each.gpu)
        if speed == each.speed:
            continue
        ranked = state.job.job in fleet.running  # running jobs are ranked by speed
        if ranked:
            fleet.running.remove(state)
        each.before += ((at_s, each.speed),)
        each.speed = speed
        if ranked:
            fleet.running.add(state)


def leave_beside(fleet: Fleet, lease: Lease, *, at_s: int) -> bool:
    """It is over, and the job beside it speeds up. False: there was none."""
    lease.even_out(at_s)
    change_pace(fleet, lease, at_s=at_s)
    return bool(tenants(fleet, lease))
