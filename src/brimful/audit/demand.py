"""Matches free GPUs with the work that waits at the same time.

In this order, each on what the previous one has left: a queue's own free GPUs; free GPUs of another type in
the same queue; free GPUs of the right type behind a wall (quota, partition, reservation). What is still free
then has no demand. A job that waits for 8 GPUs is demand for 8, even if only 3 are free: those 3 are idle
while their own queue waits, which is what the leaf says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brimful.audit.records import Wait


class Pool(NamedTuple):
    """Identical free GPUs, whatever each of them costs: one type, one set of queues."""

    gpu: str
    walls: frozenset[str]
    by_node: bool  # whether the node of each one is known


class Demand(NamedTuple):
    """Waiting jobs that are alike."""

    wall: str
    gpu: str
    blocked: bool
    memory_bytes: int | None

    @classmethod
    def of(cls, wait: Wait) -> Demand:
        return cls(wait.wall, wait.gpu, wait.blocked, wait.memory_bytes)

    def is_own(self, pool: Pool) -> bool:
        return not pool.walls or self.wall in pool.walls

    def may_use(self, gpu: str) -> bool:
        return not self.gpu or gpu in ("", self.gpu)


Shape = tuple[int, int]  # GPUs per node, nodes


@dataclass(slots=True)
class Queue:
    """Who waits now: GPUs by kind of demand, and how many jobs there are of each shape."""

    gpus: Counter[Demand]
    shapes: defaultdict[Demand, Counter[Shape | None]]

    @classmethod
    def empty(cls) -> Queue:
        return cls(Counter(), defaultdict(Counter))

    def change(self, wait: Wait, by: int) -> None:
        demand = Demand.of(wait)
        self.gpus[demand] += by * wait.gpus
        shape = (wait.per_node, -(-wait.gpus // wait.per_node)) if wait.per_node else None
        self.shapes[demand][shape] += by
        if not self.gpus[demand]:
            del self.gpus[demand], self.shapes[demand]


def match(
    free: Mapping[Pool, int],
    nodes: Mapping[Pool, Counter[int]],
    queue: Queue,
    card_bytes: Mapping[str, int],
) -> dict[Pool, Counter[str]]:
    """What each pool's free GPUs are at this time: leaves below `unallocated`, in GPUs.

    `nodes`: by pool, how many nodes have this many free GPUs.
    """
    left, wanted = dict(free), Counter(queue.gpus)
    found: dict[Pool, Counter[str]] = {pool: Counter() for pool in free}
    own: defaultdict[Pool, list[Demand]] = defaultdict(list)
    # Demand with the fewest choices first, on GPUs that the fewest others may use; then in any fixed order.
    demands = sorted(wanted, key=lambda d: (not d.gpu, str(d)))
    pools = sorted(
        free, key=lambda p: (not p.walls, len(p.walls), not p.gpu, p.gpu, sorted(p.walls), p.by_node)
    )

    def give(fits: Callable[[Demand, Pool], bool], leaf: Callable[[Demand, Pool], str]) -> None:
        for demand in demands:
            for pool in pools:
                gpus = min(wanted[demand], left[pool])
                if gpus and fits(demand, pool):
                    wanted[demand] -= gpus
                    left[pool] -= gpus
                    found[pool][leaf(demand, pool)] += gpus
                    if leaf is _own:
                        own[pool].append(demand)

    give(lambda d, p: not d.blocked and d.is_own(p) and d.may_use(p.gpu), _own)
    give(lambda d, p: not d.blocked and d.is_own(p), lambda d, p: _other_type(d, card_bytes.get(p.gpu)))
    give(lambda d, p: d.may_use(p.gpu) and (d.blocked or not d.is_own(p)), lambda _d, _p: "walled")
    for pool, gpus in left.items():
        found[pool]["no_demand"] = gpus
        if matched := found[pool].pop("own_queue", 0):
            shapes = sum((queue.shapes[demand] for demand in own[pool]), Counter[Shape | None]())
            found[pool] += _why_idle(matched, free[pool], nodes.get(pool), shapes)
    return found


def _own(_demand: Demand, _pool: Pool) -> str:
    return "own_queue"


def _other_type(demand: Demand, card_bytes: int | None) -> str:
    if demand.memory_bytes is None or card_bytes is None:
        return "other_type.unknown"
    return "other_type.fits" if demand.memory_bytes <= card_bytes else "other_type.too_small"


def _why_idle(
    matched: int, free: int, nodes: Counter[int] | None, shapes: Mapping[Shape | None, int]
) -> Counter[str]:
    """Free GPUs whose own queue waits: a queued job would fit, or they are scattered, or kept for one."""
    known = {shape: jobs for shape, jobs in shapes.items() if shape}
    if nodes is None or not known or None in shapes:
        return Counter({"own_queue.unknown": matched})
    taken, waiting = _pack(nodes, known)
    fits = min(matched, taken)
    rest = matched - fits
    scattered = any(need <= free - taken for need in waiting)
    return Counter({"own_queue.fits": fits, f"own_queue.{'fragmented' if scattered else 'held'}": rest})


def _pack(nodes: Mapping[int, int], shapes: Mapping[Shape, int]) -> tuple[int, list[int]]:
    """GPUs that queued jobs could take at once, and how many each remaining job needs.

    Largest first, on the tightest nodes; a job over several nodes takes all of them or none.
    """
    free, taken, left = Counter(nodes), 0, []
    for (need, parts), jobs in sorted(shapes.items(), reverse=True):
        room = sum(size // need * n for size, n in free.items())
        fitting = min(jobs, room // parts)
        pieces = fitting * parts
        for size in sorted(size for size in free if size >= need):
            while pieces and free[size]:
                here = min(pieces, size // need)
                free[size] -= 1
                free[size - here * need] += 1
                pieces -= here
                taken += here * need
        if fitting < jobs:
            left.append(need * parts)
    return taken, left


def never_needed(steps: Iterable[tuple[int, int, int, int]]) -> dict[int, int]:
    """GPUs without demand that are above the window's peak, by the start of each step.

    A step is (start, end, total GPUs, GPUs without demand).
    """
    known = list(steps)
    peak = max((there - idle for _, _, there, idle in known), default=0)
    return {start: min(idle, max(0, there - peak)) for start, _, there, idle in known}


def shown_walls(walls: Sequence[str] | frozenset[str]) -> str:
    return "+".join(sorted(walls))
