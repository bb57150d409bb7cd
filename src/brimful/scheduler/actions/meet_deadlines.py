"""Choose which pools jobs with a deadline may use until the next look, and move jobs that should change."""

from __future__ import annotations

from brimful.fleet.node import Pool
from brimful.fleet.state import JobState
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.deadlines.claims import cell_for
from brimful.scheduler.deadlines.finish import finish
from brimful.scheduler.placing.place import ONE_NODE
from brimful.scheduler.placing.pools import choose


def meet_deadlines(cycle: Cycle) -> None:
    """Jobs that need firm GPUs now go before all others, and others make room for them."""
    if cycle.fleet.due and cycle.fleet.spot:  # without spot there is no choice to make
        cycle.finish = finish(
            cycle.fleet, cycle.draft, cycle.rules, cycle.prices, now_s=cycle.now_s, shop=cycle.shop
        )
        for lease, reason in cycle.finish.moves:
            cycle.stop(lease, reason)
        for state in cycle.finish.due_now:
            if state.job.job not in cycle.settled:  # otherwise it already starts, on nodes made for it
                _take_firm(cycle, state, cycle.finish.verdicts[state.job.job].pools)


def _take_firm(cycle: Cycle, state: JobState, pools: tuple[Pool, ...]) -> None:
    job = state.job
    allowed = cycle.within_limits(state, cycle.elsewhere(state, list(pools)))
    if not allowed or (cycle.may_be_held(job) and cycle.not_now(state) is not None):
        return
    parts = choose(job, cycle.draft, allowed, cycle.rules, worth={}, prices=cycle.prices)
    if parts is not None:
        cycle.start(state, parts)
        cycle.settled.add(job.job)
        return
    if cycle.rules.preempt == "none" or job.within not in ONE_NODE:
        return
    cell = cell_for(state, cycle.fleet, cycle.draft, allowed, cycle.spoken_for, now_s=cycle.now_s)
    if cell is not None:
        cycle.make_room(state, cell)
        cycle.settled.add(job.job)
        for index in cell.nodes:
            cycle.draft.hold(index)
