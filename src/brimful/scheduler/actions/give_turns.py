"""Find the jobs that have waited so long that they go before the rest of their class."""

from __future__ import annotations

from brimful.fleet.state import JobState
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.ordering import by_queue
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.whose_turn import whose_turn


def give_turns(cycle: Cycle) -> None:
    if not cycle.rules.turns or not len(cycle.fleet.waiting) or is_mixed(cycle.fleet, cycle.rules):
        return  # on a mixed fleet these jobs would hold the fastest GPUs, and every job would be slower
    alike: dict[tuple[str, int], bool] = {}  # pools and quotas are checked once per (queue, shape)

    def could_start(state: JobState) -> bool:
        kind = by_queue(state)
        found = alike.get(kind)
        if found is None:
            found = bool(cycle.open_pools(state.shape)) and cycle.over_quota(state.job) is None
            alike[kind] = found
        return found and cycle.may_start(state)

    line = whose_turn(cycle.fleet, cycle.rules, could_start, now_s=cycle.now_s, sold=cycle.draft.sold)
    cycle.in_turn = {state.job.job: None for state in line}
