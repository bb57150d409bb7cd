"""Which job on which GPU type, for a mixed fleet: all jobs at once, at every review.

A GPU of type t is worth v(j, t) = rate(j, t) / expected work(j) to job j: the share of the job done in a
second. The largest v per GPU choose first, then pairs that gain together swap places. That is comparative
advantage (old cards take what they do nearly as well as new ones) weighted by shortest remaining work. It
replaces the linear program of Gavel (Narayanan et al., OSDI 2020); unlike that program's time shares it names
one type per job, so that no job moves without a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.node import Pool
from brimful.fleet.sharing import tenants
from brimful.fleet.state import Fleet
from brimful.scheduler.ordering import (
    aged_work_s,
    expected_left_s,
    expected_work_s,
    first_waiting,
    longest_first,
)
from brimful.scheduler.placing.victims import loses_all_again, lost_gpu_s
from brimful.scheduler.quotas import Books
from brimful.scheduler.rules import Rules

SWAPS_UP_TO = 300  # jobs: swapping compares pairs
ROUNDS = 4
DEPTH = 2  # how many waiting jobs are considered, in multiples of the fleet's GPUs
# Of its speed: a job ten times as well off elsewhere goes there, however often it has moved.
LEAST_SHARE = 0.1
NEARLY = 1e-12
ROOM_FOR_ALL = 10**9


@dataclass(slots=True)
class _Want:
    """A job in numbers: its worth in each pool, -inf if it may not run there; the last pool is waiting.

    `home` is the pool it runs in. It only breaks ties: no job moves for nothing.
    """

    state: JobState
    gpus: int
    rank: int
    worth: list[float]
    at: int
    home: int = -1

    @property
    def waits(self) -> bool:
        return self.at == len(self.worth) - 1


# Class, negated worth per GPU, serial, the pool's rank by name; the pool; the want.
_Pair = tuple[int, float, int, int, int, _Want]


def assign(
    fleet: Fleet,
    rules: Rules,
    pools_of: Callable[[int], Sequence[Pool]],
    *,
    now_s: int,
    prices: Mapping[Pool, int],
    kept: Collection[str] = (),
    claimed: Mapping[Pool, int] | None = None,
    books: Books | None = None,
    may_start: Callable[[JobState], bool] | None = None,
) -> dict[str, Pool | None]:
    """The pool for each job that waits or may be moved; None for those that should wait.

    Jobs that just started or are about to end stay where they are, and jobs that may not start yet are given
    nothing that others would have to leave. Jobs `kept` in the slot of a promise are left out too; they wait
    for `claimed` GPUs. `books`: what each queue may hold.
    `prices` decide only between pools that are worth the same to a job, and only if types are `cheap`.
    """
    pools: list[Pool | None] = [*fleet.capacity.pools, None]
    number = {pool: i for i, pool in enumerate(pools)}
    claims = claimed or {}
    room = [*[index.gpus - claims.get(p, 0) for p, index in fleet.capacity.pools.items()], ROOM_FOR_ALL]
    look = _Look(fleet, rules, pools_of, now_s=now_s)
    wants: list[_Want] = []
    sharing: set[tuple[str, int]] = set()
    for lease in fleet.open_leases.values():
        slot = fleet.capacity.by_name.get(lease.node)
        if slot is None:
            continue
        here, state = number[slot.pool], fleet.jobs[lease.job]
        paired = tenants(fleet, lease) if lease.may_share else []
        if len(paired) > 1:
            # Two jobs that share a GPU each choose as if alone, and count one GPU together. If one of them is
            # ending or may not be moved, it keeps the GPU for both.
            if any(_is_fixed(fleet, each, kept, rules, now_s=now_s) for each in paired):
                room[here] -= paired[0] is lease
                continue
        elif (
            lease.gpu_milli < WHOLE_GPU
            and not lease.may_share
            and slot.shared.get(lease.gpus[0], 0) + lease.gpu_milli < WHOLE_GPU
        ):
            # Other jobs are on its GPU, so leaving would not free it. All of them stay, on one GPU.
            room[here] -= (lease.node, lease.gpus[0]) not in sharing
            sharing.add((lease.node, lease.gpus[0]))
            continue
        if not _is_fixed(fleet, lease, kept, rules, now_s=now_s):
            want = look.want(state, home=here)
            if want.worth[here] != -inf:
                wants.append(want)
                continue
        room[here] -= lease.size
    first = first_waiting(fleet, rules, gpus=DEPTH * fleet.capacity.gpus, now_s=now_s)
    able = [state for state in first if state.job.job not in kept]
    wants += [look.want(state) for state in able if may_start is None or may_start(state)]
    wants.sort(key=lambda want: want.state.serial)  # waiting or running must not change the outcome
    pairs = _pairs(wants, [*fleet.capacity.pools], prices if rules.types == "cheap" else {})
    if books is None:
        _greedy(pairs, room)
    else:
        here_of = {want.state.serial: _here(want.state, fleet, number) for want in wants}
        _share_out(wants, pairs, room, here=here_of, fleet=fleet, books=books, now_s=now_s)
    if len(wants) <= SWAPS_UP_TO and rules.types != "rotate":
        # With quotas only jobs that hold GPUs swap: that way no queue ends up with more.
        _swap(wants if books is None else [want for want in wants if not want.waits], room)
    return {want.state.job.job: pools[want.at] for want in wants}


def _is_fixed(fleet: Fleet, lease: Lease, kept: Collection[str], rules: Rules, *, now_s: int) -> bool:
    """Whether it stays where it is, whatever the review says; resize.py moves elastic gangs."""
    state = fleet.jobs[lease.job]
    if lease.phase != "running" or lease.job in kept or state.job.max_gpus:
        return True
    return not may_move(state, rules, now_s=now_s)


def may_move(state: JobState, rules: Rules, *, now_s: int) -> bool:
    """It has run its minimum time, and moving throws away little compared with its remaining work."""
    lease = state.leases[-1]
    if lease.started_s is None or now_s < movable_s(state, rules):
        return False
    if loses_all_again(state, lease.billed_s(now_s) - lease.setup_s):
        return False
    return lost_gpu_s(state, lease, now_s=now_s) * 10 <= expected_work_s(state, rules, now_s=now_s)


def movable_s(state: JobState, rules: Rules) -> int:
    """When its current lease will have run its minimum time.

    At least a second: a job moved a moment ago is not moved again in the same review. And not before its
    first checkpoint: with reviews more frequent than checkpoints it would never make progress.
    """
    lease, saved_s = state.leases[-1], state.job.checkpoint_interval_s or 0
    started_s = lease.granted_s if lease.started_s is None else lease.started_s
    return started_s + max(1, rules.min_run_s, state.job.min_run_s, saved_s) + lease.setup_s


class _Look:
    """What jobs want, at one review."""

    def __init__(
        self,
        fleet: Fleet,
        rules: Rules,
        pools_of: Callable[[int], Sequence[Pool]],
        *,
        now_s: int,
    ) -> None:
        self._fleet, self._rules, self._pools_of, self._now_s = fleet, rules, pools_of, now_s
        self._rates: dict[int, list[float | None]] = {}  # by shape: most jobs share theirs

    def _rates_of(self, shape: int) -> list[float | None]:
        """The rate of jobs of this shape in each pool; None if they may not run there."""
        found = self._rates.get(shape)
        if found is None:
            pools, allowed = self._fleet.capacity.pools, self._pools_of(shape)
            able = self._fleet.able_pools(shape)
            if len(allowed) == len(pools):
                found = [*able.values()]
            else:
                found = [able[pool] if pool in allowed else None for pool in pools]
            self._rates[shape] = found
        return found

    def want(self, state: JobState, *, home: int = -1) -> _Want:
        job, rates = state.job, self._rates_of(state.shape)
        gpus = job.gpus
        if self._rules.types == "rotate":
            worth = self._rotated(state, rates)
        else:
            weight = self._weight(state, rates)
            worth = [-inf if rate is None else rate * gpus * weight for rate in rates]
            if home >= 0 and self._rules.stay:
                worth[home] /= self._share_moving(state)
        worth.append(0.0)
        return _Want(state, gpus, PRIORITIES[job.priority], worth, len(rates), home)

    def _weight(self, state: JobState, rates: list[float | None]) -> float:
        """What a second at speed 1 is worth to it, by objective.

        Mean JCT: the share of its remaining work. Makespan: the fall of Σ T²/2, T being the time left on its
        fastest type; this grows with T, so that the longest jobs are not left alone at the end.
        """
        rules, now_s = self._rules, self._now_s
        if longest_first(state, rules):
            best = max([rate for rate in rates if rate], default=1.0)
            return expected_left_s(state, rules, now_s=now_s) / best**2
        return 1.0 / max(1.0, aged_work_s(state, rules, now_s=now_s))

    def _share_moving(self, state: JobState) -> float:
        """The share of its speed elsewhere that remains if it keeps being stopped as often as so far.

        Each stop costs what it loses, and at least one review. This is the restart factor of Sia (Jayaram
        Subramanya et al., SOSP 2023) with the time on GPUs as a job's age: the real cost of a stop holds a
        job where it is, and a job that was moved often is held more.
        """
        stops, had_s, lease = len(state.leases) - 1, state.attained_s(self._now_s), state.leases[-1]
        if not stops:
            return 1.0
        lost_s = lost_gpu_s(state, lease, now_s=self._now_s) / (state.job.gpus or 1)
        cost_s = max(lost_s, self._rules.rerank_s)
        return max(LEAST_SHARE, 1 - stops * cost_s / (had_s + cost_s))

    def _rotated(self, state: JobState, rates: list[float | None]) -> list[float]:
        """Speed ignored: least service goes first, to the type the job has had least of for its size.

        This is what a scheduler does that treats all GPUs as equal and shares them fairly in rounds: the
        heterogeneity-agnostic policy that Gavel compares with.
        """
        every_s, gpus = self._rules.rerank_s, state.job.gpus
        had_s, lease = state.run_s_on or {}, state.open_lease
        here, here_s = (lease.gpu, lease.billed_s(self._now_s)) if lease is not None else ("", 0)
        rounds = state.attained_s(self._now_s) / every_s + 1
        return [
            -inf
            if rate is None
            else index.gpus
            * gpus
            / ((had_s.get(pool.gpu, 0) + (here_s if pool.gpu == here else 0)) / every_s + 1)
            / rounds
            for rate, (pool, index) in zip(rates, self._fleet.capacity.pools.items(), strict=True)
        ]


def _pairs(wants: list[_Want], pools: Sequence[Pool], prices: Mapping[Pool, int]) -> list[_Pair]:
    """Jobs and the pools they could use, by class, highest worth per GPU first."""
    by_price = sorted(range(len(pools)), key=lambda i: (prices.get(pools[i], 0), pools[i]))
    pairs = [
        # A pair of serial and pool occurs once, so wants are never compared.
        (
            want.rank,
            -worth / (want.gpus or 1),
            want.state.serial,
            -1 if pool == want.home else tie,
            pool,
            want,
        )
        for want in wants
        for tie, pool in enumerate(by_price)
        if (worth := want.worth[pool]) != -inf
    ]
    pairs.sort()
    return pairs


def _greedy(pairs: list[_Pair], room: list[int]) -> None:
    waiting = len(room) - 1
    for _, _, _, _, pool, want in pairs:
        if want.at == waiting and room[pool] >= want.gpus:
            want.at = pool
            room[pool] -= want.gpus


def _share_out(
    wants: list[_Want],
    pairs: list[_Pair],
    room: list[int],
    *,
    here: Mapping[int, int | None],
    fleet: Fleet,
    books: Books,
    now_s: int,
) -> None:
    """The same with quotas: first each queue's own GPUs, then borrowed ones.

    Class by class: jobs within their queue's quota choose, then running borrowers keep their GPUs as far as
    these are left, so that a lender gets its own back from borrowers of its class or lower. What is unclaimed
    at the end is lent as `over_quota` allows; no borrower is stopped for that. `here`: the pool of each
    running job, by serial.
    """
    books.leave([want.state.job for want in wants if here[want.state.serial] is not None])

    def take(want: _Want, pool: int) -> None:
        want.at = pool
        room[pool] -= want.gpus
        books.take(want.state.job, waits=here[want.state.serial] is None)

    for rank in sorted({want.rank for want in wants}):
        mine = [pair for pair in pairs if pair[0] == rank]
        for _, _, serial, _, pool, want in mine:
            if not want.waits or room[pool] < want.gpus:
                continue
            if books.is_own(want.state.job) or (
                not books.reclaim and pool == here[serial] and books.may_keep(want.state.job)
            ):
                take(want, pool)
        for want in _in_cells([want for want in wants if want.rank == rank], fleet, now_s=now_s):
            held = here[want.state.serial]
            if held is not None and room[held] >= want.gpus and books.may_keep(want.state.job):
                take(want, held)
    for _, _, _, _, pool, want in pairs:
        if want.waits and room[pool] >= want.gpus and books.may_borrow(want.state.job):
            take(want, pool)


def _here(state: JobState, fleet: Fleet, number: Mapping[Pool | None, int]) -> int | None:
    lease = state.open_lease
    return None if lease is None else number[fleet.capacity.by_name[lease.node].pool]


def _in_cells(wants: list[_Want], fleet: Fleet, *, now_s: int) -> list[_Want]:
    """Running jobs without a place yet, grouped by node, so that the jobs that must leave empty one cell.

    Nodes where more jobs stay anyway are kept first, then nodes where leaving would lose most.
    """
    on: dict[str, list[_Want]] = {}
    for want in wants:
        if want.waits and (lease := want.state.open_lease) is not None:
            on.setdefault(lease.node, []).append(want)

    def keep_first(node: str) -> tuple[int, float, str]:
        going = sum(want.gpus for want in on[node])
        held = sum(lease.size for lease in fleet.leases_on[node].values())
        lost = sum(lost_gpu_s(want.state, want.state.leases[-1], now_s=now_s) for want in on[node])
        return (going - held, -lost, node)

    return [want for node in sorted(on, key=keep_first) for want in on[node]]


def _swap(wants: list[_Want], room: list[int]) -> None:
    """Swap places in pairs while the two gain together; the first few rounds find nearly all swaps."""
    hopes = _Hopes(wants, len(room))
    settled = 0  # how many in a row found nothing to gain: once it is all of them, stop
    for i, one in [*enumerate(wants)] * ROUNDS:
        changed = _go_elsewhere(one, room)
        if changed:
            hopes.add(one)
        if hopes.may_trade(one, room) and _trade(one, wants[:i], room, hopes):
            changed = True
        settled = 0 if changed else settled + 1
        if settled == len(wants):
            break


class _Hopes:
    """The most that a job of each width that is, or was, in one pool would gain by moving to another.

    Most jobs have no partner to swap with. This shows it without asking every job.
    """

    def __init__(self, wants: list[_Want], pools: int) -> None:
        # Pool -> width -> gain by target pool.
        self._pools: list[dict[int, list[float]]] = [{} for _ in range(pools)]
        for want in wants:
            self.add(want)

    def add(self, want: _Want) -> None:
        """Record its new pool. The value for the pool it left may be too high, never too low."""
        had, worth, widths = want.worth[want.at], want.worth, self._pools[want.at]
        gains = widths.get(want.gpus)
        if gains is None:
            widths[want.gpus] = [each - had for each in worth]
            return
        widths[want.gpus] = [max(gain, each - had) for gain, each in zip(gains, worth, strict=True)]

    def may_trade(self, one: _Want, room: list[int]) -> bool:
        """Whether a job whose place it fits in might gain more by coming here than this one loses."""
        here, gpus, mine = one.at, one.gpus, one.worth
        had, widest = mine[here], gpus + room[here]
        for there, widths in enumerate(self._pools):
            if there == here or not widths:
                continue
            least, loss = gpus - room[there], had - mine[there]
            for width, gains in widths.items():
                if least <= width <= widest and gains[here] > loss:
                    return True
        return False


def _go_elsewhere(one: _Want, room: list[int]) -> bool:
    gpus, worth, least = one.gpus, one.worth, one.worth[one.at] + NEARLY
    for pool, spare in enumerate(room):
        if spare >= gpus and worth[pool] > least:
            room[one.at] += gpus
            room[pool] -= gpus
            one.at = pool
            return True
    return False


def _trade(one: _Want, others: list[_Want], room: list[int], hopes: _Hopes) -> bool:
    """Swap places with each of the others with which it gains."""
    changed = False
    mine, here = one.worth, one.at
    for other in others:
        there = other.at
        if there == here:
            continue
        theirs = other.worth
        if mine[there] + theirs[here] <= mine[here] + theirs[there] + NEARLY:
            continue
        more = one.gpus - other.gpus  # net GPUs from here to there
        if one.rank == other.rank and room[here] + more >= 0 and room[there] - more >= 0:
            room[here] += more
            room[there] -= more
            one.at, other.at = there, here
            hopes.add(one)
            hopes.add(other)
            here = there
            changed = True
    return changed
