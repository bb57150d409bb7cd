"""Fill-only rehearsal: how full does a fleet get before what is left fits no task?

As measured by Weng et al. (Beware of Fragmentation, USENIX ATC 2023): the trace's tasks arrive in a random
order, then more drawn from it at random, until the GPUs asked for are `until` times those available. A task
that fits anywhere on arrival must be placed; one that does not is dropped. Nothing ends and nothing moves.

Leaves out: time. For that, `brimful.sim.world`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.errors import BadInput
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.memory import too_small
from brimful.fleet.node import Node
from brimful.language import Number, say
from brimful.scheduler.placing.kernels import PLACERS, Columns, Floats, Ints, Kinds

AT_PERCENT = (50, 80, 100, 130)
# Not counted, so they never run out.
PLENTY = 2**40
MAX_TASKS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A trace's tasks as columns: the kind of each, and its memory, which no score considers."""

    kinds: Kinds
    kind: Ints
    memory_mib: Ints

    @property
    def unfit(self) -> int:
        """Tasks that want GPUs but can use none of the types."""
        none = ~self.kinds.allowed.any(axis=1) & (self.kinds.gpus > 0)
        return int(self.kinds.count[none].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The result of one fill; the curves are in per cent of the fleet's GPUs, one point per task."""

    policy: str
    seed: int
    until: float
    tasks: int
    placed: int
    arrived_percent: Floats
    allocated_percent: Floats

    @property
    def allocation_at(self) -> dict[str, float | None]:
        """Per cent allocated while the demand that has arrived rounds to 50, 80, 100, 130 % of the fleet.

        The mean over that per cent, as in the authors' published tables; if no task fell into it (a small
        fleet), the last value before. None: `until` was lower than that.
        """
        return {str(p): self._at(p) if p <= 100 * self.until + 1e-9 else None for p in AT_PERCENT}

    def _at(self, percent: int) -> float:
        here = self.allocated_percent[np.round(self.arrived_percent) == percent]
        if len(here):
            return float(here.mean())
        before = self.allocated_percent[self.arrived_percent <= percent]
        return float(before[-1]) if len(before) else 0.0


def fill(
    nodes: Sequence[Node],
    workload: Workload,
    *,
    policy: str,
    seed: int,
    until: float = 1.3,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Filled:
    """One fill, start to end. The same seed gives the same tasks to every policy.

    Of nodes with equal scores the first is taken; the seed decides their order, once.
    """
    chance = np.random.default_rng([seed, 1])
    columns = columns_of([nodes[i] for i in chance.permutation(len(nodes))], gpu_types_of(nodes))
    capacity_milli = int(columns.gpu_milli.sum())
    tasks = order(workload, capacity_milli, until=until, rng=np.random.default_rng(seed))
    kinds = workload.kinds
    placer = PLACERS[policy](columns, kinds, chance)
    taken = np.zeros(len(tasks), dtype=np.int64)
    placed = 0
    for i, task in enumerate(tasks):
        kind, memory = int(workload.kind[task]), int(workload.memory_mib[task])
        fitting = columns.fitting(kinds, kind, memory_mib=memory)
        if len(fitting):
            node = int(fitting[np.argmax(placer.scores(kind, fitting))])
            devices = placer.devices(kind, node) if kinds.gpus[kind] else np.empty(0, dtype=np.int64)
            columns.take(kinds, kind, memory_mib=memory, node=node, devices=devices)
            taken[i] = kinds.asked_milli[kind]
            placed += 1
        if i % 500 == 499:
            progress(i + 1, len(tasks))
    progress(len(tasks), len(tasks))
    asked = kinds.asked_milli[workload.kind[tasks]]
    return Filled(
        policy=policy,
        seed=seed,
        until=until,
        tasks=len(tasks),
        placed=placed,
        arrived_percent=asked.cumsum() / capacity_milli * 100,
        allocated_percent=taken.cumsum() / capacity_milli * 100,
    )


def order(workload: Workload, capacity_milli: int, *, until: float, rng: np.random.Generator) -> Ints:
    """The order of arrivals: the whole trace shuffled, then drawn from again, or cut short if it is too long.

    Source: the authors' workload tuning; a trace that asks for more than `until` loses tasks at random.
    """
    asked = workload.kinds.asked_milli[workload.kind]
    target = until * capacity_milli
    if asked.sum() <= 0:
        raise BadInput(say("sim.no_gpu_tasks"))
    expected = target / float(asked.mean())
    if expected > MAX_TASKS:
        raise BadInput(
            say(
                "sim.fill_too_many_tasks",
                tasks=Number(expected),
                until=f"{until:g}",
                most=Number(MAX_TASKS),
            )
        )
    shuffled = rng.permutation(len(asked))
    came = asked[shuffled].cumsum()
    if came[0] > target:
        raise BadInput(say("sim.fill_no_task", until=f"{until:g}"))
    if came[-1] > target:
        # Dropping tasks at random from a random order is the same as ending that order early.
        return shuffled[came <= target]
    more: list[int] = []
    total = int(came[-1])
    while True:
        task = int(rng.integers(len(asked)))
        total += int(asked[task])
        if total > target:
            return np.concatenate([shuffled, np.array(more, dtype=np.int64)])
        more.append(task)


def gpu_types_of(nodes: Sequence[Node]) -> list[str]:
    return sorted({node.gpu for node in nodes})


def workload_of(jobs: Sequence[Job], gpu_types: Sequence[str]) -> Workload:
    """The jobs as columns. A job's CPU, GPUs and the types it may and can use define its kind."""
    index: dict[tuple[int, int, int, tuple[str, ...], tuple[str, ...]], int] = {}
    kind = np.array(
        [
            index.setdefault(
                (
                    job.cpu_milli,
                    job.gpus,
                    job.gpu_milli if job.gpus else 0,
                    job.gpu_types,
                    _unusable_types(job, gpu_types),
                ),
                len(index),
            )
            for job in jobs
        ],
        dtype=np.int64,
    )
    rows = list(index)
    kinds = Kinds(
        cpu_milli=np.array([row[0] for row in rows], dtype=np.int64),
        gpus=np.array([row[1] for row in rows], dtype=np.int64),
        gpu_milli=np.array([row[2] for row in rows], dtype=np.int64),
        allowed=np.array(
            [[(not row[3] or gpu in row[3]) and gpu not in row[4] for gpu in gpu_types] for row in rows],
            dtype=np.bool_,
        ),
        count=np.bincount(kind, minlength=len(rows)),
    )
    memory = np.array([job.memory_mib for job in jobs], dtype=np.int64)
    return Workload(kinds=kinds, kind=kind, memory_mib=memory)


def _unusable_types(job: Job, gpu_types: Sequence[str]) -> tuple[str, ...]:
    """Types without a rate for the job, or with less memory than its share of a card would need."""
    if not job.gpus or not (job.rates or job.peak_bytes):
        return ()
    rated = {name for name, rate in job.rates if rate > 0} if job.rates else set(gpu_types)
    return tuple(gpu for gpu in gpu_types if gpu not in rated or too_small(job, gpu) is not None)


def columns_of(nodes: Sequence[Node], gpu_types: Sequence[str]) -> Columns:
    """An empty fleet as columns. A bad GPU is one with nothing free."""
    widest = max((node.gpus for node in nodes), default=0)
    free = np.zeros((len(nodes), widest), dtype=np.int64)
    for i, node in enumerate(nodes):
        free[i, : node.gpus] = WHOLE_GPU
        free[i, list(node.holes)] = 0
    if not free.sum():
        raise BadInput(say("sim.fill_without_gpus"))
    index = {gpu: i for i, gpu in enumerate(gpu_types)}
    return Columns(
        cpu_milli=np.array([PLENTY if n.cpu_milli is None else n.cpu_milli for n in nodes], dtype=np.int64),
        memory_mib=np.array(
            [PLENTY if n.memory_mib is None else n.memory_mib for n in nodes], dtype=np.int64
        ),
        gpu_milli=free,
        gpus=(free > 0).sum(axis=1),
        gpu_type=np.array([index[node.gpu] for node in nodes], dtype=np.int64),
        tenants=np.zeros((len(nodes), widest + 1), dtype=np.int64),
    )
