"""At every review of a mixed fleet: choose a GPU type for each job, and start the job there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brimful.fleet.sharing import tenants
from brimful.fleet.state import JobState, Lease, Pool
from brimful.language import say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.placing.assign import assign
from brimful.scheduler.placing.clearing import cells
from brimful.scheduler.placing.place import ONE_NODE, place
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.placing.victims import REVIEW_S
from brimful.scheduler.plan import Review
from brimful.scheduler.quotas import Books


def assign_types(cycle: Cycle) -> None:
    """Choose every job's GPU type, once per review, and stop the jobs that should change type."""
    fleet, rules, now_s = cycle.fleet, cycle.rules, cycle.now_s
    late_s, last, cycle.review = now_s % rules.rerank_s, cycle.review, None
    if late_s >= REVIEW_S or not is_mixed(fleet, rules):
        return
    if last is not None and now_s - late_s <= last.at_s <= now_s:
        cycle.review = last
        if any(name in fleet.waiting for name in last.starting):
            cycle.targets = last.targets
        return  # carry out what the last review chose; after that, jobs start in order again
    books = None
    if rules.quotas:
        gpus = fleet.capacity.gpus
        books = Books(rules, held=cycle.held, waited_for=cycle.waited_for, gpus_in_fleet=gpus)
    targets = assign(
        fleet,
        rules,
        cycle.pools,
        now_s=now_s,
        prices=cycle.prices,
        kept=cycle.kept,
        claimed=cycle.claimed,
        books=books,
        may_start=cycle.may_start,
    )
    if cycle.finish is not None:
        targets |= cycle.finish.targets(fleet)
    starting = [name for name, pool in targets.items() if pool is not None and name in fleet.waiting]
    for name, pool in targets.items():
        lease = fleet.jobs[name].open_lease
        if lease is None or lease.lease in cycle.spoken_for:
            continue
        slot = fleet.capacity.by_name.get(lease.node)
        here = fleet.nodes[lease.node].pool if slot is None else slot.pool
        if here in cycle.draft.sold or _stays(cycle, lease, targets, here):
            continue  # in a market pool, clearing decides who stays
        if pool is not None:
            starting.append(name)
        why = say("scheduler.makes_room") if pool is None else say("scheduler.moves_to", where=pool.gpu)
        if pool is None and books is not None:
            why = books.gives_back(fleet.jobs[name].job) or why
        cycle.stop(lease, why, beside=False)
    cycle.targets, cycle.review = targets, Review(at_s=now_s, targets=targets, starting=tuple(starting))


def _stays(cycle: Cycle, lease: Lease, targets: Mapping[str, Pool | None], here: Pool) -> bool:
    """Whether the job keeps its GPU. If two jobs share one and only one of them keeps it, the one that should
    wait stays beside it; if both should have a GPU of this type, the second gets another."""
    pool = targets[lease.job]
    pair = tenants(cycle.fleet, lease) if lease.may_share else [lease]
    others = [targets.get(each.job) for each in pair if each is not lease]
    if here not in others:
        return pool == here
    return pool is None or (pool == here and pair[0] is lease)


def place_by_type(cycle: Cycle) -> None:
    """Start each job on its chosen type, wide gangs first. A job that has no type waits.

    Until every job on the list has started, no other job starts or reclaims what its queue has lent: GPUs
    freed for a job outside the list would go to one on it, and the two would swap forever. Each job is
    started once, so the list shrinks with every start. After `REVIEW_S` the rest is dropped.
    """
    targets = cycle.targets
    if targets is None or cycle.review is None:
        return
    moving = bool(cycle.stops)
    waiting, pools, started = cycle.fleet.waiting, cycle.fleet.capacity.pools, set[str]()
    chosen = [waiting[name] for name in cycle.review.starting if name in waiting and targets[name] in pools]
    for state in sorted(chosen, key=lambda each: (-each.job.gpus, each.serial)):
        pool = targets[state.job.job]
        if pool is None or cycle.not_now(state) or state.job.job in cycle.settled:
            continue
        if not cycle.within_limits(state, [pool]):
            continue
        if state.avoid_site and pool not in cycle.elsewhere(state, cycle.pools(state.shape)):
            cycle.avoided_until_s += (state.avoid_until_s,)
            continue
        parts = place(state.job, cycle.draft, pool)
        if parts is not None:
            cycle.start(state, parts)
            started.add(state.job.job)
        elif not moving and state.job.within in ONE_NODE:
            _make_a_node(cycle, state, pool, targets)
    left = tuple(name for name in cycle.review.starting if name not in started)
    cycle.review = replace(cycle.review, starting=left)
    if not left:
        cycle.settled |= started
        cycle.targets = None  # all have started: the other jobs go on in order


def _make_a_node(cycle: Cycle, state: JobState, pool: Pool, targets: Mapping[str, Pool | None]) -> None:
    """Enough GPUs are free but not on one node: move the jobs on the emptiest node into gaps elsewhere."""
    fleet, draft = cycle.fleet, cycle.draft
    best: tuple[int, int, str] | None = None
    for (index,) in cells(cycle, state.job, pool):
        slot = fleet.capacity.slots[index]
        leases = fleet.leases_on.get(slot.node.node, {}).values()
        free, held = len(draft.free_on(slot.index)), sum(lease.size for lease in leases)
        if free + held < state.job.gpus or held > draft.free_in(pool) - free:
            continue
        if any(targets.get(x.job) != pool or x.lease in cycle.spoken_for for x in leases):
            continue
        if best is None or held < best[0]:
            best = (held, slot.index, slot.node.node)
    if best is not None:
        draft.hold(best[1])
        for lease in fleet.leases_on.get(best[2], {}).values():
            cycle.stop(lease, say("scheduler.makes_node", job=state.job.job))
