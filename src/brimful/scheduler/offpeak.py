"""When deferrable work starts: in cheap hours of the tariff; without one, while the fleet is quiet."""

from __future__ import annotations

from brimful.fleet.lease import JobState
from brimful.fleet.state import Fleet
from brimful.language import Percent, Seconds, Sentence, say
from brimful.market.tariff import FLAT, is_low
from brimful.scheduler import ordering
from brimful.units import HOUR_S

QUIET_FREE = 0.2  # a fleet with a fifth of its GPUs free is quiet
LONGEST_WAIT_S = 24 * HOUR_S  # every day has a quiet hour


def quoted_s(state: JobState) -> int:
    """From when it is quoted. A hold does not count: it would keep the price of a cheap hour at will."""
    return max(state.ready_s, state.released_s)


def start_by_s(state: JobState) -> float:
    """The last moment a deferrable job can start and still keep its deadline."""
    job = state.job
    if job.deadline_s is None:
        return quoted_s(state) + LONGEST_WAIT_S
    work_s = job.predicted_work_s
    if work_s is None:
        return state.ready_s  # its length is unknown, so there is no slack to wait with
    return ordering.start_by_s(state, work_s - state.kept_work_s)


def defer(state: JobState, fleet: Fleet, *, free: int, now_s: int) -> Sentence | None:
    """Why a deferrable job does not start yet although GPUs may be free; None if it may start."""
    if not state.job.deferrable or now_s >= start_by_s(state):
        return None
    quoted = [fleet.tariffs[pool] for pool in fleet.able_pools(state.shape) if pool in fleet.tariffs]
    if quoted:
        price = min(line.at(now_s) for line in quoted)
        later = [each for line in quoted for each in line.after(now_s, until_s=start_by_s(state))]
        if is_low(price, later):
            return None
        left = Seconds(start_by_s(state) - now_s)
        shares = {"now": Percent(price / FLAT, 0), "then": Percent(min(later) / FLAT, 0)}
        return say("scheduler.cheaper_hour", left=left, **shares)
    gpus = fleet.capacity.gpus
    if free - state.job.gpus >= QUIET_FREE * gpus:
        return None
    return say("scheduler.quiet_hour", free=free, gpus=gpus, left=Seconds(start_by_s(state) - now_s))
