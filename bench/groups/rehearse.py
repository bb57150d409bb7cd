"""A server that rehearses its own past: how soon it follows a change of load, how often it follows chance.

    make bench ARGS=rehearse    three lives of six days and a hundred of five days: about 15 CPU minutes

`BRIMFUL_SEEDS` is the number of lives with unchanged load (100).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.document import markdown
from bench.measure import CALIBRATION, Benchmark, body, calibration
from bench.rehearsing import LOOK_S, Life, a_load, live
from brimful.scheduler.policies import CANDIDATES
from brimful.sim.fleets import parse_fleet
from brimful.units import DAY_S, HOUR_S

TITLE = "A server rehearses its own past"
TABLES = ("rehearse-changed", "rehearse-unchanged")
GOOD, BAD, *OTHERS = CANDIDATES
CHANGES = ((2.25, "good"), (2, "bad"), (1.75, "good"))  # in the morning, before a busy day
LOAD = 0.85
SPREAD = 1.5  # chosen, not measured: between a memoryless load (0) and the heaviest of Philly's clusters
LIVES = 3
# Kind of predictions -> the policy that is best for it in the long run, and the others.
UNCHANGED = {"good": (GOOD, BAD, *OTHERS), "bad": (BAD, GOOD, *OTHERS), "none": (GOOD, *OTHERS)}


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="two days of 8 GPUs, two policies",
        subject=body(lambda: changed(0, gpus=8, days=((1, "good"), (1, "bad")), policies=(GOOD, BAD))),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def changed(
    seed: int,
    *,
    gpus: int = 16,
    days: tuple[tuple[float, str], ...] = CHANGES,
    policies: tuple[str, ...] = CANDIDATES,
) -> Life:
    """Predictions are good, then misleading, then good again."""
    until_s = int(DAY_S * sum(each for each, _ in days))
    arrivals = a_load(days, seed=seed, gpus=gpus, load=LOAD, spread=SPREAD)
    return live(arrivals, parse_fleet(f"{gpus // 8}x8"), policies, until_s=until_s)


def unchanged(seed: int) -> tuple[str, Life]:
    kind = list(UNCHANGED)[seed % len(UNCHANGED)]
    arrivals = a_load(((5, kind),), seed=seed, gpus=8)
    return kind, live(arrivals, parse_fleet("1x8"), UNCHANGED[kind], until_s=5 * DAY_S, look_s=2 * LOOK_S)


def tables() -> dict[str, str]:
    rows = []
    for seed in range(LIVES):
        life = changed(seed)
        said = "; ".join(
            f"{each.at_s / HOUR_S:.0f} h: {each.after} (gain {each.why.gain:.0%}, at least {least:.0%})"
            for each in life.switches
            for least in [each.why.least_gain]
        )
        rows.append([str(seed), said, str(life.looks), f"{life.cpu_s / life.looks:.2f}"])
    seeds = int(os.environ.get("BRIMFUL_SEEDS", "100"))
    lives = [unchanged(seed) for seed in range(seeds)]
    counts = [
        [
            kind,
            str(len(mine := [life for found, life in lives if found == kind])),
            str(sum(life.looks for life in mine)),
            str(sum(len(life.switches) for life in mine)),
        ]
        for kind in UNCHANGED
    ]
    return {
        "rehearse-changed": markdown(["seed", "changes of policy", "rehearsals", "CPU s each"], rows),
        "rehearse-unchanged": markdown(["predictions", "lives", "rehearsals", "changes of policy"], counts),
    }
