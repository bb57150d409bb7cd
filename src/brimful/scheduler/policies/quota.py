"""Whether a queue may have more GPUs: its own, then what others lend, until they want it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from brimful.fleet.job import Job
from brimful.fleet.lease import JobState
from brimful.fleet.state import Fleet
from brimful.scheduler.policies.order import by_queue
from brimful.scheduler.rules import Quota, Rules


def queue_of(job: Job) -> str:
    return job.queue or job.tenant


def is_own(job: Job, rules: Rules, held: Mapping[str, int]) -> bool:
    """Whether the job stays within what its queue is owed: it may then claim what others have borrowed."""
    name = queue_of(job)
    own = next((quota.gpus for quota in rules.quotas if quota.queue == name), 0)
    return 0 < held.get(name, 0) + job.gpus <= own


def owed(
    fleet: Fleet, rules: Rules, held: Mapping[str, int], placeable: Callable[[JobState], bool]
) -> dict[str, int]:
    """GPUs of its own that each lending queue waits for: these are not to be borrowed.

    Only whole gangs count that its quota has room for and the fleet could hold; whoever waits for a quiet
    hour does not want them yet.
    """
    room = {quota.queue: quota.gpus - held.get(quota.queue, 0) for quota in rules.quotas if quota.lend}
    wanted: dict[str, int] = {}
    for group, entries in fleet.waiting.order(
        "by queue", lambda state: state.serial, by_queue
    ).groups.items():
        queue, state = cast(tuple[str, int], group)[0], entries[0][2]
        job = state.job
        if 0 < job.gpus <= room.get(queue, 0) and not job.deferrable and placeable(state):
            wanted[queue] = wanted.get(queue, 0) + len(entries) * job.gpus
    return {queue: min(gpus, room[queue]) for queue, gpus in wanted.items()}


def borrowed(fleet: Fleet, rules: Rules, held: Mapping[str, int]) -> dict[str, int]:
    """GPUs each queue holds beyond its quota and has not been told to give up."""
    own = {quota.queue: quota.gpus for quota in rules.quotas}
    found = {queue: gpus - own.get(queue, 0) for queue, gpus in held.items()}
    for lease in fleet.unsettled.values():
        if lease.phase == "ending":
            found[queue_of(fleet.jobs[lease.job].job)] -= lease.size
    return {queue: gpus for queue, gpus in found.items() if gpus > 0}


def over_quota(
    job: Job,
    rules: Rules,
    held: Mapping[str, int],
    gpus_in_fleet: int,
    waited_for: Mapping[str, int],
) -> str | None:
    """Why the job's queue may not have it now, with numbers; None where it may.

    Within its quota a queue always may. Beyond, it borrows what the fleet has left after what the others
    hold, what those who do not lend are owed, and what those who lend wait for (`owed`). A queue without a
    quota borrows everything it uses.
    """
    if not rules.quotas:
        return None
    quotas = {quota.queue: quota for quota in rules.quotas}
    name = queue_of(job)
    own = quotas.get(name, Quota(queue=name, gpus=0))
    have = held.get(name, 0)
    if have + job.gpus <= own.gpus:
        return None
    borrowed = have + job.gpus - own.gpus
    if own.borrow_gpus is not None and borrowed > own.borrow_gpus:
        return (
            f"queue {name} holds {have} of its {own.gpus} GPUs; {job.gpus} more would borrow {borrowed}, "
            f"and it may borrow {own.borrow_gpus}"
        )
    kept = sum(max(0, q.gpus - held.get(q.queue, 0)) for q in rules.quotas if not q.lend and q.queue != name)
    kept += sum(gpus for queue, gpus in waited_for.items() if queue != name)
    idle = gpus_in_fleet - sum(held.values()) - kept
    if job.gpus > idle:
        return (
            f"queue {name} holds {have} of its {own.gpus} GPUs and would borrow; "
            f"{max(0, idle)} are there to lend, it wants {job.gpus}"
        )
    return None
