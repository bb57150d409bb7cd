"""Gavel's FIFO and LAS by Gavel's own rules, in small: separates policy from implementation in its figures.

The rules are facts of github.com/stanford-futuredata/gavel (scheduler/policies/fifo.py, max_min_fairness.py).

- FIFO chooses a GPU type when a job's turn comes. It draws a random type among those with room for the gang,
  and then gives the job the last type by name that was not struck off, whether or not the gang fits there;
  when that type is full, it strikes off the type it drew. So all jobs queue for the V100, several jobs share
  it in turns of six minutes, and the K80s are idle.
- LAS (max-min fairness) gives each job time in proportion to 1 / gang size, at most all of it, and spreads it
  over the GPU types in the fleet's proportions, whatever the job's speed on each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from brimful.sim.traces.reading import Trace
from brimful.sim.world import Arrival
from brimful.units import HOUR_S

FLEET = {"k80": 24, "p100": 16, "v100": 8}
ROUND_S = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    mean_jct_h: float
    makespan_h: float


def fifo(trace: Trace, fleet: Mapping[str, int] = FLEET) -> Result:
    """Rounds of six minutes; among jobs that share a type, the one with the fewest rounds goes first."""
    jobs = trace.arrivals
    state = _Fifo(jobs, fleet)
    left = [job.work_s for job in jobs]
    ends: dict[int, float] = {}
    now_s, seen = 0.0, -1
    while len(ends) < len(jobs):
        here = [i for i, job in enumerate(jobs) if job.at_s <= now_s and i not in ends]
        if (changed := len(here) + 2 * len(ends)) != seen:
            state.allocate(here)
            seen = changed
        for gpu, i in state.round():
            rate = jobs[i].job.rate(gpu)
            if left[i] / rate <= ROUND_S:
                ends[i] = now_s + left[i] / rate
            left[i] -= ROUND_S * rate
        now_s += ROUND_S
    return _result(jobs, ends)


@dataclass(slots=True)
class _Fifo:
    jobs: Sequence[Arrival]
    fleet: Mapping[str, int]
    type_of: dict[int, str] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    chance: Random = field(default_factory=lambda: Random(0))

    def allocate(self, here: Sequence[int]) -> None:
        free = dict(self.fleet)
        queue = [i for i in here if i not in self.type_of]
        for i in sorted(self.type_of):
            gpu = self.type_of[i]
            if i in here:
                free[gpu] -= self.jobs[i].job.gpus
                continue
            del self.type_of[i]
            if queue and self._size(queue[0]) <= free[gpu] and self.jobs[queue[0]].job.rate(gpu) > 0:
                self._give(queue.pop(0), gpu, free)
        types = sorted(gpu for gpu in free if free[gpu] > 0)
        for i in queue:
            roomy = [gpu for gpu in types if free[gpu] >= self._size(i)]
            if not roomy:
                break
            drawn, given = self.chance.choice(roomy), types[-1]
            if self.jobs[i].job.rate(given) > 0:
                self._give(i, given, free)
                if free[given] == 0:
                    types.remove(drawn)
        self.rounds = {}

    def round(self) -> list[tuple[str, int]]:
        """(GPU type, job) for every job that runs in this round."""
        running = []
        for gpu, count in self.fleet.items():
            left = count
            mine = [i for i in self.type_of if self.type_of[i] == gpu]
            for i in sorted(mine, key=lambda i: (self.rounds.get(i, 0), i)):
                if self._size(i) <= left:
                    left -= self._size(i)
                    self.rounds[i] = self.rounds.get(i, 0) + 1
                    running.append((gpu, i))
        return running

    def _size(self, i: int) -> int:
        return self.jobs[i].job.gpus

    def _give(self, i: int, gpu: str, free: dict[str, int]) -> None:
        self.type_of[i] = gpu
        free[gpu] -= self._size(i)


def las(trace: Trace, fleet: Mapping[str, int] = FLEET) -> Result:
    """The fluid limit: shares of time, updated whenever a job arrives or leaves."""
    jobs, gpus = trace.arrivals, sum(fleet.values())
    speed = [sum(count * job.job.rate(gpu) for gpu, count in fleet.items()) / gpus for job in jobs]
    left = [job.work_s for job in jobs]
    ends: dict[int, float] = {}
    now_s, coming, here = 0.0, 0, list[int]()
    while len(ends) < len(jobs):
        while coming < len(jobs) and jobs[coming].at_s <= now_s:
            here.append(coming)
            coming += 1
        level = _level([jobs[i].job.gpus for i in here], gpus)
        pace = {i: speed[i] * min(1.0, level / jobs[i].job.gpus) for i in here}
        steps = [left[i] / pace[i] for i in here]
        if coming < len(jobs):
            steps.append(jobs[coming].at_s - now_s)
        step_s = min(steps)
        now_s += step_s
        for i in list(here):
            left[i] -= pace[i] * step_s
            if left[i] < 1e-6:
                ends[i] = now_s
                here.remove(i)
    return _result(jobs, ends)


def _level(sizes: Sequence[int], gpus: int) -> float:
    """The share of GPUs L with Σ min(size, L) = GPUs: water-filling over the gangs."""
    if sum(sizes) <= gpus:
        return float(max(sizes, default=1))
    low, high = 0.0, float(max(sizes))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(min(size, middle) for size in sizes) > gpus else (middle, high)
    return low


def _result(jobs: Sequence[Arrival], ends: Mapping[int, float]) -> Result:
    total = sum(ends[i] - job.at_s for i, job in enumerate(jobs))
    return Result(
        mean_jct_h=total / len(jobs) / HOUR_S, makespan_h=(max(ends.values()) - jobs[0].at_s) / HOUR_S
    )
