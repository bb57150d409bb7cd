"""How fast Sia's applications are: its `traces` folder of measured steps, by GPU type, placement and batch.

`APPLICATION/placements-CLUSTER.csv` has the time of a step and of its synchronisation for each placement
(GPUs on each node, as digits) and batch per GPU; `validation-BATCH.csv` how many steps an epoch takes with
that batch and how noisy its gradients are. A job is done after as many epochs as Sia trains it for. Source:
Jayaram Subramanya et al., Sia, SOSP 2023, and its simulator (applications.py, job.py), whose rules these are:

    progress per second = gain / step time / slowdown,  gain = (var + sqr) / (var / scale + sqr)
    step time = step + steps of accumulation x (step - sync),  scale = batch / smallest batch

Left out: gangs on more nodes than they need run as if they were on as few as possible, and sizes whose
placement was not measured do not exist (Sia's simulator interpolates them).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path

from brimful.errors import BadInput
from brimful.language import say
from brimful.sim.traces.reading import Row, Skips, Source

# Sia's name of a cluster -> its GPU type, and GPUs per node.
CLUSTERS = {"aws": ("t4", 4), "rtx": ("rtx-2080-ti", 8), "dgx-ext": ("a100-sxm-40gb", 8)}
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
SLOWDOWN = {"cifar10": 1.8, "ncf": 1.5}  # of the real cluster relative to the profiles; 1.2 for the others
RESTART_S = {"cifar10": 50, "ncf": 15, "bert": 120, "deepspeech2": 25, "yolov3": 80, "imagenet": 250}
TRIED = 50  # number of batches tried between the smallest and the largest
NEARLY = 1e-8
MOST = 1e12


@dataclass(slots=True)
class _Epochs:
    """The effect of one batch size on each epoch."""

    progress: list[float] = field(default_factory=list)
    sqr: list[float] = field(default_factory=list)
    var: list[float] = field(default_factory=list)


class Application:
    """One application, on every cluster it was measured on."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        here = folder / name
        if not here.is_dir():
            raise BadInput(say("sim.sia_no_profile", folder=folder, application=name))
        self._steps: dict[str, dict[str, list[tuple[int, float, float]]]] = {}  # cluster, placement -> rows
        for cluster in CLUSTERS:
            measured = self._steps[cluster] = {}
            for row in _rows(here / f"placements-{cluster}.csv", ("placement", "local_bsz", "step_time")):
                bsz = row.integer("local_bsz", low=1, high=10**9)
                times = [row.number(column, low=0, high=MOST) for column in ("step_time", "sync_time")]
                measured.setdefault(row["placement"], []).append((bsz, times[0], times[1]))
            for rows in measured.values():
                rows.sort()
        self._runs: dict[tuple[str, int, int | None], float | None] = {}
        self._epochs: dict[int, _Epochs] = {}
        for path in sorted(here.glob("validation-*.csv")):
            of = self._epochs[int(path.stem.removeprefix("validation-"))] = _Epochs()
            for row in _rows(path, ("progress", "grad_sqr", "grad_var")):
                of.progress.append(row.number("progress", low=0, high=MOST))
                of.sqr.append(row.number("grad_sqr", low=0, high=1e30))
                of.var.append(row.number("grad_var", low=0, high=1e30))
        if not self._epochs:
            raise BadInput(say("sim.sia_no_profile", folder=folder, application=name))
        self.smallest, self.largest = min(self._epochs), max(self._epochs)
        self._tops = [
            min(each.progress[epoch] for each in self._epochs.values())
            for epoch in range(min(EPOCHS[name], *(len(each.progress) for each in self._epochs.values())))
        ]

    def run_s(self, cluster: str, gpus: int, batch: int | None) -> float | None:
        """The run time of the whole job on this many GPUs of one cluster; None if it cannot run.

        With a batch of None, the one with the best progress in each epoch, as Sia's adaptive jobs choose.
        """
        known = (cluster, gpus, batch)
        if known not in self._runs:
            self._runs[known] = self._run_s(*known)
        return self._runs[known]

    def _run_s(self, cluster: str, gpus: int, batch: int | None) -> float | None:
        rows = self._steps[cluster].get(_placement(gpus, CLUSTERS[cluster][1]), [])
        steps = {self._step(rows, gpus, each) for each in self._batches(gpus, batch)} - {None}
        if not rows or not steps:
            return None
        total, before = 0.0, 0.0
        for epoch, top in enumerate(self._tops):
            speed = max(self._gain(real, epoch) / step_s for real, step_s in filter(None, steps))
            total += (top - before) / speed
            before = top
        return total * SLOWDOWN.get(self.name, 1.2)

    def _batches(self, gpus: int, batch: int | None) -> Iterator[int]:
        if batch is not None:
            yield batch
            return
        least = max(self.smallest, gpus)
        for i in range(TRIED):
            yield round(least * (self.largest / least) ** (i / (TRIED - 1)))

    def _step(self, rows: list[tuple[int, float, float]], gpus: int, batch: int) -> tuple[int, float] | None:
        """(the resulting batch, time of a step) with as much accumulation as it needs."""
        local = ceil(batch / gpus - NEARLY)
        accumulated = ceil(local / rows[-1][0] - NEARLY) - 1 if rows else 0
        if gpus == 1 and batch > self.smallest:
            accumulated = max(1, accumulated)
        atomic = ceil(local / (accumulated + 1) - NEARLY)
        atomic = min(atomic, self.largest // (gpus * (accumulated + 1)))
        found, real = _between(rows, atomic), gpus * atomic * (accumulated + 1)
        if found is None or real < self.smallest:
            return None
        return real, found[0] + accumulated * (found[0] - found[1])

    def _gain(self, batch: int, epoch: int) -> float:
        sqr, var = self._noise(batch, epoch)
        return (var + sqr) / (var * self.smallest / batch + sqr)

    def _noise(self, batch: int, epoch: int) -> tuple[float, float]:
        known = sorted(self._epochs)
        at = min(bisect_left(known, batch), len(known) - 1)
        high = known[at]
        low = high if high == batch or at == 0 else known[at - 1]
        share = 0.0 if high == low else (batch - low) / (high - low)
        one, two = self._epochs[low], self._epochs[high]
        return (
            one.sqr[epoch] * (1 - share) + two.sqr[epoch] * share,
            one.var[epoch] * (1 - share) + two.var[epoch] * share,
        )


def _placement(gpus: int, per_node: int) -> str:
    """On as few nodes as possible, in Sia's notation: the smallest rotation of its digits."""
    nodes = [per_node] * (gpus // per_node) + ([gpus % per_node] if gpus % per_node else [])
    return min("".join(map(str, nodes[i:] + nodes[:i])) for i in range(len(nodes)))


def _between(rows: list[tuple[int, float, float]], bsz: int) -> tuple[float, float] | None:
    """Step and synchronisation at this batch per GPU, interpolated between measurements."""
    at = bisect_left(rows, (bsz, -1.0, -1.0))
    if at < len(rows) and rows[at][0] == bsz:
        return rows[at][1:]
    if at == 0 or at == len(rows):
        return None
    (low, *one), (high, *two) = rows[at - 1], rows[at]
    share = (bsz - low) / (high - low)
    return one[0] + (two[0] - one[0]) * share, one[1] + (two[1] - one[1]) * share


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    return Source(path, Skips()).table(needed)


@cache
def application(folder: Path, name: str) -> Application:
    return Application(folder, name)
