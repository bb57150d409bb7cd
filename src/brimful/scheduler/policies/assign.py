"""Which job on which GPU type, for a fleet of several: everybody at once, at every review.

A GPU of type t is worth v(j, t) = rate(j, t) / expected work(j) to job j: the share of the job done in a
second. The largest v per GPU choose first, then pairs that would both gain, or gain together, change places.
That is comparative advantage (old cards take what they do nearly as well as new ones) weighed by shortest
remaining work. It stands in for the linear program of Gavel (Narayanan et al., OSDI 2020), and unlike that
program's time shares it names one type per job, so that nobody is moved without a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from brimful.fleet.job import PRIORITIES
from brimful.fleet.lease import JobState
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.scheduler.policies.order import aged_work_s, expected_work_s
from brimful.scheduler.policies.preempt import REVIEW_S, lost_gpu_s
from brimful.scheduler.policies.quota import Books
from brimful.scheduler.rules import Rules

SWAPS_UP_TO = 300  # jobs: swapping looks at pairs
ROUNDS = 4
NEARLY = 1e-12
ROOM_FOR_ALL = 10**9


@dataclass(slots=True)
class _Want:
    state: JobState
    gpus: int
    rank: int
    worth: dict[Pool, float]
    at: Pool | None = None


def is_mixed(fleet: Fleet, rules: Rules) -> bool:
    return rules.move and fleet.capacity.is_mixed


def assign(
    fleet: Fleet,
    rules: Rules,
    pools_of: Mapping[int, Sequence[Pool]],
    *,
    now_s: int,
    books: Books | None = None,
    may_start: Callable[[JobState], bool] | None = None,
) -> dict[str, Pool | None] | None:
    """The pool each job that waits or may be moved should be in; None for those that should wait.

    Returns nothing between reviews. Jobs that were just started or are about to end stay where they are, and
    who may not start yet is given nothing that others would have to leave. `books`: what each queue may hold.
    """
    if now_s % rules.rerank_s >= REVIEW_S:
        return None
    room = {pool: index.gpus for pool, index in fleet.capacity.pools.items()}
    wants: list[_Want] = []
    for lease in fleet.open_leases.values():
        state, slot = fleet.jobs[lease.job], fleet.capacity.by_name.get(lease.node)
        if slot is None:
            continue
        if lease.phase == "running" and _may_move(state, rules, now_s=now_s):
            want = _want(state, pools_of[state.shape], fleet, rules, now_s=now_s)
            if slot.pool in want.worth:
                wants.append(want)
                continue
        room[slot.pool] -= lease.size
    wants += [
        _want(state, pools_of[state.shape], fleet, rules, now_s=now_s)
        for state in fleet.waiting.values()
        if may_start is None or may_start(state)
    ]
    wants.sort(key=lambda want: want.state.serial)  # whether a job waits or runs must not change the outcome
    if books is None:
        _greedy(wants, room)
    else:
        _share_out(wants, room, fleet, books, now_s=now_s)
    if len(wants) <= SWAPS_UP_TO and rules.types != "rotate":
        # With quotas only those who hold GPUs change places: no queue comes to hold more by it.
        _swap(wants if books is None else [want for want in wants if want.at is not None], room)
    return {want.state.job.job: want.at for want in wants}


def _may_move(state: JobState, rules: Rules, *, now_s: int) -> bool:
    """It has run its least time, and moving throws away little of what it still has to do."""
    lease = state.leases[-1]
    # At least a second: whoever was moved a moment ago is not moved again in the same review.
    if lease.billed_s(now_s) < max(1, rules.min_run_s, state.job.min_run_s) + lease.setup_s:
        return False
    return lost_gpu_s(state, lease, now_s=now_s) * 10 <= expected_work_s(state, rules, now_s=now_s)


def _want(state: JobState, pools: Sequence[Pool], fleet: Fleet, rules: Rules, *, now_s: int) -> _Want:
    job = state.job
    if rules.types == "rotate":
        worth = _in_turn(state, pools, fleet, rules, now_s=now_s)
        return _Want(state, job.gpus, PRIORITIES[job.priority], worth)
    left = max(1.0, aged_work_s(state, rules, now_s=now_s))
    gpus = job.gpus
    worth = {pool: rate * gpus / left for pool, rate in fleet.able_pools(state.shape)}
    if len(worth) > len(pools):
        worth = {pool: worth[pool] for pool in pools}
    return _Want(state, gpus, PRIORITIES[job.priority], worth)


def _in_turn(
    state: JobState, pools: Sequence[Pool], fleet: Fleet, rules: Rules, *, now_s: int
) -> dict[Pool, float]:
    """Speed ignored: who has had least goes first, to the type it has had least of for its size.

    What a scheduler does that takes all GPUs for equal and shares them fairly in rounds: the
    heterogeneity-agnostic policy that Gavel compares with.
    """
    had_s = {pool.gpu: 0 for pool in pools}
    for lease in state.leases:
        had_s[lease.gpu] = had_s.get(lease.gpu, 0) + lease.billed_s(now_s)
    turns = state.attained_s(now_s) / rules.rerank_s + 1
    return {
        pool: fleet.capacity.pools[pool].gpus
        * state.job.gpus
        / (had_s[pool.gpu] / rules.rerank_s + 1)
        / turns
        for pool in pools
    }


def _greedy(wants: list[_Want], room: dict[Pool, int]) -> None:
    for _, _, _, pool, want in _pairs(wants):
        if want.at is None and room[pool] >= want.gpus:
            want.at = pool
            room[pool] -= want.gpus


def _pairs(wants: list[_Want]) -> list[tuple[int, float, int, Pool, _Want]]:
    """Jobs and the pools that would do, by class, those first to whom a GPU there is worth most."""
    pairs = [
        # A job's serial and a pool stand in one pair only, so that wants are never compared.
        (want.rank, -worth / gpus, want.state.serial, pool, want)
        for want in wants
        if (gpus := max(1, want.gpus))
        for pool, worth in want.worth.items()
    ]
    pairs.sort()
    return pairs


def _share_out(wants: list[_Want], room: dict[Pool, int], fleet: Fleet, books: Books, *, now_s: int) -> None:
    """The same where queues have quotas: first what is each queue's own, then what others have borrowed.

    Class by class: who stays within its queue's quota chooses, then borrowers that run keep their GPUs as far
    as those are left, so that a lender gets its own back from borrowers of its class or lower. What nobody
    claims at the end is lent as `over_quota` allows; nobody who borrows is sent away for it.
    """
    here = {want.state.serial: _here(want.state, fleet) for want in wants}
    books.leave([want.state.job for want in wants if here[want.state.serial] is not None])
    pairs = _pairs(wants)

    def take(want: _Want, pool: Pool) -> None:
        want.at = pool
        room[pool] -= want.gpus
        books.take(want.state.job, waits=here[want.state.serial] is None)

    for rank in sorted({want.rank for want in wants}):
        mine = [pair for pair in pairs if pair[0] == rank]
        for _, _, serial, pool, want in mine:
            if want.at is not None or room[pool] < want.gpus:
                continue
            if books.is_own(want.state.job) or (
                not books.reclaim and pool == here[serial] and books.may_keep(want.state.job)
            ):
                take(want, pool)
        for want in _in_cells([want for want in wants if want.rank == rank], fleet, now_s=now_s):
            held = here[want.state.serial]
            if held is not None and room[held] >= want.gpus and books.may_keep(want.state.job):
                take(want, held)
    for _, _, _, pool, want in pairs:
        if want.at is None and room[pool] >= want.gpus and books.may_borrow(want.state.job):
            take(want, pool)


def _here(state: JobState, fleet: Fleet) -> Pool | None:
    lease = state.open_lease
    return None if lease is None else fleet.capacity.by_name[lease.node].pool


def _in_cells(wants: list[_Want], fleet: Fleet, *, now_s: int) -> list[_Want]:
    """Those who run and have no place yet, node by node, so that whoever has to leave leaves one cell.

    Nodes are kept first where more stays anyway, then where leaving would lose most.
    """
    on: dict[str, list[_Want]] = {}
    for want in wants:
        if want.at is None and (lease := want.state.open_lease) is not None:
            on.setdefault(lease.node, []).append(want)

    def keep_first(node: str) -> tuple[int, float, str]:
        going = sum(want.gpus for want in on[node])
        held = sum(lease.size for lease in fleet.leases_on[node].values())
        lost = sum(lost_gpu_s(want.state, want.state.leases[-1], now_s=now_s) for want in on[node])
        return (going - held, -lost, node)

    return [want for node in sorted(on, key=keep_first) for want in on[node]]


def _swap(wants: list[_Want], room: dict[Pool, int]) -> None:
    """Change places in pairs while the two together gain; the first few rounds find nearly all there is.

    Pools are numbers in here and waiting is one of them, with room for all: half a review is this loop.
    """
    pools: list[Pool | None] = [*room, None]
    number = {pool: i for i, pool in enumerate(pools)}
    spare = [*room.values(), ROOM_FOR_ALL]
    rows = [
        _Row([*[want.worth.get(pool, -inf) for pool in room], 0.0], want.gpus, want.rank, number[want.at])
        for want in wants
    ]
    for _ in range(ROUNDS):
        changed = False
        for i, one in enumerate(rows):
            changed |= _go_elsewhere(one, spare)
            changed |= _trade(one, rows[:i], spare)
        if not changed:
            break
    for want, row in zip(wants, rows, strict=True):
        want.at = pools[row.at]


@dataclass(slots=True)
class _Row:
    """A want by numbers: its worth in each pool, -inf where it may not run."""

    worth: list[float]
    gpus: int
    rank: int
    at: int


def _go_elsewhere(row: _Row, spare: list[int]) -> bool:
    least = row.worth[row.at] + NEARLY
    for pool, worth in enumerate(row.worth):
        if worth > least and spare[pool] >= row.gpus and pool != row.at:
            spare[row.at] += row.gpus
            spare[pool] -= row.gpus
            row.at = pool
            return True
    return False


def _trade(one: _Row, others: list[_Row], spare: list[int]) -> bool:
    """Change places with each of the others with whom it gains."""
    changed = False
    mine, here = one.worth, one.at
    for other in others:
        there = other.at
        if there == here:
            continue
        theirs = other.worth
        if mine[there] + theirs[here] <= mine[here] + theirs[there] + NEARLY:
            continue
        more = one.gpus - other.gpus  # that leave here and come there
        if one.rank == other.rank and spare[here] + more >= 0 and spare[there] - more >= 0:
            spare[here] += more
            spare[there] -= more
            one.at, other.at = there, here
            here = there
            changed = True
    return changed
