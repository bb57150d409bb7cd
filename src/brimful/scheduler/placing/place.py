"""Where a gang goes: which GPUs of which nodes."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.fleet.capacity import Slot
from brimful.fleet.events import Parts
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Pool
from brimful.scheduler.draft import Draft, Fits

ONE_NODE = ("nvlink", "node")


def place(job: Job, draft: Draft, pool: Pool) -> Parts | None:
    """The closest cell of the pool that holds the whole gang and leaves the least over, or None.

    One node if it fits there; then whole nodes and a rest, in one rack if required; only then scattered.
    """
    if job.gpu_milli < WHOLE_GPU:
        return _share(job, draft, pool)
    if not job.gpus:
        return _no_gpu(job, draft, pool)
    found = draft.smallest(pool, job.gpus, _fits(job, draft))
    if found is not None:
        slot = draft.capacity.slots[found]
        return ((slot.node.node, close_together(slot, draft.free_on(found), job.gpus)),)
    if job.within in ONE_NODE or draft.free_in(pool) < job.gpus:
        return None
    if job.within == "rack":
        return _in_one_rack(job, draft, pool)
    return _gather(job, draft, list(_enough(job, draft, pool)))


def place_in(job: Job, draft: Draft, nodes: Sequence[int]) -> Parts | None:
    """On these nodes of one rack and no others: the first that holds all of it, or as few as do."""
    for index in nodes:
        slot, free = draft.capacity.slots[index], draft.free_on(index)
        if fits_on(job, draft, slot, free):
            return ((slot.node.node, close_together(slot, free, job.gpus)),)
    if job.within in ONE_NODE:
        return None
    return _gather(job, draft, sorted(nodes, key=lambda i: (-len(draft.free_on(i)), i)))


def leftover(parts: Parts, draft: Draft) -> int:
    """Free GPUs left on the gang's nodes: the fewer, the tighter the fit."""
    by_name = draft.capacity.by_name
    return sum(len(draft.free_on(by_name[node].index)) - len(gpus) for node, gpus in parts)


def close_together(slot: Slot, free: Sequence[int], gpus: int) -> tuple[int, ...]:
    """The node's GPUs to take: from the tightest NVLink domain that has enough, else the first ones."""
    if not slot.node.nvlink_gpus:
        return tuple(free[:gpus])
    for domain in _domains(slot, free):
        if len(domain) >= gpus:
            return tuple(domain[:gpus])
    return tuple(free[:gpus])


def _domains(slot: Slot, free: Sequence[int]) -> list[list[int]]:
    """Free GPUs by NVLink domain, fewest first."""
    size = slot.node.nvlink_gpus
    if not size:
        return [list(free)]
    groups: dict[int, list[int]] = {}
    for gpu in free:
        groups.setdefault(gpu // size, []).append(gpu)
    return sorted(groups.values(), key=lambda group: (len(group), group))


def _fits(job: Job, draft: Draft) -> Fits | None:
    """The check a node must pass besides having GPUs; None if there is none, which is the fast path."""
    if job.within != "nvlink" and not (job.cpu_milli or job.memory_mib):
        return None
    return lambda slot, free: fits_on(job, draft, slot, free)


def fits_on(job: Job, draft: Draft, slot: Slot, free: Sequence[int]) -> bool:
    """Whether these GPUs of one node hold the gang as close together as it must be, with CPU and memory."""
    most = len(free) if job.within != "nvlink" else max(map(len, _domains(slot, free)), default=0)
    return most >= job.gpus and draft.room_on(slot, job, job.gpus)


def _share(job: Job, draft: Draft, pool: Pool) -> Parts | None:
    """A share goes to the fullest GPU that still holds it; a whole GPU is opened only if none does."""
    best: tuple[int, int, int] | None = None
    for slot in draft.capacity.slots.values():
        if slot.pool != pool:
            continue
        for gpu, left in draft.shared_on(slot.index).items():
            if left >= job.gpu_milli and draft.room_on(slot, job, 1):
                key = (left, slot.index, gpu)
                best = key if best is None or key < best else best
    if best is not None:
        return ((draft.capacity.slots[best[1]].node.node, (best[2],)),)
    found = draft.smallest(pool, 1, lambda slot, _free: draft.room_on(slot, job, 1))
    if found is None:
        return None
    return ((draft.capacity.slots[found].node.node, (draft.free_on(found)[0],)),)


def _no_gpu(job: Job, draft: Draft, pool: Pool) -> Parts | None:
    """A job without GPUs goes where its CPU fits and the fewest GPUs are free."""
    fitting = [
        (len(draft.free_on(slot.index)), slot.index)
        for slot in draft.capacity.slots.values()
        if slot.pool == pool and draft.room_on(slot, job, 0)
    ]
    return ((draft.capacity.slots[min(fitting)[1]].node.node, ()),) if fitting else None


def _enough(job: Job, draft: Draft, pool: Pool) -> list[int]:
    """Nodes with the most free GPUs first, no more of them than the gang can need."""
    found: list[int] = []
    gathered = 0
    for index in draft.fullest(pool):
        if draft.room_on(draft.capacity.slots[index], job, 1):
            found.append(index)
            gathered += len(draft.free_on(index))
            if gathered >= job.gpus:
                break
    return found


def _gather(job: Job, draft: Draft, nodes: Sequence[int]) -> Parts | None:
    """Whole free nodes first; the rest on the tightest node that holds it."""
    parts: list[tuple[str, tuple[int, ...]]] = []
    missing = job.gpus
    for index in nodes:
        slot, free = draft.capacity.slots[index], draft.free_on(index)
        n = min(missing, len(free))
        if n < len(free) and parts:
            used = {name for name, _ in parts}
            tight = draft.smallest(slot.pool, n, lambda other, _f, u=used: other.node.node not in u)  # type: ignore[misc]
            if tight is not None and job.within != "rack":
                slot, free = draft.capacity.slots[tight], draft.free_on(tight)
        if not draft.room_on(slot, job, n):
            return None
        parts.append((slot.node.node, close_together(slot, free, n)))
        missing -= n
        if not missing:
            return tuple(parts)
    return None


def _in_one_rack(job: Job, draft: Draft, pool: Pool) -> Parts | None:
    """The rack with the fewest free GPUs that holds the gang: packing racks keeps whole ones free."""
    best: tuple[int, str, list[int]] | None = None
    for (of, rack), nodes in draft.capacity.racks.items():
        if of != pool:
            continue
        free = sum(len(draft.free_on(i)) for i in nodes)
        if free >= job.gpus and (best is None or (free, rack) < best[:2]):
            best = (free, rack, nodes)
    if best is None:
        return None
    return _gather(job, draft, sorted(best[2], key=lambda i: (-len(draft.free_on(i)), i)))
