"""Which GPUs are free, indexed so that the best place for a gang is found without looking at every node.

Each pool keeps its nodes in buckets by how many whole GPUs are free. Taking or giving back a GPU moves one
node between two buckets; finding a place looks at one bucket per count, never at the fleet.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Node, Pool


@dataclass(slots=True, kw_only=True)
class Slot:
    """A node and what is left of it."""

    index: int  # the order in which nodes joined; breaks ties
    node: Node
    pool: Pool
    free: list[int]  # whole GPUs that are free, lowest first
    offered: int  # good GPUs not held by others
    shared: dict[int, int] = field(default_factory=dict)  # GPU -> thousandths left of it
    cpu_milli: int | None = None
    memory_mib: int | None = None
    is_counted: bool = False  # whether CPU or memory is counted here
    owed: int = 0  # GPUs held by others on top of our leases': GPUs that a lease frees go to them first


class Kind(NamedTuple):
    """What an empty node has: nodes of one kind can hold the same gangs."""

    gpus: int
    domain: int
    cpu_milli: int | None
    memory_mib: int | None

    def holds(self, job: Job) -> int:
        """How many of the gang's workers fit, by GPUs, CPU and host memory; 1 for a job without GPUs."""
        found = 1 if not job.gpus else self.domain if job.within == "nvlink" else self.gpus
        for has, wants in ((self.cpu_milli, job.cpu_milli), (self.memory_mib, job.memory_mib)):
            if has is not None and wants:
                found = min(found, has * max(1, job.gpus) // wants)
        return found


@dataclass(slots=True)
class PoolIndex:
    """The nodes of one pool by free whole GPUs."""

    pool: Pool
    gpus: int = 0  # good GPUs, held or not
    free: int = 0
    largest: int = 0  # GPUs of the largest node
    buckets: list[list[int]] = field(default_factory=list)  # free count -> node indices, ascending
    kinds: dict[Kind, int] = field(default_factory=dict)  # number of nodes, by what they could hold

    def count(self, node: Node, sign: int) -> None:
        """One node more (1) or fewer (-1)."""
        kind = _kind(node)
        self.gpus += sign * node.good_gpus
        self.kinds[kind] = self.kinds.get(kind, 0) + sign
        if not self.kinds[kind]:
            del self.kinds[kind]
        self.largest = max((kind.gpus for kind in self.kinds), default=0)

    def put(self, slot: Slot) -> None:
        count = len(slot.free)
        while len(self.buckets) <= count:
            self.buckets.append([])
        insort(self.buckets[count], slot.index)
        self.free += count

    def drop(self, slot: Slot) -> None:
        count, index = len(slot.free), slot.index
        bucket = self.buckets[count]
        del bucket[bisect_left(bucket, index)]
        self.free -= count


class Capacity:
    """Every node's free GPUs. Only Fleet.apply writes it; decisions work on a Draft of it."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.by_name: dict[str, Slot] = {}
        self.pools: dict[Pool, PoolIndex] = {}
        self.racks: dict[tuple[Pool, str], list[int]] = {}
        self.is_mixed = False  # whether there are GPUs of several types
        # Shape -> the pools that can run it and its rate there; recomputed when a node joins or leaves.
        self.able: dict[int, dict[Pool, float]] = {}
        self._indices: dict[str, int] = {}  # a node that comes back gets its old index

    @property
    def gpus(self) -> int:
        """Good GPUs of all pools, held or not."""
        return sum(pool.gpus for pool in self.pools.values())

    def join(self, node: Node, held: Iterable[int]) -> None:
        self.leave(node.node)
        self.able.clear()
        index = self._indices.setdefault(node.node, len(self._indices))
        taken = set(held)
        free = [i for i in range(node.gpus) if i not in taken and node.offers(i)]
        owed = 0
        if node.chosen_by == "count":
            owed = max(0, len(node.taken) - len(free))
            free = free[: max(0, len(free) - len(node.taken))]
        slot = Slot(
            index=index,
            node=node,
            pool=node.pool,
            free=free,
            offered=node.offered_gpus,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            is_counted=node.cpu_milli is not None or node.memory_mib is not None,
            owed=owed,
        )
        self.slots[index] = self.by_name[node.node] = slot
        pool = self.pools.setdefault(slot.pool, PoolIndex(slot.pool))
        pool.count(node, 1)
        pool.put(slot)
        insort(self.racks.setdefault((slot.pool, node.rack), []), index)
        self.is_mixed = len({pool.gpu for pool in self.pools}) > 1

    def leave(self, name: str) -> None:
        slot = self.by_name.pop(name, None)
        if slot is None:
            return
        self.able.clear()
        del self.slots[slot.index]
        pool = self.pools[slot.pool]
        pool.drop(slot)
        pool.count(slot.node, -1)
        rack = self.racks[slot.pool, slot.node.rack]
        del rack[bisect_left(rack, slot.index)]
        if not pool.kinds:
            del self.pools[slot.pool]
        self.is_mixed = len({pool.gpu for pool in self.pools}) > 1

    def most_of(self, job: Job, pool: Pool) -> int:
        """Workers of the gang that the empty pool could hold as close together as they must be."""
        kinds = self.pools[pool].kinds
        if job.within in ("nvlink", "node") or not job.gpus:
            return max(kind.holds(job) for kind in kinds)
        if job.within != "rack":
            return sum(kind.holds(job) * nodes for kind, nodes in kinds.items())
        return max(
            sum(_kind(self.slots[index].node).holds(job) for index in nodes)
            for (of, _), nodes in self.racks.items()
            if of == pool
        )

    def could_hold(self, job: Job, pool: Pool) -> bool:
        """Whether the gang fits there once all other jobs have left; if not, waiting does not help."""
        return self.most_of(job, pool) >= max(1, job.gpus)

    def check(self, name: str, gpus: tuple[int, ...], job: Job) -> None:
        """Assert that these GPUs are free to take."""
        slot = self.by_name[name]
        if job.gpu_milli == WHOLE_GPU:
            free = slot.free
            for gpu in gpus:
                assert gpu in free, f"GPU {gpu} of {name} already has a tenant"
            return
        for gpu in gpus:
            left = slot.shared.get(gpu, WHOLE_GPU if gpu in slot.free else 0)
            assert left >= job.gpu_milli, f"GPU {gpu} of {name} already has a tenant"

    def take(self, name: str, gpus: tuple[int, ...], job: Job, *, beside: bool = False) -> None:
        """`beside` another job that already holds the GPU."""
        slot, whole = self.by_name[name], () if beside else gpus
        if job.gpu_milli < WHOLE_GPU:
            left = slot.shared.get(gpus[0])
            whole = gpus if left is None else ()
            slot.shared[gpus[0]] = (WHOLE_GPU if left is None else left) - job.gpu_milli
        if whole:
            pool = self.pools[slot.pool]
            pool.drop(slot)
            for gpu in whole:
                slot.free.remove(gpu)
            pool.put(slot)
        if slot.is_counted:
            self._spend(slot, job, len(gpus), sign=-1)

    def give(self, name: str, gpus: tuple[int, ...], job: Job, *, beside: bool = False) -> None:
        """`beside` another job that keeps the GPU."""
        slot, whole = self.by_name.get(name), () if beside else gpus
        if slot is None:
            return
        if job.gpu_milli < WHOLE_GPU:
            left = slot.shared.pop(gpus[0], None)
            if left is None:  # the node left and came back meanwhile
                whole = ()
            elif left + job.gpu_milli < WHOLE_GPU:
                slot.shared[gpus[0]], whole = left + job.gpu_milli, ()
        if whole:
            pool = self.pools[slot.pool]
            pool.drop(slot)
            for gpu in whole:
                # Meanwhile the node may have shrunk, or its GPU may be bad or taken by others.
                if slot.owed:
                    slot.owed -= 1
                elif slot.node.offers(gpu):
                    insort(slot.free, gpu)
            pool.put(slot)
        if slot.is_counted:
            self._spend(slot, job, len(gpus), sign=1)

    def _spend(self, slot: Slot, job: Job, gpus: int, *, sign: int) -> None:
        workers = max(1, job.gpus)
        here = gpus if job.gpus else 1
        if slot.cpu_milli is not None:
            slot.cpu_milli += sign * job.cpu_milli * here // workers
        if slot.memory_mib is not None:
            slot.memory_mib += sign * job.memory_mib * here // workers


def _kind(node: Node) -> Kind:
    return Kind(node.good_gpus, node.largest_domain, node.cpu_milli, node.memory_mib)
