"""The sizes an elastic gang may have: which are worth their GPUs, and which it bids for in a market pool."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from brimful.fleet.job import Job, at_size, sizes_of
from brimful.fleet.node import Pool
from brimful.fleet.state import JobState
from brimful.scheduler.limits import Limits
from brimful.scheduler.placing.assign import may_move, movable_s
from brimful.scheduler.placing.widths import LEAST_GAIN, Choice
from brimful.scheduler.plan import earliest
from brimful.scheduler.quotas import over_quota, queue_of

if TYPE_CHECKING:
    from brimful.scheduler.cycle import Cycle

# The least that one more GPU must add, as a share of what a GPU adds at the minimum size: speed that costs
# more is not worth it.
LEAST_SHARE = 0.2


def worthwhile(job: Job, gpu: str) -> list[int]:
    """Sizes at which every GPU adds enough work."""
    least, *larger = sizes_of(job)
    kept = [least]
    for gpus in larger:
        if _adds(job, gpu, kept[-1], gpus) >= LEAST_SHARE * _adds(job, gpu, 0, least):
            kept.append(gpus)
    return kept


def _adds(job: Job, gpu: str, fewer: int, gpus: int) -> float:
    """Work per second that each GPU adds between one size and a larger one."""
    before = at_size(job, fewer).rate(gpu) if fewer else 0.0
    return (at_size(job, gpus).rate(gpu) - before) / (gpus - fewer)


def choice_at(cycle: Cycle, state: JobState, pool: Pool, gpus: int) -> Choice:
    """1 / (restart + work left / rate); without a prediction, work left is taken to equal work done."""
    job, lease, now_s = at_size(state.job, gpus), state.open_lease, cycle.now_s
    left_s = state.remaining_s(now_s) if cycle.rules.known else None
    done_s = state.kept_work_s
    stays = False
    setup_s = float(job.checkpoint_cost_s if state.leases and state.first_start_s is not None else 0)
    lost_s = 0.0
    if lease is not None:
        ran_s = max(0, lease.billed_s(now_s) - lease.setup_s)
        done_s += ran_s * lease.speed
        node = cycle.fleet.nodes[lease.node]
        stays = (node.pool, lease.size) == (pool, gpus)
        if stays:
            setup_s = float(max(0, lease.setup_s - lease.billed_s(now_s)))
        elif job.checkpoint_interval_s != 0 and lease.notice_s is None:  # on notice, it saves
            every_s = job.checkpoint_interval_s
            lost_s = (ran_s if every_s is None else ran_s % every_s) * lease.speed
    if left_s is None:
        left_s = max(done_s, cycle.rules.fresh_s)
    rate = lease.speed if stays and lease is not None else job.rate(pool.gpu)
    worth = 1.0 / max(1.0, setup_s + (left_s + lost_s) / rate) if rate > 0 else 0.0
    return Choice(pool, gpus, worth, restarts=lease is not None and not stays)


class Bidders:
    """What the jobs that bid in market pools could win together, within the limits and quotas of queues.

    A bidder may win, so it counts against those after it. An elastic gang bids for sizes above its minimum
    with what all bidders would leave at their minimum.
    """

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self.limits = None if cycle.limits is None else Limits(cycle.fleet, cycle.rules)
        self._held = dict(cycle.held)
        self._more: dict[str, tuple[int, set[str]]] = {}  # job -> GPUs above its base, and of which types

    def take(self, job: Job, types: Collection[str]) -> None:
        if self.limits is not None:
            self.limits.take(job, types)
        if self._cycle.rules.quotas:
            self._held[queue_of(job)] = self._held.get(queue_of(job), 0) + job.gpus

    def sizes(self, state: JobState, pool: Pool) -> list[int]:
        """The sizes an elastic gang bids for in this pool; empty for any other job.

        Fewer GPUs than it holds are always better than none. More must be worth the restart, once it has run
        its minimum time.
        """
        job, lease = state.job, state.open_lease
        if not job.max_gpus:
            return []
        found = worthwhile(job, pool.gpu)
        base = job.min_gpus if lease is None else lease.size
        larger = [n for n in found if n > base]
        if lease is not None and lease.phase != "ending":
            larger = self._worth_a_restart(state, pool, larger)
        before, types = self._more.pop(job.job, (0, set()))
        self.take(at_size(job, -before), types)
        allowed = [n for n in larger if self._allows(job, pool, n, n - base)]
        more = max([before, *(n - base for n in allowed)])
        self.take(at_size(job, more), types := types | {pool.gpu})
        self._more[job.job] = (more, types)
        return sorted({base, *(n for n in found if n < base), *allowed})

    def _worth_a_restart(self, state: JobState, pool: Pool, sizes: list[int]) -> list[int]:
        cycle, lease = self._cycle, state.leases[-1]
        if not sizes or lease.phase != "running":
            return []
        if lease.notice_s is None and not may_move(state, cycle.rules, now_s=cycle.now_s):
            if (ready_s := movable_s(state, cycle.rules)) > cycle.now_s:
                cycle.resize_ready_s = earliest(ready_s, cycle.resize_ready_s)
            return []
        least = (1 + LEAST_GAIN) * choice_at(cycle, state, pool, lease.size).worth
        return [n for n in sizes if choice_at(cycle, state, pool, n).worth > least]

    def _allows(self, job: Job, pool: Pool, gpus: int, more: int) -> bool:
        cycle, extra = self._cycle, at_size(job, more)
        if not cycle.fleet.capacity.could_hold(at_size(job, gpus), pool):
            return False
        if self.limits is not None and (
            self.limits.over_user(extra) is not None or self.limits.over_type(extra, (pool.gpu,)) is not None
        ):
            return False
        rules, gpus_in_fleet = cycle.rules, cycle.fleet.capacity.gpus
        return (
            not rules.quotas or over_quota(extra, rules, self._held, gpus_in_fleet, cycle.waited_for) is None
        )
