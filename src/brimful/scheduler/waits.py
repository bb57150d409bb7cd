"""Why each job waits, with numbers. Worded on request: thousands wait and few are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from brimful.errors import Said
from brimful.fleet.state import JobState, Pool
from brimful.language import Seconds, Sentence, Several, count, say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import place
from brimful.scheduler.placing.pools import allowed_pools
from brimful.scheduler.placing.why_not import why_not
from brimful.scheduler.quotas import queue_of


class Waits(Mapping[str, Said]):
    """Job -> why: from the plan until it is carried out, from the fleet afterwards."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle, self._seq = cycle, cycle.fleet.seq

    def __getitem__(self, job: str) -> Said:
        fleet = self._cycle.fleet
        if job not in fleet.waiting or any(start.job == job for start in self._cycle.starts):
            raise KeyError(job)
        return self._why(fleet.waiting[job])

    def __iter__(self) -> Iterator[str]:
        starting = {start.job for start in self._cycle.starts}
        return (name for name in self._cycle.fleet.waiting if name not in starting)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _why(self, state: JobState) -> Said:
        cycle = self._cycle
        if cycle.market is not None:
            sold = cycle.market.why(state, cycle.fleet, now_s=cycle.now_s)
            if sold is not None:
                return sold
        bought = None if cycle.shop is None else cycle.shop.why(state)
        if bought is not None:
            return bought
        draft = Draft(cycle.fleet.capacity, closed=cycle.unreachable, sold=cycle.draft.sold)
        if cycle.fleet.seq == self._seq:
            for start in cycle.starts:
                draft.take(((start.node, start.gpus), *start.rest), cycle.fleet.jobs[start.job].job)
        return _why(cycle, state, draft)


def _why(cycle: Cycle, state: JobState, draft: Draft) -> Said:
    job = state.job
    pools = cycle.planned(state, allowed_pools(cycle.fleet, state.shape, draft, cycle.prices))
    reason, can_help = why_not(job, cycle.fleet, draft, pools)
    if cycle.finish is not None and job.job in cycle.finish.verdicts:
        verdict = cycle.finish.verdicts[job.job].reason
        if not pools:
            return verdict
        reason = say("scheduler.both", reason=reason, told=verdict)
    if not can_help:
        return reason
    cell = cycle.cells.get(job.job)
    if cell is not None and cell.victims:
        victims = Several(tuple(lease.job for lease in cell.victims))
        return say("scheduler.others_will_stop", reason=reason, jobs=victims)
    return cycle.not_now(state) or _lent(cycle, state, reason) or _in_line(cycle, state, draft, pools, reason)


def _lent(cycle: Cycle, state: JobState, reason: Sentence) -> Sentence | None:
    """Its queue lent what it needs, and no borrower has run its minimum time: when the first will have."""
    search = cycle.search() if cycle.owns(state.job) else None
    until_s = None if search is None else search.stoppable_s(state, owns=True)
    if until_s is None or until_s <= cycle.now_s:
        return None
    queue, left = queue_of(state.job), Seconds(until_s - cycle.now_s)
    return say("scheduler.lent", reason=reason, queue=queue, left=left)


def _in_line(cycle: Cycle, state: JobState, draft: Draft, pools: list[Pool], reason: Sentence) -> Sentence:
    """The job itself has no obstacle: what it waits for nevertheless."""
    if len(cycle.elsewhere(state, pools)) < len(pools):
        left = Seconds(state.avoid_until_s - cycle.now_s)
        return say("scheduler.not_back", reason=reason, site=state.avoid_site, left=left)
    blocked = cycle.blocked if cycle.rules.backfill == "none" else None
    if blocked is not None and blocked is not state:
        gpus = count("gpu", blocked.job.gpus)
        return say("scheduler.waits_behind", job=blocked.job.job, gpus=gpus, reason=reason)
    if all(place(state.job, draft, pool) is None for pool in pools):
        return reason
    if not cycle.reservations:
        return say("scheduler.kept_for_gangs", reason=reason)
    kept_for = Several(tuple(each.job for each in cycle.reservations))
    return say("scheduler.kept_for", reason=reason, jobs=kept_for)
