"""Synthetic jobs from published distributions: `synthetic:philly?jobs=10000&gpus=600&load=0.9&seed=7`.

Gang sizes, and run times by size, are quantiles of Microsoft's Philly trace (Jeon et al., ATC 2019; 82,247
jobs of 2017 in the short list of github.com/msr-fiddle/philly-traces). Arrivals follow the day: 0.19 times
the mean at 06:00 and 1.73 times at 16:00, as in Helios' Venus cluster (Hu et al., SC 2021). The rate is set
so that `load` of `gpus` GPUs are asked for on average; they are in nodes of eight unless a fleet is given.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import cos, exp, log, pi
from random import Random

from brimful.errors import BadInput
from brimful.fleet.node import Node
from brimful.language import say
from brimful.sim.traces.reading import MAX_GPUS, Row, Trace, saving_job
from brimful.sim.world import SITE, Arrival
from brimful.units import HOUR_S

PREFIX = "synthetic:"
MAX_JOBS = 5_000_000
NODE_GPUS = 8
DAY_S = 24 * HOUR_S
# GPUs of a gang -> per mille of jobs.
SIZES = {1: 931.67, 2: 22.10, 4: 22.74, 8: 19.98, 16: 2.50, 32: 0.90, 64: 0.07, 128: 0.04}
PROBABILITIES = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99, 1.0)
# GPUs of a gang -> run time in seconds at those probabilities; larger gangs run as 16 do.
RUN_S = {
    1: (1, 62, 122, 1117, 2716, 8512, 135404, 3256045),
    2: (1, 11, 16, 21, 76, 73625, 526030, 2582803),
    4: (1, 138, 772, 17431, 89422, 184519, 908661, 2750674),
    8: (1, 216, 1871, 23683, 173288, 352409, 1066894, 4628226),
    16: (1, 51, 380, 52548, 167367, 341346, 1369876, 1710643),
}
DEFAULTS = {"jobs": "1000", "gpus": "64", "load": "0.9", "seed": "0", "tenants": "10"}


def generate(shape: str, options: dict[str, str]) -> Trace:
    if shape != "philly":
        raise BadInput(say("sim.synthetic_unknown", shape=shape))
    row = Row(f"{PREFIX}{shape}", {**DEFAULTS, **options})
    jobs = row.integer("jobs", low=1, high=MAX_JOBS)
    gpus = row.integer("gpus", low=1, high=MAX_GPUS)
    tenants = row.integer("tenants", low=1, high=MAX_GPUS)
    load = row.number("load", low=0.001, high=1000)
    rng = Random(row.integer("seed", low=0, high=2**31))  # noqa: S311 - not for secrets
    sizes = [size for size in SIZES if size <= gpus]
    shares = list(accumulate(SIZES[size] for size in sizes))
    drawn = []
    for _ in range(jobs):
        size = sizes[min(bisect_right(shares, rng.random() * shares[-1]), len(sizes) - 1)]
        drawn.append((size, _run_s(min(size, 16), rng.random())))
    span_s = sum(size * run_s for size, run_s in drawn) / (load * gpus)
    times = sorted(_at_s(rng, span_s) for _ in range(jobs))
    arrivals = [
        Arrival(
            at_s=int(at_s),
            job=saving_job(
                job=f"job-{i}", gpus=size, within="any", tenant=f"tenant-{rng.randrange(tenants)}"
            ),
            work_s=run_s,
        )
        for i, (at_s, (size, run_s)) in enumerate(zip(times, drawn, strict=True))
    ]
    return Trace(format=row.where, arrivals=arrivals, nodes=_nodes(gpus))


def _nodes(gpus: int) -> list[Node]:
    sizes = [NODE_GPUS] * (gpus // NODE_GPUS) + [gpus % NODE_GPUS] * (gpus % NODE_GPUS > 0)
    return [
        Node(site=SITE, node=f"node-{i}", gpu="gpu", gpus=size, microusd_per_gpu_hour=0, declared=True)
        for i, size in enumerate(sizes)
    ]


def _run_s(size: int, probability: float) -> int:
    """Between two published quantiles, the logarithm of the run time is linear."""
    times = RUN_S[size]
    i = min(bisect_right(PROBABILITIES, probability), len(PROBABILITIES) - 1)
    low, high = PROBABILITIES[i - 1], PROBABILITIES[i]
    part = (probability - low) / (high - low)
    return max(1, round(exp(log(times[i - 1]) * (1 - part) + log(times[i]) * part)))


def _at_s(rng: Random, span_s: float) -> float:
    """A moment of the span, more likely in the afternoon: drawn uniformly, accepted by hour."""
    while True:
        at_s = rng.random() * span_s
        # The cosine peaks at 16:30 and runs from 0.19 to 1.73 around a mean of 0.96.
        rate = 0.96 + 0.77 * cos(2 * pi * (at_s / DAY_S - 16.5 / 24))
        if rng.random() * 1.73 < rate:
            return at_s
