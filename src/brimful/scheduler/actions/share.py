"""Put a job that found no GPU beside a job it shares well with, where the rules have `share`.

Side by side, two jobs keep f and g of their own speeds (fleet/sharing.py). Taking turns on the GPU they would
have 1 between them, so f + g - 1 is the work that sharing adds. It must also pay by the index of a review,
speed over expected work: the guest must gain more than its host loses. So both sides of the interference are
charged, in work and in mean JCT. Among the remaining hosts, the one that adds most work wins.
Where GPUs stay free, two jobs that share one are separated again.
"""

from __future__ import annotations

from brimful.fleet.events import Parts
from brimful.fleet.sharing import may_share, tenants, together
from brimful.fleet.state import JobState, Lease, Pool
from brimful.language import say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.ordering import aged_work_s, first_waiting
from brimful.scheduler.placing.assign import DEPTH, may_move

Kind = tuple[Pool, str, int, tuple[tuple[str, int], ...], int]  # jobs that share alike: name, compute, memory
Hosts = dict[Kind, list[Lease]]


def share(cycle: Cycle) -> None:
    fleet, rules = cycle.fleet, cycle.rules
    if not rules.share or cycle.targets is not None:
        return  # while a review is carried out, GPUs are on their way to waiting jobs
    _separate(cycle)
    hosts = _hosts(cycle)
    started = {start.job for start in cycle.starts}
    for state in [*first_waiting(fleet, rules, gpus=DEPTH * fleet.capacity.gpus, now_s=cycle.now_s)]:
        if not hosts:
            return
        name = state.job.job
        if not may_share(state.job) or name in started or name in cycle.settled or name in cycle.cells:
            continue
        if cycle.may_be_held(state.job) and cycle.not_now(state) is not None:
            continue
        found = _best(cycle, state, hosts)
        if found is None:
            continue
        host = hosts[found].pop()
        if not hosts[found]:
            del hosts[found]
        cycle.start(state, _place(host), beside=host)


def _hosts(cycle: Cycle) -> Hosts:
    """Jobs alone on a GPU that may have a second tenant, on a node that is not kept for a gang."""
    fleet, found = cycle.fleet, Hosts()
    kept = {index for each in cycle.reservations for index in each.nodes}
    kept |= {index for cell in cycle.cells.values() for index in cell.nodes}
    for lease in fleet.open_leases.values():
        if not lease.may_share or lease.phase != "running" or lease.lease in cycle.spoken_for:
            continue
        slot = fleet.capacity.by_name.get(lease.node)
        if slot is None or slot.index in kept or lease.notice_s is not None or len(tenants(fleet, lease)) > 1:
            continue
        job = fleet.jobs[lease.job].job
        kind = (slot.pool, job.name, job.compute_milli, job.peak_bytes, job.gpu_memory_bytes)
        found.setdefault(kind, []).append(lease)
    return found


def _best(cycle: Cycle, state: JobState, hosts: Hosts) -> Kind | None:
    """The hosts beside which it adds most work; None if it would add none or may not be there."""
    job, fleet = state.job, cycle.fleet
    pools = cycle.within_limits(state, cycle.planned(state, cycle.elsewhere(state, cycle.pools(state.shape))))
    best: Kind | None = None
    most = 1.0
    for kind, leases in hosts.items():
        pool, host = kind[0], leases[-1]
        if pool not in pools:
            continue
        beside, slot = fleet.jobs[host.job], fleet.capacity.by_name[host.node]
        shares = together(job, beside.job, pool.gpu)
        if shares is None or sum(shares) <= most or not cycle.draft.room_on(slot, job, 1):
            continue
        gains = shares[0] * _worth(cycle, state, pool)
        if gains > (1 - shares[1]) * _worth(cycle, beside, pool):
            best, most = kind, sum(shares)
    return best


def _worth(cycle: Cycle, state: JobState, pool: Pool) -> float:
    """The share of its remaining work that it does there in a second."""
    return state.job.rate(pool.gpu) / max(1.0, aged_work_s(state, cycle.rules, now_s=cycle.now_s))


def _separate(cycle: Cycle) -> None:
    """Move one of two jobs on a shared GPU to a GPU that no other job needs, if it may be moved."""
    fleet, free = cycle.fleet, {pool: cycle.draft.free_in(pool) for pool in cycle.fleet.capacity.pools}
    for lease in [*fleet.open_leases.values()] if any(free.values()) else ():
        slot = fleet.capacity.by_name.get(lease.node)
        if not lease.may_share or slot is None or not free[slot.pool] or lease.lease in cycle.spoken_for:
            continue
        pair = [each for each in tenants(fleet, lease) if each.phase == "running"]
        if len(pair) < 2 or pair[0] is lease or pair[0].lease in cycle.spoken_for:
            continue
        if may_move(fleet.jobs[lease.job], cycle.rules, now_s=cycle.now_s):
            free[slot.pool] -= 1
            cycle.stop(lease, say("scheduler.moves_to", where=slot.pool.gpu), beside=False)


def _place(host: Lease) -> Parts:
    return ((host.node, host.gpus),)
