"""The free GPUs as the decision in progress would leave them: try a change, or discard it.

A draft never writes to the fleet. It remembers the nodes it has touched and reads all others from the fleet's
own buckets, so its cost follows what the decision touches, not the fleet's size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

from brimful.fleet.capacity import Capacity, PoolIndex, Slot
from brimful.fleet.events import Parts
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Pool

NONE_MOVED: Mapping[int, list[int]] = {}
Fits = Callable[[Slot, list[int]], bool]


class Draft:
    def __init__(
        self, capacity: Capacity, *, closed: Collection[str] = (), sold: Collection[Pool] = ()
    ) -> None:
        self.capacity = capacity
        self.closed = closed  # sites where nothing may start
        self.sold = sold  # pools where the market chooses who starts
        self._free: dict[int, list[int]] = {}
        self._moved: dict[Pool, dict[int, list[int]]] = {}  # free count -> touched nodes, ascending
        self._cursor: dict[tuple[Pool, int], int] = {}
        self._taken: dict[Pool, int] = {}
        self._shared: dict[int, dict[int, int]] = {}
        self._spent: dict[int, tuple[int, int]] = {}  # CPU and memory

    def free_in(self, pool: Pool) -> int:
        """Whole GPUs left in the pool."""
        return self.capacity.pools[pool].free - self._taken.get(pool, 0)

    def most_free(self) -> int:
        """Whole GPUs left in the pool that has the most."""
        taken, most = self._taken, 0
        for pool, index in self.capacity.pools.items():
            free = index.free - taken[pool] if pool in taken else index.free
            most = free if free > most else most
        return most

    def free_on(self, index: int) -> list[int]:
        found = self._free.get(index)
        return self.capacity.slots[index].free if found is None else found

    def shared_on(self, index: int) -> dict[int, int]:
        found = self._shared.get(index)
        return self.capacity.slots[index].shared if found is None else found

    def room_on(self, slot: Slot, job: Job, gpus: int) -> bool:
        """Whether CPU and host memory suffice for `gpus` of the job's GPUs."""
        if slot.cpu_milli is None and slot.memory_mib is None:
            return True
        cpu, memory = self._spent.get(slot.index, (0, 0))
        workers, here = max(1, job.gpus), gpus if job.gpus else 1
        if slot.cpu_milli is not None and job.cpu_milli * here > (slot.cpu_milli - cpu) * workers:
            return False
        return slot.memory_mib is None or job.memory_mib * here <= (slot.memory_mib - memory) * workers

    def smallest(self, pool: Pool, least: int, fits: Fits | None = None) -> int | None:
        """The node with the fewest free GPUs, but at least `least`: large holes stay for large gangs."""
        index = self.capacity.pools[pool]
        if index.free - self._taken.get(pool, 0) < least:
            return None
        moved = self._moved.get(pool, NONE_MOVED)
        buckets = index.buckets
        if fits is None and not moved:  # nothing touched yet: most decisions start one job
            for bucket in islice(buckets, least, None):
                if bucket:
                    return bucket[0]
            return None
        for count in range(least, len(buckets)):
            if buckets[count] or count in moved:
                found = next(self._at(index, count, fits), None)
                if found is not None:
                    return found
        return None

    def fullest(self, pool: Pool, fits: Fits | None = None) -> Iterator[int]:
        """Nodes with any free GPU, most free first. The draft must not change during iteration."""
        index = self.capacity.pools[pool]
        moved = self._moved.get(pool, NONE_MOVED)
        for count in range(len(index.buckets) - 1, 0, -1):
            if index.buckets[count] or count in moved:
                yield from self._at(index, count, fits)

    def _at(self, index: PoolIndex, count: int, fits: Fits | None) -> Iterator[int]:
        """Nodes with exactly `count` free, in the order they joined, untouched and touched merged."""
        bucket, key = index.buckets[count], (index.pool, count)
        touched, at = self._free, self._cursor.get(key, 0)
        while at < len(bucket) and bucket[at] in touched:
            at += 1
        if at:
            self._cursor[key] = at  # a touched node stays touched
        moved = self._moved.get(index.pool, {}).get(count, ())
        j = 0
        while at < len(bucket) or j < len(moved):
            if at < len(bucket) and bucket[at] in touched:
                at += 1
                continue
            if j >= len(moved) or (at < len(bucket) and bucket[at] < moved[j]):
                node, at = bucket[at], at + 1
            else:
                node, j = moved[j], j + 1
            if fits is None or fits(self.capacity.slots[node], self.free_on(node)):
                yield node

    def take(self, parts: Parts, job: Job) -> None:
        for name, gpus in parts:
            slot = self.capacity.by_name[name]
            if job.gpu_milli < WHOLE_GPU:
                self._take_share(slot, gpus[0], job.gpu_milli)
            else:
                free = self.free_on(slot.index)
                first = tuple(free[: len(gpus)]) == gpus  # the usual case
                self._set_free(slot, free[len(gpus) :] if first else [i for i in free if i not in gpus])
            if slot.cpu_milli is not None or slot.memory_mib is not None:
                self._spend(slot, job, len(gpus), sign=1)

    def give(self, parts: Parts, job: Job) -> None:
        """The state once this gang has left."""
        for name, gpus in parts:
            slot = self.capacity.by_name.get(name)
            if slot is None:
                continue
            good = (i for i in gpus if slot.node.offers(i))
            self._set_free(slot, sorted({*self.free_on(slot.index), *good}))
            self._spend(slot, job, len(gpus), sign=-1)

    def keep(self, parts: Parts) -> None:
        """Reserve these GPUs, as far as they are free."""
        for name, gpus in parts:
            slot = self.capacity.by_name[name]
            self._set_free(slot, [i for i in self.free_on(slot.index) if i not in gpus])

    def copy(self) -> Draft:
        other = Draft(self.capacity, closed=self.closed, sold=self.sold)
        other._free = {index: list(free) for index, free in self._free.items()}
        other._moved = {
            pool: {count: list(nodes) for count, nodes in rows.items()} for pool, rows in self._moved.items()
        }
        other._cursor, other._taken = dict(self._cursor), dict(self._taken)
        other._shared = {index: dict(shared) for index, shared in self._shared.items()}
        other._spent = dict(self._spent)
        return other

    def hold(self, index: int) -> None:
        """Place nothing more on this node in this decision: it is kept for a job."""
        self._set_free(self.capacity.slots[index], [])
        self._shared[index] = {}

    def _spend(self, slot: Slot, job: Job, gpus: int, *, sign: int) -> None:
        cpu, memory = self._spent.get(slot.index, (0, 0))
        workers, here = max(1, job.gpus), gpus if job.gpus else 1
        cpu += sign * (job.cpu_milli * here // workers)
        self._spent[slot.index] = (cpu, memory + sign * (job.memory_mib * here // workers))

    def _take_share(self, slot: Slot, gpu: int, milli: int) -> None:
        shared = dict(self.shared_on(slot.index))
        if gpu not in shared:
            self._set_free(slot, [i for i in self.free_on(slot.index) if i != gpu])
        shared[gpu] = shared.get(gpu, WHOLE_GPU) - milli
        self._shared[slot.index] = shared

    def _set_free(self, slot: Slot, free: list[int]) -> None:
        index, pool = slot.index, slot.pool
        before, moved = self._free.get(index), self._moved.get(pool)
        if moved is None:
            moved = self._moved[pool] = {}
        if before is not None:
            row = moved[len(before)]
            del row[bisect_left(row, index)]
        insort(moved.setdefault(len(free), []), index)
        was = len(slot.free if before is None else before)
        self._taken[pool] = self._taken.get(pool, 0) + was - len(free)
        self._free[index] = free
