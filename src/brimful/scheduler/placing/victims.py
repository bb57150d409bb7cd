"""Which jobs to stop so that a blocked gang fits: whole gangs, in one cell, with the least work lost.

GPUs freed here and there do not help a gang, and taking one worker out of each of ten jobs stops ten jobs. So
a cell is chosen first (a node, or the nodes of a rack or pool); then every gang in it that must go leaves
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.node import Pool
from brimful.fleet.ranked import Entry
from brimful.scheduler.ordering import aged_left_s, latest_start, longest_first, running_in_order, weight
from brimful.scheduler.placing.place import ONE_NODE
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.quotas import queue_of

if TYPE_CHECKING:
    from brimful.scheduler.cycle import Cycle

Able = tuple[int, float, str, int, Lease]  # class, loss per GPU, name, GPUs here: jobs that may stop
Bar = tuple[int, float, float]  # class of the job that needs room; the time and work a victim must exceed
# Class, time and work of its first job, width; running jobs.
Group = tuple[int, float, float, int, list[Entry]]
CHOICES = 4  # per group of running jobs, the first to preempt
BORROWERS = 16  # per queue over its quota, how many jobs are considered
ENOUGH = 6  # stop after this many suitable cells and take the cheapest: the likeliest nodes come first
NEVER = (-1, 0.0, 0.0, 0.0)  # the facts about a lease that must not be stopped
REVIEW_S = 10  # how long a review lasts: a live loop may skip a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Nodes that will hold the gang once these leases have ended."""

    nodes: tuple[int, ...] = ()
    victims: tuple[Lease, ...] = ()
    lost_gpu_s: float = 0.0


def lost_gpu_s(state: JobState, lease: Lease, *, now_s: int) -> float:
    """GPU-seconds thrown away if it stops now: work since its last checkpoint, plus the restart.

    The age of the checkpoint follows from the start and the job's interval; a job that never saves loses
    everything, one that saves on request loses only the restart.
    """
    job = state.job
    if job.checkpoint_interval_s == 0:
        return float(job.checkpoint_cost_s * lease.size)
    since_s = max(0, lease.billed_s(now_s) - lease.setup_s)
    if job.checkpoint_interval_s is not None:
        since_s %= job.checkpoint_interval_s
    return float((since_s + job.checkpoint_cost_s) * lease.size)


class Search:
    """The victims one decision may still choose; no lease is chosen twice."""

    def __init__(self, cycle: Cycle) -> None:
        fleet, rules, now_s = cycle.fleet, cycle.rules, cycle.now_s
        self.fleet, self.draft, self.rules, self.now_s = fleet, cycle.draft, rules, now_s
        self.spoken_for, self.in_turn, self.kept = cycle.spoken_for, cycle.in_turn, cycle.kept
        self.borrowed = dict(cycle.borrowed)
        self.held = {index for cell in cycle.cells.values() for index in cell.nodes}
        # On a mixed fleet, reviews move jobs to better types instead (assign.py).
        self.by_class_only = rules.preempt != "index" or is_mixed(fleet, rules)
        self._review = now_s % rules.rerank_s < REVIEW_S
        self._coming = self._ending() if fleet.unsettled else {}
        self._facts: dict[str, tuple[int, float, float, float]] = {}
        self._stoppable_s: dict[int, int] = {}  # by class: when the next lease may be stopped
        self._groups: list[Group] | None = None  # see `_likely`
        self._running = running_in_order(fleet, rules, now_s=now_s) if rules.preempt != "none" else {}
        # The lowest class with jobs that may stop.
        self._lowest = max([group[0] for group in self._running], default=-1)
        self._owns = False  # whether the job that needs room is within its queue's quota
        self.tries = rules.tries

    def _ending(self) -> dict[str, tuple[int, Pool]]:
        """Leases on their way out: how many GPUs, of which pool."""
        slots = self.draft.capacity.by_name
        return {
            lease.lease: (lease.size, slots[lease.node].pool)
            for lease in self.fleet.unsettled.values()
            if lease.phase == "ending" and lease.node in slots and self._gives_a_gpu(lease)
            if slots[lease.node].index not in self.held
        }

    def _tenants(self, lease: Lease) -> list[Lease]:
        """All leases on its GPU, itself included: the GPU is free only once all have left."""
        if lease.gpu_milli == WHOLE_GPU:
            return [lease]
        return [each for each in self.fleet.leases_on[lease.node].values() if each.gpus == lease.gpus]

    def _gives_a_gpu(self, lease: Lease) -> bool:
        """Whether its end frees whole GPUs; of leases that leave one GPU together, the first counts."""
        tenants = self._tenants(lease)
        return tenants[0] is lease and all(each.phase == "ending" for each in tenants[1:])

    def cell_for(self, state: JobState, pools: Sequence[Pool], *, owns: bool = False) -> Cell | None:
        """The cheapest cell that would hold the gang, or None. `owns`: it reclaims what its queue has lent.

        A gang searches on arrival and then at every review, not at every event, unless a lower class runs: a
        search looks at many running jobs, and what was missing a second ago is still missing.
        """
        if not self.may_look(state, owns=owns):
            return None
        self._owns = owns
        bar = self._bar(state)
        groups = self._likely(bar)
        borrowers = self._borrowers() if owns else []
        if not groups and not borrowers and not self._coming:
            return None
        self.tries -= 1
        if state.job.gpus == 1:
            # For one GPU, consider only single-GPU jobs.
            single = self._one_coming(pools) or self._one_gpu(
                bar, _firsts([each for each in groups if each[3] == 1]) + borrowers, pools
            )
            if single is not None or not (self._review or owns):
                return single
        likely = _firsts(groups) + borrowers
        nodes = self._candidates(state, likely, pools)
        if any(self.draft.capacity.pools[pool].largest >= state.job.gpus for pool in pools):
            found = (cell for i in nodes if (cell := self._one_node(state, bar, i)) is not None)
            cells = list(islice(found, ENOUGH))
            if cells:
                return min(cells, key=self._cheapest)
        if state.job.within in ONE_NODE:
            return None
        return self._several(state, bar, nodes, pools)

    def may_look(self, state: JobState, *, owns: bool = False) -> bool:
        if self.tries <= 0:
            return False
        if owns or self.rules.preempt == "none":
            return owns
        if self._review or self.by_class_only or state.job.gpus == 1:
            return True
        return self.now_s - state.waiting_since_s <= 1 or self.may_stop_lower(state)

    def may_stop_lower(self, state: JobState) -> bool:
        """Whether a lower class runs and may be stopped for it, now or later."""
        return self._lowest > PRIORITIES[state.job.priority]

    def stoppable_s(self, state: JobState, *, owns: bool) -> int | None:
        """When the next lease that was too young to stop for it will have run its minimum time."""
        above = PRIORITIES[state.job.priority] - owns  # lenders take back from their own class too
        return min((at_s for rank, at_s in self._stoppable_s.items() if rank > above), default=None)

    def _likely(self, bar: Bar) -> list[Group]:
        """Groups whose first job may stop; if the first may not, none of its group may.

        Jobs with a deadline are checked one by one.
        """
        rules, now_s, further = self.rules, self.now_s, not self.by_class_only
        if self._groups is None:
            self._groups = []
            for (rank, gpus, _, due, in_turn), entries in self._running.items():
                if not further or (due and rules.deadlines):
                    left = inf
                elif in_turn:
                    left = -inf if self._is_safe(entries[0][2].leases[-1]) else inf
                else:
                    left = aged_left_s(entries[0][2], rules, now_s=now_s)
                self._groups.append((rank, left, left * weight(gpus, rules.width), gpus, entries))
        least, left_s, work_s = bar
        return [
            each
            for each in self._groups
            if each[0] > least or (further and each[0] == least and each[1] > left_s and each[2] > work_s)
        ]

    def _borrowers(self) -> list[JobState]:
        """From each queue over its quota, the jobs that have run least."""
        order = self.fleet.running.order("by queue", latest_start(self.rules), lambda s: queue_of(s.job))
        groups = [order.groups.get(queue, []) for queue, gpus in self.borrowed.items() if gpus > 0]
        return [entry[2] for entries in groups for entry in entries[:BORROWERS]]

    def _one_coming(self, pools: Sequence[Pool]) -> Cell | None:
        """A GPU that is already being given up: no other job needs to stop for it."""
        for name, (gpus, pool) in self._coming.items():
            if gpus and pool in pools:
                self._coming[name] = (gpus - 1, pool)
                return Cell()
        return None

    def _one_gpu(self, bar: Bar, likely: list[JobState], pools: Sequence[Pool]) -> Cell | None:
        """For a single GPU any single GPU is a cell: take that of the job with the least to lose."""
        best: tuple[int, float, str, list[Lease]] | None = None  # the lowest class, then the least lost
        for state in likely:
            if state.job.gpus != 1:
                continue
            lease = state.open_lease
            if lease is None or not self._may_stop(lease, bar):
                continue
            leave = self._tenants(lease)
            if len(leave) > 1 and not all(self._may_stop(each, bar) for each in leave):
                continue
            slot = self.draft.capacity.by_name.get(lease.node)
            if slot is None or slot.pool not in pools:
                continue
            highest = min([self._facts[each.lease][0] for each in leave])
            key = (-highest, sum([self._lost(each) for each in leave]), lease.lease)
            if best is None or key < best[:3]:
                best = (*key, leave)
        return None if best is None else Cell(victims=tuple(best[3]), lost_gpu_s=best[1])

    def _cheapest(self, cell: Cell) -> tuple[int, float, int, tuple[int, ...]]:
        """Spare higher classes if lower ones suffice; then lose the least work."""
        highest = min((self._facts[lease.lease][0] for lease in cell.victims), default=len(PRIORITIES))
        return (-highest, cell.lost_gpu_s, sum(lease.size for lease in cell.victims), cell.nodes)

    def commit(self, cell: Cell) -> None:
        """Claim the cell: hold its nodes and count what its victims' queues give back."""
        for lease in cell.victims if self.borrowed else ():
            queue = self._queue(lease)
            self.borrowed[queue] = self.borrowed.get(queue, 0) - lease.size
        for node in cell.nodes:
            self.held.add(node)
            self.draft.hold(node)

    def _bar(self, state: JobState) -> Bar:
        """Victims must be of a lower class, or `margin` times further from their end than this job."""
        rules, job = self.rules, state.job
        if self.by_class_only or longest_first(state, rules):
            # The longest go first: no job leaves for one that is nearer to its end.
            return PRIORITIES[job.priority], inf, inf
        if job.job in self.in_turn:
            return PRIORITIES[job.priority], 0.0, 0.0
        left_s = aged_left_s(state, rules, now_s=self.now_s)
        work_s = left_s * weight(job.gpus, rules.width)
        return PRIORITIES[job.priority], left_s * rules.margin, work_s * rules.margin

    def _is_safe(self, lease: Lease) -> bool:
        """Whether no job of its class may preempt it: it is its turn."""
        return self.now_s < lease.turn_until_s

    def _may_stop(self, lease: Lease, bar: Bar) -> bool:
        """Of a lower class, or of the same and so much further from its end that the loss is worth it.

        Further in time and in GPU-time: by GPU-time alone, any single GPU could preempt a wide gang that has
        only just begun; by time alone, a wide gang could preempt many single GPUs that are about to end.
        """
        name = lease.lease
        facts = self._facts.get(name)
        if facts is None:
            facts = self._facts[name] = self._look_at(lease)
        rank, left, work, lost = facts
        if rank < bar[0] or name in self.spoken_for:
            return False
        if self._owns and self.borrowed.get(self._queue(lease), 0) > 0:
            return True
        if self.rules.preempt == "none":
            return False
        if rank > bar[0]:
            return True
        if self.by_class_only or left <= bar[1]:
            return False
        return work > (bar[2] if bar[2] > 0.0 else 0.0) + lost

    def _look_at(self, lease: Lease) -> tuple[int, float, float, float]:
        """(class, expected time, expected work, loss from a stop); class -1: it must not be stopped."""
        if lease.phase != "running" or lease.job in self.kept or lease.node in self.fleet.cloud.machines:
            # In the slot of its promise, or on a node bought for it.
            return NEVER
        rules, now_s = self.rules, self.now_s
        assert lease.started_s is not None
        state = self.fleet.jobs[lease.job]
        job = state.job
        ran_s, least_s = now_s - lease.started_s - lease.setup_s, max(rules.min_run_s, job.min_run_s)
        if ran_s < least_s:
            rank, from_s = PRIORITIES[job.priority], now_s + least_s - ran_s
            self._stoppable_s[rank] = min(from_s, self._stoppable_s.get(rank, from_s))
            return NEVER
        if self._is_safe(lease) or loses_all_again(state, ran_s):
            left = -inf
        else:
            left = aged_left_s(state, rules, now_s=now_s)
        work = left * weight(job.gpus, rules.width)
        return PRIORITIES[job.priority], left, work, lost_gpu_s(state, lease, now_s=now_s)

    def _queue(self, lease: Lease) -> str:
        return queue_of(self.fleet.jobs[lease.job].job)

    def _gives_back(self, lease: Lease, bar: Bar, given: dict[str, int]) -> bool:
        """Whether it may stop besides those already chosen: a queue gives back only what it borrowed."""
        queue = self._queue(lease)
        given[queue] = given.get(queue, 0) + lease.size
        if given[queue] - lease.size < self.borrowed.get(queue, 0):
            return True
        self._owns = False
        allowed = self._may_stop(lease, bar)
        self._owns = True
        return allowed

    def _lost(self, lease: Lease) -> float:
        return self._facts[lease.lease][3]

    def _candidates(self, state: JobState, likely: list[JobState], pools: Sequence[Pool]) -> list[int]:
        """Nodes worth looking at: where the likeliest victims run, and those with the most free GPUs."""
        slots = self.draft.capacity.by_name
        found: dict[int, None] = {}
        leases = [self.fleet.open_leases[name] for name in self._coming]
        leases += [lease for each in likely if (lease := each.open_lease) is not None]
        for lease in leases:
            for name, _ in lease.parts:
                slot = slots.get(name)
                if slot is not None and slot.pool in pools and slot.index not in self.held:
                    found[slot.index] = None
        for pool in pools:
            limit = 4 + 4 * (state.job.gpus // max(1, self.draft.capacity.pools[pool].largest))
            for index in islice(self.draft.fullest(pool), limit):
                if index not in self.held:
                    found[index] = None
        return list(found)

    def _one_node(self, state: JobState, bar: Bar, index: int) -> Cell | None:
        slot = self.draft.capacity.slots[index]
        name = slot.node.node
        need = state.job.gpus - len(self.draft.free_on(index))
        leases = self.fleet.leases_on.get(name, {}).values()
        if self._coming:
            # GPUs that are already being given up need no further victim.
            need -= sum(_on(lease, name) for lease in leases if lease.phase == "ending")
        return self._free_up(leases, need, bar, index)

    def _free_up(self, leases: Iterable[Lease], need: int, bar: Bar, index: int) -> Cell | None:
        """The cheapest whole gangs of this node that free `need` GPUs."""
        if need <= 0:
            return Cell(nodes=(index,))
        slot = self.draft.capacity.slots[index]
        name = slot.node.node
        able: list[Able] = []
        if slot.shared:
            spare = sum([_on(lease, name) for lease in leases]) - need
        else:
            spare = slot.offered - len(slot.free) - need  # the same, without asking every lease
        for lease in leases:
            if spare < 0:  # too much of it stays, whatever the others are
                return None
            gpus = _on(lease, name) if lease.rest else lease.size
            if not gpus:
                continue  # a job without GPUs is not in the way
            if self._may_stop(lease, bar) and len(self._tenants(lease)) == 1:
                rank, _, _, lost = self._facts[lease.lease]
                able.append((-rank, lost / gpus, lease.lease, gpus, lease))
            else:
                spare -= gpus
        chosen = self._choose(able, need, bar) if spare >= 0 else None
        if chosen is None:
            return None
        lost = sum([self._lost(lease) for lease in chosen])
        return Cell(nodes=(index,), victims=tuple(chosen), lost_gpu_s=lost)

    def _choose(self, able: list[Able], need: int, bar: Bar) -> list[Lease] | None:
        """Of the leases that may stop, no more than needed: the lowest class first, then the least lost."""
        able.sort()  # names differ, so leases are never compared
        chosen: list[tuple[Lease, int]] = []
        given: dict[str, int] = {}
        for _, _, _, gpus, lease in able:
            if need > 0 and (not self._owns or self._gives_back(lease, bar, given)):
                chosen.append((lease, gpus))
                need -= gpus
        if need > 0:
            return None
        for each in list(chosen):  # a small one chosen early may be unnecessary after a large one
            if need + each[1] <= 0:
                chosen.remove(each)
                need += each[1]
        return [lease for lease, _ in chosen]

    def _several(self, state: JobState, bar: Bar, nodes: Sequence[int], pools: Sequence[Pool]) -> Cell | None:
        """Nodes of one rack or pool, the cheapest to empty first, until the gang fits."""
        groups: dict[tuple[Pool, str], list[int]] = {}
        for index in nodes:
            slot = self.draft.capacity.slots[index]
            rack = slot.node.rack if state.job.within == "rack" else ""
            groups.setdefault((slot.pool, rack), []).append(index)
        found = [
            cell
            for (pool, _), group in groups.items()
            if pool in pools and (cell := self._gather(state, bar, group)) is not None
        ]
        return min(found, key=self._cheapest, default=None)

    def _gather(self, state: JobState, bar: Bar, group: Sequence[int]) -> Cell | None:
        emptied = []
        given: dict[str, int] = {}
        for index in group:
            slot = self.draft.capacity.slots[index]
            leases = self.fleet.leases_on.get(slot.node.node, {}).values()
            coming = sum(_on(x, slot.node.node) for x in leases if x.phase == "ending")
            able = [x for x in leases if self._may_stop(x, bar) and len(self._tenants(x)) == 1]
            if self._owns:
                able = [x for x in able if self._gives_back(x, bar, given)]
            gpus = len(self.draft.free_on(index)) + coming + sum(_on(x, slot.node.node) for x in able)
            if gpus:
                lost = sum(self._lost(x) for x in able)
                emptied.append((lost / gpus, index, gpus, able))
        emptied.sort(key=lambda each: each[:2])
        chosen: dict[str, Lease] = {}
        taken: list[int] = []
        have = 0
        for _, index, gpus, able in emptied:
            taken.append(index)
            have += gpus
            chosen.update((x.lease, x) for x in able)
            if have >= state.job.gpus:
                lost = sum(self._lost(x) for x in chosen.values())
                return Cell(nodes=tuple(taken), victims=tuple(chosen.values()), lost_gpu_s=lost)
        return None


def _firsts(groups: list[Group]) -> list[JobState]:
    """The first jobs to preempt from each group."""
    return [entry[2] for each in groups for entry in each[4][:CHOICES]]


def loses_all_again(state: JobState, ran_s: float) -> bool:
    """Whether a stop would lose this whole run, which is not yet longer than all runs before it.

    A job that never saves, or has not yet saved, starts over each time. Each try at least doubles its run, so
    that one of the next is long enough, however many others of its class come and go.
    """
    every_s = state.job.checkpoint_interval_s
    return every_s != 0 and ran_s < state.run_s and (every_s is None or ran_s < every_s)


def _on(lease: Lease, node: str) -> int:
    """GPUs the lease holds on this node."""
    if not lease.rest:
        return len(lease.gpus) if lease.node == node else 0
    return sum(len(gpus) for name, gpus in lease.parts if name == node)
