"""Which node, out of thousands: placement scores computed over columns of free capacity.

Each score is one number per node that can take the demand; the highest wins, the first of equals.

- Random, dot product, clustering, packing, best fit and FGD follow the rules, constants and rounding of the
  FGD authors' simulator (hkust-adsl/kubernetes-scheduler-simulator), so that their published allocation rates
  can be reproduced. Their scores are integers from 0 to 100, so ties are common, and how they are broken
  matters: always taking the same node packs, choosing at random scatters. With random choice, FGD on openb
  falls from 95.5 to 90.0 %.
- FGD: Weng et al., Beware of Fragmentation, USENIX ATC 2023. The gradient of the fragmentation
  F(node) = Σ_m p_m · idle GPU of the node that a task of kind m cannot use.
- brim: the gradient of what will stay idle by prices (`prices.py`): a node is worth the tasks that its GPUs
  could still hold, or those that its CPUs could, whichever is less. On a tie a task takes the node in least
  demand, so that rare types and wide nodes are kept for the tasks that need them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from brimful.fleet.job import WHOLE_GPU
from brimful.scheduler.placing.prices import most_worth, shadow_prices

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# The largest node of the authors' fleet: the divisor in their best fit and dot product.
MAX_CPU_MILLI = 128_000
MAX_GPU_MILLI = 8_000
# So small that it only breaks ties.
OF_EQUALS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Distinct demands, one row per kind: `gpus` times `gpu_milli` of a GPU, and CPU beside them."""

    cpu_milli: Ints
    gpus: Ints
    gpu_milli: Ints  # of each GPU; 0 where gpus is 0
    allowed: Bools  # kinds × GPU types
    count: Ints  # tasks of each kind in the workload: the expected mix

    @property
    def asked_milli(self) -> Ints:
        return self.gpus * self.gpu_milli


@dataclass(slots=True, kw_only=True)
class Columns:
    """Free capacity, one row per node; `gpu_milli` has one column per GPU, 0 if a node has fewer."""

    cpu_milli: Ints
    memory_mib: Ints
    gpu_milli: Ints
    gpus: Ints
    gpu_type: Ints
    tenants: Ints  # nodes × sizes: tasks placed that share a GPU (0) or hold that many
    changes: list[int] = field(default_factory=list)  # every node taken from, in order

    def fitting(self, kinds: Kinds, kind: int, *, memory_mib: int) -> Ints:
        """The nodes that can take the demand now."""
        ok = (self.cpu_milli >= kinds.cpu_milli[kind]) & (self.memory_mib >= memory_mib)
        if kinds.gpus[kind]:
            room = (self.gpu_milli >= kinds.gpu_milli[kind]).sum(axis=1)
            ok &= (room >= kinds.gpus[kind]) & kinds.allowed[kind][self.gpu_type]
        return np.flatnonzero(ok)

    def take(self, kinds: Kinds, kind: int, *, memory_mib: int, node: int, devices: Ints) -> None:
        """Place one demand of this kind: the only method that writes here."""
        milli = int(kinds.gpu_milli[kind])
        assert len(devices) == kinds.gpus[kind], "a demand is placed whole"
        assert (self.gpu_milli[node, devices] >= milli).all(), "a GPU is never given away twice"
        self.cpu_milli[node] -= kinds.cpu_milli[kind]
        self.memory_mib[node] -= memory_mib
        assert self.cpu_milli[node] >= 0, "CPUs are never given away twice"
        assert self.memory_mib[node] >= 0, "memory is never given away twice"
        self.gpu_milli[node, devices] -= milli
        if len(devices):
            self.tenants[node, 0 if milli < WHOLE_GPU else len(devices)] += 1
        self.changes.append(node)


class Placer(Protocol):
    """A way to choose: which of these nodes, and which GPUs of the chosen one."""

    def scores(self, kind: int, nodes: Ints) -> Floats: ...

    def devices(self, kind: int, node: int) -> Ints: ...


ScoreRule = Callable[[Columns, Kinds, int, Ints], Floats]


@dataclass(frozen=True, slots=True)
class Rule:
    """A stateless rule; a share goes to the GPU where it leaves least over."""

    columns: Columns
    kinds: Kinds
    rule: ScoreRule

    def scores(self, kind: int, nodes: Ints) -> Floats:
        return self.rule(self.columns, self.kinds, kind, nodes)

    def devices(self, kind: int, node: int) -> Ints:
        return tightest(self.columns.gpu_milli[node], self.kinds, kind)


def tightest(free: Ints, kinds: Kinds, kind: int) -> Ints:
    """Whole GPUs from the left; a share where it leaves least over."""
    milli = kinds.gpu_milli[kind]
    fits = np.flatnonzero(free >= milli)
    if 0 < milli < WHOLE_GPU:
        fits = fits[np.argsort(free[fits], kind="stable")]
    return fits[: kinds.gpus[kind]]


def best_fit(columns: Columns, kinds: Kinds, kind: int, nodes: Ints) -> Floats:
    """The node that is fullest afterwards: 100 · (1 - CPU left / 2·128 - GPU left / 2·8), truncated."""
    cpu = (columns.cpu_milli[nodes] - kinds.cpu_milli[kind]) / MAX_CPU_MILLI
    gpu = (columns.gpu_milli[nodes].sum(axis=1) - kinds.asked_milli[kind]) / MAX_GPU_MILLI
    score: Floats = np.trunc((1.0 - 0.5 * cpu - 0.5 * gpu) * 100)
    return score


def dot_product(columns: Columns, kinds: Kinds, kind: int, nodes: Ints) -> Floats:
    """The node whose free vector points least in the demand's direction (the authors' version of Tetris)."""
    cpu = columns.cpu_milli[nodes] / MAX_CPU_MILLI * (kinds.cpu_milli[kind] / MAX_CPU_MILLI)
    gpu = columns.gpu_milli[nodes].sum(axis=1) / MAX_GPU_MILLI * (kinds.asked_milli[kind] / MAX_GPU_MILLI)
    score: Floats = np.trunc((1.0 - (cpu + gpu) / 2) * 100)
    return score


def clustering(columns: Columns, kinds: Kinds, kind: int, nodes: Ints) -> Floats:
    """Tasks of one size together: nodes with only these, with these and others, empty, none; then fullest."""
    if not kinds.gpus[kind]:
        return np.zeros(len(nodes))
    size = 0 if kinds.gpu_milli[kind] < WHOLE_GPU else int(kinds.gpus[kind])
    here = columns.tenants[nodes] > 0
    sizes = here.sum(axis=1)
    quarter = np.where(here[:, size], np.where(sizes == 1, 75, 50), np.where(sizes == 0, 25, 0))
    free = columns.gpu_milli[nodes].sum(axis=1)
    score: Floats = (quarter + 25 * (MAX_GPU_MILLI - free) // MAX_GPU_MILLI).astype(np.float64)
    return score


def packing(columns: Columns, kinds: Kinds, kind: int, nodes: Ints) -> Floats:
    """Shared GPUs before free GPUs of a used node before an idle node."""
    gpus, milli = int(kinds.gpus[kind]), int(kinds.gpu_milli[kind])
    if not gpus:
        return np.zeros(len(nodes))
    free = np.sort(columns.gpu_milli[nodes], axis=1)
    unshared = (free == WHOLE_GPU).sum(axis=1)
    fits = free >= milli
    used = fits & (fits.cumsum(axis=1) <= gpus)  # the fullest ones that fit
    fresh = (used & (free == WHOLE_GPU)).sum(axis=1)
    shared = 100 - (np.where(used, free * 100 // WHOLE_GPU, 0).sum(axis=1)) // 10
    used_node = np.where(fresh > 0, np.maximum(50 - fresh, 33), np.maximum(shared, 50))
    idle = unshared == columns.gpus[nodes]
    score: Floats = np.where(idle, np.maximum(33 - unshared, unshared), used_node).astype(np.float64)
    return score


@dataclass(frozen=True, slots=True)
class Random:
    """Any node that fits, any GPU that fits: the baseline for the others."""

    columns: Columns
    kinds: Kinds
    rng: np.random.Generator

    def scores(self, kind: int, nodes: Ints) -> Floats:  # noqa: ARG002 - all the same to it
        return self.rng.random(len(nodes))

    def devices(self, kind: int, node: int) -> Ints:
        free = self.columns.gpu_milli[node]
        if 0 < self.kinds.gpu_milli[kind] < WHOLE_GPU:
            return self.rng.choice(np.flatnonzero(free >= self.kinds.gpu_milli[kind]), size=1)
        return tightest(free, self.kinds, kind)


# --- the gradients: FGD and brim -------------------------------------------------------------------------


# How bad the free part of each node is, in milli-GPU: from its CPU, its GPUs and their type.
Measure = Callable[[Ints, Ints, Ints], Floats]


class Mix:
    """The expected tasks: what a free GPU is measured against."""

    def __init__(self, kinds: Kinds, *, popular: float = 1.0) -> None:
        """`popular` leaves out the rarest kinds: it keeps the most frequent ones that make up this share."""
        kept = _most_frequent(kinds, popular)
        some = kept[kinds.gpus[kept] > 0]
        total = max(1, int(kinds.count[kept].sum()))
        self.share = kinds.count[some] / total
        self.no_gpu_share = 1.0 - float(self.share.sum())
        self.cpu_milli = kinds.cpu_milli[some]
        self.gpus = kinds.gpus[some]
        self.allowed = np.ascontiguousarray(kinds.allowed[some].T)  # types × kinds
        # Several kinds ask for the same share of a GPU: compute what depends on the share alone once.
        self.millis, self.milli_of = np.unique(kinds.gpu_milli[some], return_inverse=True)
        self.gpu_milli = kinds.gpu_milli[some]

    def fragmentation(self, cpu_milli: Ints, free: Ints, gpu_type: Ints) -> Floats:
        """F of Weng et al., equation 1: expected idle GPU that a task drawn from the mix cannot use.

        All of it if the task does not fit; if it does, the GPUs with too little left. A task without GPUs can
        use none of it.
        """
        idle = free.sum(axis=1)
        largest = np.minimum(self.gpus, free.shape[1]) - 1
        roomy = -np.sort(-free, axis=1)
        fits = roomy[:, largest] >= self.gpu_milli
        fits &= (self.gpus <= free.shape[1]) & (cpu_milli[:, None] >= self.cpu_milli) & self.allowed[gpu_type]
        small = free[:, None, :] < self.millis[:, None]
        rest = np.where(small, free[:, None, :], 0).sum(axis=2)[:, self.milli_of]
        lost: Floats = np.where(fits, rest, idle[:, None]) @ self.share + self.no_gpu_share * idle
        return lost


class Worth:
    """What a node could still serve, at the prices of the expected mix.

    GPUs: each rest is worth the best tasks that fit in it, at the prices of a cutting-stock programme
    (`shadow_prices`): beside a task of 0.81 GPU almost nothing that arrives will fit, so that rest is worth
    nothing, while 0.53 is worth half a GPU where 0.47 is common. CPUs: as many GPUs as the mix would use with
    them. A node is worth the lesser of the two; all else that is free will stay idle.
    """

    def __init__(self, kinds: Kinds) -> None:
        some = (kinds.gpus > 0) & (kinds.count > 0)
        sizes, which = np.unique(kinds.gpu_milli[some], return_inverse=True)
        count = kinds.count[some].astype(np.float64)
        gpus = kinds.gpus[some]
        demand: Floats = np.bincount(which, weights=count * gpus, minlength=len(sizes)).astype(np.float64)
        price = shadow_prices(sizes, demand)
        self.of_rest = WHOLE_GPU * most_worth(sizes, price, WHOLE_GPU)
        asked = float((count * gpus * price[which]).sum()) * WHOLE_GPU
        cpu = float((count * kinds.cpu_milli[some]).sum())
        # If no task asks for CPUs, they are worth any number of GPUs.
        self.gpu_per_cpu = asked / max(cpu, 1.0)

    def stays_idle(self, cpu_milli: Ints, free: Ints, gpu_type: Ints) -> Floats:  # noqa: ARG002 - a Measure
        lost: Floats = free.sum(axis=1) - np.minimum(
            self.of_rest[free].sum(axis=1), cpu_milli * self.gpu_per_cpu
        )
        return lost


def asked_for(kinds: Kinds, columns: Columns) -> Floats:
    """How much of each empty node's GPUs is in demand, if every kind spreads over all nodes it fits on."""
    some = kinds.gpus > 0
    able = kinds.allowed[some][:, columns.gpu_type] & (kinds.gpus[some][:, None] <= columns.gpus)
    able &= kinds.cpu_milli[some][:, None] <= columns.cpu_milli
    asked = (kinds.count * kinds.asked_milli)[some] / np.maximum(able @ columns.gpus, 1)
    load: Floats = asked @ able
    return load / max(float(load.max()), 1.0)


def _most_frequent(kinds: Kinds, share: float) -> Ints:
    """Most frequent first, the larger on a tie, until they make up the share."""
    order = np.lexsort((-kinds.gpus, -kinds.gpu_milli, -kinds.cpu_milli, -kinds.count))
    before = kinds.count[order].cumsum() - kinds.count[order]
    kept: Ints = order[(before < share * kinds.count.sum()) & (kinds.count[order] > 0)]
    return kept


def authors_rounding(relief_milli: Floats) -> Floats:
    """⌊100 · sigmoid(relief in GPUs)⌋: one step is about 0.04 GPU."""
    return np.floor(100.0 / (1.0 + np.exp(-relief_milli / WHOLE_GPU)))


def exact(relief_milli: Floats) -> Floats:
    return np.round(relief_milli, 6)


class Fresh:
    """A number per node that holds until the node changes: recomputed only for nodes that changed."""

    def __init__(self, columns: Columns) -> None:
        self._changes = columns.changes
        self._values = np.full(len(columns.cpu_milli), np.nan)
        self._seen = 0

    def get(self, nodes: Ints, compute: Callable[[Ints], Floats]) -> Floats:
        if self._seen < len(self._changes):
            self._values[self._changes[self._seen :]] = np.nan
            self._seen = len(self._changes)
        values = self._values[nodes]
        unknown = np.isnan(values)
        if unknown.any():
            values[unknown] = self._values[nodes[unknown]] = compute(nodes[unknown])
        return values


class Gradient:
    """Go where the measure falls most, or rises least."""

    def __init__(
        self,
        columns: Columns,
        kinds: Kinds,
        measure: Measure,
        rounding: Callable[[Floats], Floats],
        *,
        dear: Floats | None = None,
    ) -> None:
        """On a tie the least `dear` node is taken."""
        self._dear = dear
        self._columns, self._kinds = columns, kinds
        self._measure, self._rounding = measure, rounding
        self._now = Fresh(columns)  # the measure of each node before placing
        self._scores: dict[int, Fresh] = {}  # by kind

    def scores(self, kind: int, nodes: Ints) -> Floats:
        known = self._scores.get(kind)
        if known is None:
            known = self._scores[kind] = Fresh(self._columns)
        return known.get(nodes, lambda unknown: self._best(kind, unknown))

    def devices(self, kind: int, node: int) -> Ints:
        free, milli = self._columns.gpu_milli[node], int(self._kinds.gpu_milli[kind])
        if not 0 < milli < WHOLE_GPU:
            return tightest(free, self._kinds, kind)
        devices = np.flatnonzero(free >= milli)
        relief = self._relief(kind, np.full(len(devices), node), devices)
        return devices[[int(np.argmax(self._rounding(relief)))]]

    def _best(self, kind: int, nodes: Ints) -> Floats:
        """The rounded score of each node, at its best GPU."""
        milli = int(self._kinds.gpu_milli[kind])
        if not 0 < milli < WHOLE_GPU:
            return self._rounding(self._relief(kind, nodes, None))
        free = self._columns.gpu_milli[nodes]
        row, device = np.nonzero(free >= milli)
        # GPUs of a node with the same rest are equivalent: one of them is enough.
        _, first = np.unique(row * (WHOLE_GPU + 1) + free[row, device], return_index=True)
        row, device = row[first], device[first]
        relief = self._relief(kind, nodes[row], device)
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        return self._rounding(np.maximum.reduceat(relief, starts))

    def _relief(self, kind: int, nodes: Ints, device: Ints | None) -> Floats:
        """By how much the measure falls; `device` is the GPU to share, None takes whole ones."""
        columns, kinds = self._columns, self._kinds
        free, gpu_type = columns.gpu_milli[nodes], columns.gpu_type[nodes]
        milli, gpus = kinds.gpu_milli[kind], kinds.gpus[kind]
        if device is not None:
            free[np.arange(len(nodes)), device] -= milli
        elif gpus:
            fits = free >= milli
            free[fits & (fits.cumsum(axis=1) <= gpus)] -= milli
        after = self._measure(columns.cpu_milli[nodes] - kinds.cpu_milli[kind], free, gpu_type)
        relief: Floats = self._now.get(nodes, self._before_placing) - after
        if self._dear is not None:
            relief -= OF_EQUALS * self._dear[nodes]
        return relief

    def _before_placing(self, nodes: Ints) -> Floats:
        columns = self._columns
        return self._measure(columns.cpu_milli[nodes], columns.gpu_milli[nodes], columns.gpu_type[nodes])


def _rule(rule: ScoreRule) -> Callable[[Columns, Kinds, np.random.Generator], Placer]:
    return lambda columns, kinds, _rng: Rule(columns, kinds, rule)


# How to choose, by name: from the fleet's columns, the expected mix and a random generator.
PLACERS: dict[str, Callable[[Columns, Kinds, np.random.Generator], Placer]] = {
    "random": Random,
    "dot-product": _rule(dot_product),
    "clustering": _rule(clustering),
    "packing": _rule(packing),
    "best-fit": _rule(best_fit),
    "fgd": lambda columns, kinds, _: Gradient(
        columns, kinds, Mix(kinds, popular=0.95).fragmentation, authors_rounding
    ),
    "brim": lambda columns, kinds, _: Gradient(
        columns, kinds, Worth(kinds).stays_idle, exact, dear=asked_for(kinds, columns)
    ),
}
