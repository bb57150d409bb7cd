"""Whether a queue may have more GPUs: its own, then what others lend, until the owners want it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from brimful.fleet.job import Job, at_size
from brimful.fleet.lease import JobState
from brimful.fleet.state import Fleet
from brimful.language import Sentence, say
from brimful.market.bid import Bid
from brimful.scheduler.ordering import by_queue
from brimful.scheduler.rules import Quota, Rules


def queue_of(job: Job) -> str:
    return job.queue or job.tenant


def is_own(job: Job, rules: Rules, held: Mapping[str, int]) -> bool:
    """Whether the job stays within its queue's quota: it may then reclaim what others have borrowed."""
    name = queue_of(job)
    own = next((quota.gpus for quota in rules.quotas if quota.queue == name), 0)
    return 0 < held.get(name, 0) + job.gpus <= own


def owed(
    fleet: Fleet, rules: Rules, held: Mapping[str, int], wants_now: Callable[[JobState], bool]
) -> dict[str, int]:
    """How many of its own GPUs each lending queue waits for: these must not be borrowed.

    Counts only whole gangs that fit the queue's quota and the fleet; a job that waits for a quiet hour does
    not want them yet. Every job that may reclaim GPUs must count here, or the job that gave them up takes
    them again.
    """
    room = {quota.queue: quota.gpus - held.get(quota.queue, 0) for quota in rules.quotas if quota.lend}
    wanted: dict[str, int] = {}
    for group, entries in fleet.waiting.order(
        "by queue", lambda state: state.serial, by_queue
    ).groups.items():
        queue, state = cast(tuple[str, int], group)[0], entries[0][2]
        job = state.job
        if 0 < job.gpus <= room.get(queue, 0) and wants_now(state):
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
) -> Sentence | None:
    """Why the job's queue may not have it now, with numbers; None if it may.

    Within its quota a queue always may. Beyond that, it borrows what the fleet has left after what the others
    hold, what queues that do not lend are owed, and what lending queues wait for (`owed`). A queue without a
    quota borrows everything it uses.
    """
    quotas = {quota.queue: quota for quota in rules.quotas}
    name = queue_of(job)
    own = quotas.get(name, Quota(queue=name, gpus=0))
    have = held.get(name, 0)
    if have + job.gpus <= own.gpus:
        return None
    others_keep = sum(q.gpus for q in rules.quotas if not q.lend and q.queue != name)
    most = max(own.gpus, gpus_in_fleet - others_keep)
    if own.borrow_gpus is not None:
        most = min(most, own.gpus + own.borrow_gpus)
    if job.gpus > most:
        return say("scheduler.above_queue", queue=name, gpus=job.gpus, most=most, own=own.gpus)
    borrowed = have + job.gpus - own.gpus
    if own.borrow_gpus is not None and borrowed > own.borrow_gpus:
        return say(
            "scheduler.may_not_borrow",
            queue=name,
            held=have,
            own=own.gpus,
            gpus=job.gpus,
            borrows=borrowed,
            most=own.borrow_gpus,
        )
    kept = sum(max(0, q.gpus - held.get(q.queue, 0)) for q in rules.quotas if not q.lend and q.queue != name)
    kept += sum(gpus for queue, gpus in waited_for.items() if queue != name)
    idle = gpus_in_fleet - sum(held.values()) - kept
    if job.gpus > idle:
        counts = {"held": have, "own": own.gpus, "gpus": job.gpus, "idle": max(0, idle)}
        return say("scheduler.too_few_to_lend", queue=name, **counts)
    return None


class Shares:
    """Which new winners of market pools their queues may hold together; says which may not, and why.

    Highest rank first, as with budgets: what one wins, the next of its queue cannot have.
    """

    def __init__(self, fleet: Fleet, rules: Rules, held: Mapping[str, int]) -> None:
        self._fleet, self._rules, self.held = fleet, rules, dict(held)
        self.reasons: dict[str, Sentence] = {}

    def __call__(self, winners: Sequence[tuple[Bid, int]]) -> list[str]:
        held, refused = dict(self.held), list[str]()
        for bid, units in winners:
            job, more = self._more(bid, units)
            if more <= 0:
                continue
            gpus = self._fleet.capacity.gpus
            reason = over_quota(at_size(job, more), self._rules, held, gpus, waited_for={})
            if reason is None:
                held[queue_of(job)] = held.get(queue_of(job), 0) + more
            else:
                refused.append(bid.bid)
                self.reasons[bid.bid] = reason
        return refused

    def promise(self, winners: Sequence[tuple[Bid, int]]) -> None:
        """The next pool sees what is left."""
        for bid, units in winners:
            job, more = self._more(bid, units)
            self.held[queue_of(job)] = self.held.get(queue_of(job), 0) + more

    def _more(self, bid: Bid, units: int) -> tuple[Job, int]:
        """The job, and how many GPUs it would hold beyond what it holds."""
        state = self._fleet.jobs[bid.bid]
        return state.job, units - (0 if state.open_lease is None else state.open_lease.size)


class Books:
    """What each queue would hold after the current review: leases that stay, then jobs that get a place."""

    def __init__(
        self,
        rules: Rules,
        *,
        held: Mapping[str, int],
        waited_for: Mapping[str, int],
        gpus_in_fleet: int,
    ) -> None:
        self._rules, self._gpus = rules, gpus_in_fleet
        self.reclaim = rules.reclaim
        self._own = {quota.queue: quota.gpus for quota in rules.quotas}
        self._now, self._held, self._waited_for = held, dict(held), dict(waited_for)

    def leave(self, jobs: Iterable[Job]) -> None:
        """These jobs run and may be moved: what they hold is shared out again."""
        for job in jobs:
            self._held[queue_of(job)] -= job.gpus

    def take(self, job: Job, *, waits: bool) -> None:
        queue = queue_of(job)
        self._held[queue] = self._held.get(queue, 0) + job.gpus
        if waits and queue in self._waited_for:
            self._waited_for[queue] = max(0, self._waited_for[queue] - job.gpus)

    def is_own(self, job: Job) -> bool:
        queue = queue_of(job)
        return self._held.get(queue, 0) + job.gpus <= self._own.get(queue, 0)

    def may_keep(self, job: Job) -> bool:
        """Whether a running job may go on: with it, its queue holds no more than now, or than its own."""
        queue = queue_of(job)
        most = max(self._now.get(queue, 0), self._own.get(queue, 0))
        return self._held.get(queue, 0) + job.gpus <= most

    def may_borrow(self, job: Job) -> bool:
        return over_quota(job, self._rules, self._held, self._gpus, self._waited_for) is None

    def gives_back(self, job: Job) -> Sentence | None:
        """Why a running job of this queue lost its place, if that returns what its queue borrowed."""
        queue = queue_of(job)
        own, now, then = self._own.get(queue, 0), self._now.get(queue, 0), self._held.get(queue, 0)
        if not own < now > then:
            return None
        return say("scheduler.gives_back", queue=queue, held=now, own=own, gives=now - then)
