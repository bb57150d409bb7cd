"""Where the winners of a market pool go: on GPUs that are free, or will be once the losers have left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from brimful.fleet.events import Parts
from brimful.fleet.job import Job, at_size
from brimful.fleet.state import Fleet, Lease, Pool
from brimful.market.bid import Bid, Book
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import ONE_NODE, place

NODES_TRIED = 64  # when a gang needs a node cleared


class Winners:
    """The places of a pool's winners once the losers have left; says which cannot be placed.

    Wide gangs choose first. GPUs free now are used now; the others are kept for the job that was promised
    them. A gang that finds enough GPUs but no single node may ask smaller winners to move to the gaps
    elsewhere.
    """

    def __init__(
        self,
        fleet: Fleet,
        pool: Pool,
        leases: Mapping[str, Lease],
        book: Book,
        reserved: Collection[str] = (),
    ) -> None:
        """`reserved`: jobs whose GPUs are paid for ahead; they choose before all winners."""
        self._fleet, self._pool, self._leases, self._reserved = fleet, pool, leases, reserved
        self._leaving = self._leaving_for_owners()
        self._rank = {bid.bid: i for i, bid in enumerate(book.ranked())}
        self.parts: dict[str, Parts] = {}
        self.ready: set[str] = set()  # jobs whose GPUs are all free already
        self.moves: dict[str, str] = {}  # winners that must move, and for which job

    def __call__(self, winners: Sequence[tuple[Bid, int]]) -> list[str]:
        self.parts, self.ready, self.moves = {}, set(), {}
        won = {bid.bid: units for bid, units in winners}
        if leaving := sorted(won.keys() & self._leaving):
            return leaving
        resized = {bid.bid for bid, units in winners if bid.held not in (0, units)}
        now, later = Draft(self._fleet.capacity), Draft(self._fleet.capacity)
        stay = {name for name, lease in self._leases.items() if name in won and lease.phase != "ending"}
        stay -= resized
        for name, lease in self._leases.items():
            if name not in stay:
                later.give(lease.parts, self._fleet.jobs[name].job)
        refused: list[str] = []
        ranked = sorted(won.keys() - stay, key=lambda name: (-won[name], self._rank[name]))
        first = sorted(self._reserved, key=self._owner_order)
        for name in (*first, *ranked):
            job = self._fleet.jobs[name].job
            job = at_size(job, won.get(name, job.gpus))
            parts = None if name in self._leases else place(job, now, self._pool)
            if parts is not None:
                now.take(parts, job)
                self.ready.add(name)
            else:
                parts = place(job, later, self._pool) or self._make_a_node(job, later, stay)
                if parts is None:
                    if name in won:
                        refused.append(name)
                    continue
                now.keep(parts)
            later.keep(parts)
            self.parts[name] = parts
        return refused

    def _owner_order(self, name: str) -> tuple[int, int, str]:
        """Longest wait first: a borrower that left for an owner may also be a job of that owner, and would
        otherwise take the very GPUs it left."""
        state = self._fleet.jobs[name]
        return (state.waiting_since_s, -state.job.gpus, name)

    def _leaving_for_owners(self) -> set[str]:
        """Jobs on notice whose GPUs an owner waits for stay chosen, the first to leave first.

        If another one were chosen at each change of the book, each with its own notice, owners might wait
        much longer than one notice.
        """
        wanted = sum(self._fleet.jobs[name].job.gpus for name in self._reserved)
        wanted -= self._fleet.capacity.pools[self._pool].free if wanted else 0
        warned = [(each.notice_s, name) for name, each in self._leases.items() if each.notice_s is not None]
        found: set[str] = set()
        for _, name in sorted(warned):
            if wanted <= 0:
                break
            wanted -= self._leases[name].size
            found.add(name)
        return found

    def _make_a_node(self, job: Job, later: Draft, stay: set[str]) -> Parts | None:
        """The node cleared by moving the fewest GPUs, if all of those jobs find a place elsewhere.

        None moves so that an elastic gang gets more than its smallest size.
        """
        if job.within not in ONE_NODE or later.free_in(self._pool) < job.gpus:
            return None
        if job.max_gpus and (job.gpus > job.min_gpus or job.job in self._leases):
            return None
        best: tuple[int, Draft, Parts, list[str]] | None = None
        for index in list(later.fullest(self._pool))[:NODES_TRIED]:
            slot = later.capacity.slots[index]
            if slot.node.good_gpus < job.gpus:
                continue
            moved = self._who_moves(slot.node.node, job.gpus - len(later.free_on(index)), stay)
            size = sum(self._leases[name].size for name in moved)
            if not moved or (best is not None and size >= best[0]):
                continue
            trial = later.copy()
            for name in moved:
                trial.give(self._leases[name].parts, self._fleet.jobs[name].job)
            parts = place(job, trial, self._pool)
            if parts is not None and _all_fit(self._fleet, moved, trial, parts, self._pool):
                best = (size, trial, parts, moved)
        if best is None:
            return None
        for name in best[3]:
            later.give(self._leases[name].parts, self._fleet.jobs[name].job)
            self.moves[name] = job.job
        return best[2]

    def _who_moves(self, node: str, need: int, stay: set[str]) -> list[str]:
        """Winners on the node, smallest first, until there is room; empty if there cannot be."""
        here = [
            (lease.size, lease.job, on_it)
            for lease in self._leases.values()
            if lease.job in stay
            and lease.job not in self.moves
            and (on_it := sum(len(gpus) for name, gpus in lease.parts if name == node))
        ]
        moved: list[str] = []
        for _, job, on_it in sorted(here):
            if need <= 0:
                break
            moved.append(job)
            need -= on_it
        return moved if need <= 0 else []


def _all_fit(fleet: Fleet, names: Sequence[str], trial: Draft, parts: Parts, pool: Pool) -> bool:
    trial.keep(parts)
    for name in sorted(names, key=lambda each: -fleet.jobs[each].job.gpus):
        found = place(fleet.jobs[name].job, trial, pool)
        if found is None:
            return False
        trial.keep(found)
    return True
