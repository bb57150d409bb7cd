"""Why each job waits, with numbers. Worded when it is asked for: thousands wait and few are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from brimful.fleet.state import JobState
from brimful.scheduler import reasons
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import place
from brimful.scheduler.placing.pools import allowed_pools
from brimful.scheduler.placing.why_not import why_not


class Waits(Mapping[str, str]):
    """Job -> why: from the plan if it is still to come, and from the fleet once it is done."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle, self._seq = cycle, cycle.fleet.seq

    def __getitem__(self, job: str) -> str:
        fleet = self._cycle.fleet
        if job not in fleet.waiting or any(start.job == job for start in self._cycle.starts):
            raise KeyError(job)
        return self._why(fleet.waiting[job])

    def __iter__(self) -> Iterator[str]:
        starting = {start.job for start in self._cycle.starts}
        return (name for name in self._cycle.fleet.waiting if name not in starting)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self))

    def _why(self, state: JobState) -> str:
        cycle = self._cycle
        if cycle.market is not None:
            sold = cycle.market.why(state, cycle.fleet, now_s=cycle.now_s)
            if sold is not None:
                return sold
        draft = Draft(cycle.fleet.capacity, closed=cycle.unreachable, sold=cycle.draft.sold)
        if cycle.fleet.seq == self._seq:
            for start in cycle.starts:
                draft.take(((start.node, start.gpus), *start.rest), cycle.fleet.jobs[start.job].job)
        return _why(cycle, state, draft)


def _why(cycle: Cycle, state: JobState, draft: Draft) -> str:
    job = state.job
    pools = cycle.planned(state, allowed_pools(cycle.fleet, state.shape, draft, cycle.prices))
    reason, can_help = why_not(job, cycle.fleet, draft, pools)
    if cycle.finish is not None and job.job in cycle.finish.verdicts:
        told = cycle.finish.verdicts[job.job].reason
        reason, can_help = (reasons.both(reason, told), can_help) if pools else (told, False)
    if not can_help:
        return reason
    cell = cycle.cells.get(job.job)
    if cell is not None and cell.victims:
        return reasons.others_will_stop(reason, [lease.job for lease in cell.victims])
    held_back = cycle.not_now(state)
    if held_back is not None:
        return held_back
    if len(cycle.elsewhere(state, pools)) < len(pools):
        return reasons.not_back(reason, state.avoid_site, state.avoid_until_s - cycle.now_s)
    blocked = cycle.blocked if cycle.rules.backfill == "none" else None
    if blocked is not None and blocked is not state:
        return reasons.waits_behind(blocked.job, reason)
    has_room = any(place(job, draft, pool) is not None for pool in pools)
    return reasons.kept_for(reason, [each.job for each in cycle.reservations]) if has_room else reason
