"""brim against FIFO on run times of every kind, not only the heavy tails it is made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from random import Random

import pytest

from brimful.fleet.job import Job
from brimful.fleet.metrics import measure
from brimful.scheduler.policies import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse

LOAD = 0.9
SHAPES: dict[str, Callable[[Random], float]] = {
    "all alike": lambda _chance: 3600.0,
    "uniform": lambda chance: chance.uniform(600, 6600),
    "exponential": lambda chance: chance.expovariate(1 / 3600),
    "short and long": lambda chance: chance.choice([300.0] * 4 + [16800.0]),
    "heavy tail": lambda chance: min(200_000.0, 600 * chance.paretovariate(1.2)),
}


def made_up(shape: str, *, seed: int) -> list[Arrival]:
    chance, at_s, arrivals = Random(seed), 0.0, []
    for i in range(300):
        at_s += chance.expovariate(1 / 220)
        gpus = chance.choice([1, 1, 1, 2, 4, 8])
        job = Job(job=f"job-{i}", gpus=gpus, checkpoint_interval_s=600, checkpoint_cost_s=60)
        arrivals.append(Arrival(at_s=int(at_s), job=job, work_s=float(ceil(SHAPES[shape](chance)))))
    return arrivals


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("known", [False, True], ids=["hidden", "known"])
def test_brim_does_not_lose_to_fifo(shape: str, known: bool) -> None:
    arrivals = made_up(shape, seed=7)
    asked = sum(a.work_s * a.job.gpus for a in arrivals) / arrivals[-1].at_s
    nodes = parse_fleet(f"{ceil(asked / LOAD / 8)}x8")

    def mean_s(policy: str, some: list[Arrival]) -> float:
        outcome = rehearse(some, nodes, POLICIES[policy])
        found = measure(outcome.fleet, now_s=outcome.end_s)
        assert found.finished == len(some)
        assert found.mean_jct_s is not None
        return found.mean_jct_s

    told = [replace(a, job=replace(a.job, predicted_work_s=a.work_s)) for a in arrivals]
    assert mean_s("brim", told if known else arrivals) < mean_s("fifo", arrivals)
