"""Find whose turn it is: who has waited so long that it goes before its class."""

from __future__ import annotations

from brimful.fleet.state import JobState
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.ordering import by_queue
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.whose_turn import whose_turn


def give_turns(cycle: Cycle) -> None:
    if not cycle.rules.turns or not len(cycle.fleet.waiting) or is_mixed(cycle.fleet, cycle.rules):
        return  # on several GPU types who has waited would hold the fastest, and everybody would be slower
    alike: dict[tuple[str, int], bool] = {}  # pools and quotas are looked at once for all alike

    def could_start(state: JobState) -> bool:
        kind = by_queue(state)
        found = alike.get(kind)
        if found is None:
            found = bool(cycle.open_pools(state.shape)) and cycle.over_quota(state.job) is None
            alike[kind] = found
        return found and cycle.may_start(state)

    line = whose_turn(cycle.fleet, cycle.rules, could_start, now_s=cycle.now_s, sold=cycle.draft.sold)
    cycle.in_turn = {state.job.job: None for state in line}
