"""Give spare GPUs to elastic gangs: start them wider, and resize running ones.

Placement decides which gangs start, treating each as a gang of its minimum size; this action decides its
width and GPU type. A running gang that should change size is stopped with notice, saves and restarts. Until
all of those have left, no elastic gang starts, so the GPUs they free are shared out once. No gang gets less
than its minimum. In market pools, clearing decides the size (auction.py). On bought nodes, a gang keeps its
minimum size.
"""

from __future__ import annotations

from collections.abc import Iterator

from brimful.fleet.events import LeaseGranted, Parts
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job, at_size
from brimful.fleet.memory import too_small
from brimful.fleet.state import JobState, Pool
from brimful.language import say
from brimful.scheduler.auction import RESIZED
from brimful.scheduler.cycle import AHEAD_S, Cycle
from brimful.scheduler.ordering import first_waiting
from brimful.scheduler.placing.assign import DEPTH, may_move, movable_s
from brimful.scheduler.placing.place import place
from brimful.scheduler.placing.sizes import choice_at, worthwhile
from brimful.scheduler.placing.widths import Choice, Gang, share_out
from brimful.scheduler.plan import earliest
from brimful.units import HOUR_S


def resize(cycle: Cycle) -> None:
    fleet = cycle.fleet
    if not fleet.elastic or cycle.shop is not None:
        return
    starts = {start.job: start for start in cycle.starts if _is_ours(cycle, start)}
    if _still_leaving(cycle):
        for start in starts.values():
            cycle.take_back(start)
        return
    gangs = [*_starting(cycle, starts), *_running(cycle)]
    if any(gang.at.gpus > gang.state.job.min_gpus for gang in gangs):
        gangs += _waiting(cycle)
    if not gangs:
        return
    room = {pool: cycle.draft.free_in(pool) for pool in fleet.capacity.pools}
    before = [gang.at for gang in gangs]
    share_out(gangs, room)
    changed = [gang for gang, was in zip(gangs, before, strict=True) if gang.at is not was]
    if not _fits(
        cycle, changed, starts
    ):  # too scattered: running gangs stay, and starts are widened one by one
        changed = [gang for gang in changed if gang.state.job.job in starts]
    moving = False
    for gang in changed:
        lease = gang.state.open_lease
        if lease is not None:
            moving = True
            cycle.stop(lease, say(RESIZED, was=lease.size, gpus=gang.at.gpus, where=_gpu(gang.at)))
    for gang in sorted(changed, key=lambda each: (-each.at.gpus, each.state.serial)):
        name = gang.state.job.job
        if gang.state.open_lease is None:
            _start(cycle, gang, starts.get(name), moving=moving)


def _is_ours(cycle: Cycle, start: LeaseGranted) -> bool:
    """Neither in a market pool nor on GPUs reserved or bought for it."""
    fleet = cycle.fleet
    if start.job not in fleet.elastic or start.reservation or start.job in fleet.cloud.reserved:
        return False
    return fleet.nodes[start.node].pool not in cycle.draft.sold


def _gpu(choice: Choice) -> str:
    return "" if choice.pool is None else choice.pool.gpu


def _still_leaving(cycle: Cycle) -> bool:
    """Whether a gang of a queue pool that was told to change size has not stopped yet."""
    nodes, sold = cycle.fleet.nodes, cycle.draft.sold
    return any(
        lease.phase == "ending"
        and lease.reason is not None
        and lease.reason.as_dict()["code"] == RESIZED
        and (lease.node not in nodes or nodes[lease.node].pool not in sold)
        for state in cycle.fleet.elastic.values()
        if (lease := state.open_lease) is not None
    )


# --- which gangs may change, and what each could have -------------------------------------------------------


def _starting(cycle: Cycle, starts: dict[str, LeaseGranted]) -> Iterator[Gang]:
    for name, start in starts.items():
        state, pool = cycle.fleet.jobs[name], cycle.fleet.nodes[start.node].pool
        yield _gang(cycle, state, here=(pool, state.job.gpus))


def _running(cycle: Cycle) -> Iterator[Gang]:
    fleet = cycle.fleet
    for state in fleet.elastic.values():
        lease = state.open_lease
        if lease is None or lease.phase != "running" or lease.lease in cycle.spoken_for or lease.reservation:
            continue
        if lease.turn_until_s > cycle.now_s:  # it would lose its turn
            continue
        slot = fleet.capacity.by_name.get(lease.node)
        if slot is None or slot.pool in cycle.draft.sold or state.job.job in fleet.cloud.reserved:
            continue
        if may_move(state, cycle.rules, now_s=cycle.now_s):
            yield _gang(cycle, state, here=(slot.pool, lease.size))
        elif (ready_s := movable_s(state, cycle.rules)) > cycle.now_s:
            cycle.resize_ready_s = earliest(ready_s, cycle.resize_ready_s)


def _waiting(cycle: Cycle) -> Iterator[Gang]:
    """Jobs that found no place: gangs above their minimum may make room for them."""
    fleet = cycle.fleet
    going = {start.job for start in cycle.starts} | cycle.settled | set(cycle.cells)
    for state in first_waiting(fleet, cycle.rules, gpus=DEPTH * fleet.capacity.gpus, now_s=cycle.now_s):
        job = state.job
        if job.job in going or job.gpu_milli < WHOLE_GPU or not job.gpus:
            continue
        if not cycle.may_be_held(job) or cycle.not_now(state) is None:
            yield _gang(cycle, state, here=None)


def _gang(cycle: Cycle, state: JobState, *, here: tuple[Pool, int] | None) -> Gang:
    choices = [choice_at(cycle, state, pool, gpus) for pool, gpus in _places(cycle, state, here)]
    if here is None:
        at = Choice(None, 0, 0.0)
    else:
        at = next((each for each in choices if (each.pool, each.gpus) == here), None) or choice_at(
            cycle, state, *here
        )
    return Gang(state, PRIORITIES[state.job.priority], at, choices, may_wait=here is None)


def _places(cycle: Cycle, state: JobState, here: tuple[Pool, int] | None) -> Iterator[tuple[Pool, int]]:
    """The pools and sizes it could have, within its price limit, quotas and limits."""
    draft, job = cycle.draft, state.job
    limit, held = job.limit_microusd_per_gpu_hour, 0 if here is None else here[1]
    for pool in cycle.fleet.capacity.pools:
        if (
            pool in draft.sold
            or pool.site in draft.closed
            or (cycle.rules.quotas and here and pool != here[0])
        ):
            continue
        if not job.may_be_in(site=pool.site, tier=pool.tier) or job.rate(pool.gpu) <= 0.0:
            continue
        if too_small(job, pool.gpu) is not None or (limit is not None and cycle.prices[pool] > limit):
            continue
        for gpus in worthwhile(job, pool.gpu):
            if not cycle.fleet.capacity.could_hold(at_size(job, gpus), pool):
                break
            if gpus > held and not _may_have(cycle, job, pool, gpus - held):
                break
            yield pool, gpus


def _may_have(cycle: Cycle, job: Job, pool: Pool, more: int) -> bool:
    """Whether its queue, its user and its tenant's budget allow this many more GPUs."""
    extra = at_size(job, more)
    if cycle.over_quota(extra) is not None:
        return False
    if cycle.limits is not None and (
        cycle.limits.over_user(extra) is not None or cycle.limits.over_type(extra, (pool.gpu,)) is not None
    ):
        return False
    cost = cycle.prices[pool] * more * AHEAD_S // HOUR_S
    return cycle.money is None or cycle.money.lacks(job, cost) is None


# --- carrying it out ----------------------------------------------------------------------------------------


def _fits(cycle: Cycle, changed: list[Gang], starts: dict[str, LeaseGranted]) -> bool:
    """Whether every gang finds a place as close together as it must be, once those that change have left."""
    later = cycle.draft.copy()
    for gang in changed:
        lease, start = gang.state.open_lease, starts.get(gang.state.job.job)
        if lease is not None:
            later.give(lease.parts, gang.state.job)
        elif start is not None:
            later.give(_parts(start), gang.state.job)
    for gang in sorted(changed, key=lambda each: (-each.at.gpus, each.state.serial)):
        if gang.at.pool is None:
            continue
        job = at_size(gang.state.job, gang.at.gpus)
        parts = place(job, later, gang.at.pool)
        if parts is None:
            return False
        later.take(parts, job)
    return True


def _parts(start: LeaseGranted) -> Parts:
    return ((start.node, start.gpus), *start.rest)


def _start(cycle: Cycle, gang: Gang, start: LeaseGranted | None, *, moving: bool) -> None:
    """Start it at its size now, or later once those `moving` have left; else at the best size available now.

    Quotas and budget are checked again: other gangs may have used them up meanwhile.
    """
    state = gang.state
    if start is not None:
        cycle.take_back(start)
    others = [] if moving else sorted(gang.choices, key=lambda each: -each.worth)
    for choice in (gang.at, *others):
        if choice.pool is None or not _may_have(cycle, state.job, choice.pool, choice.gpus):
            continue
        parts = place(at_size(state.job, choice.gpus), cycle.draft, choice.pool)
        if parts is not None:
            cycle.start(state, parts)
            return
