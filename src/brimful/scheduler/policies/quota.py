"""Whether a queue may have more GPUs: its own, then what others lend."""

from __future__ import annotations

from collections.abc import Mapping

from brimful.fleet.job import Job
from brimful.scheduler.rules import Quota, Rules


def over_quota(job: Job, rules: Rules, held: Mapping[str, int], gpus_in_fleet: int) -> str | None:
    """Why the job's queue may not have it now, with numbers; None where it may.

    Within its quota a queue always may. Beyond, it borrows what the fleet has left after what the others hold
    and what those who do not lend are owed. A queue without a quota borrows everything it uses.
    """
    if not rules.quotas:
        return None
    quotas = {quota.queue: quota for quota in rules.quotas}
    name = job.queue or job.tenant
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
    idle = gpus_in_fleet - sum(held.values()) - kept
    if job.gpus > idle:
        return (
            f"queue {name} holds {have} of its {own.gpus} GPUs and would borrow; "
            f"{max(0, idle)} are there to lend, it wants {job.gpus}"
        )
    return None
