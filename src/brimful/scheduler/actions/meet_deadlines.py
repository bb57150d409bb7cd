"""Say which pools jobs with a deadline may use until the next look, and move those who should change."""

from __future__ import annotations

from brimful.scheduler.cycle import Cycle
from brimful.scheduler.deadlines.finish import finish


def meet_deadlines(cycle: Cycle) -> None:
    if cycle.fleet.due and cycle.fleet.spot:  # without spot there is nothing to choose
        cycle.finish = finish(cycle.fleet, cycle.draft, cycle.rules, cycle.prices, now_s=cycle.now_s)
        for lease, reason in cycle.finish.moves:
            cycle.stop(lease, reason)
