"""Elastic gangs: Sia's jobs with its own profiles, with a fixed size and with a range.

    make bench ARGS=elastic    eight windows, six rows each: about two CPU minutes

Needs the data beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data), and the `traces` folder of
Sia's simulator (`BRIMFUL_SIA_PROFILES`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.document import markdown
from bench.groups.traces import DATA, known
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.fleet.job import Job
from brimful.scheduler.policies import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Elastic gangs"
TABLES = ("elastic",)
FLEET = "6x4:t4+2x8:a100-sxm-40gb+3x8:rtx-2080-ti"
PROFILES = Path(os.environ.get("BRIMFUL_SIA_PROFILES", "absent"))
WORKLOADS = DATA / "sia" / "sia_workloads.csv.gz"
WINDOWS = [f"{trace}/workload-{i}" for trace in ("saturn", "philly") for i in range(1, 5)]
# What the jobs may change, and how that is requested.
MODES = {
    "one size, its own batch": "",
    "1 to 16 GPUs, its own batch": "&gpus=1..16",
    "1 to 16 GPUs, batch tuned by size": "&gpus=1..16&batch=tuned",
}
# Sia's simulator on window 1: Gavel's policy in rounds of 360 s, and Sia's own in rounds of 60 s.
PEERS = {"one size, its own batch": "1.798", "1 to 16 GPUs, batch tuned by size": "0.580"}


class Found(NamedTuple):
    mean_h: float
    stops: float  # per job


def benchmarks() -> Iterator[Benchmark]:
    curve = (("", ((1, 1.0), (16, 8.0))),)
    jobs = [
        Job(job=f"j{i}", gpus=1, min_gpus=1, max_gpus=16, curves=curve, checkpoint_interval_s=0, within="any")
        for i in range(100)
    ]
    arrivals = [Arrival(at_s=i * 120, job=job, work_s=3000.0 + i % 7 * 900) for i, job in enumerate(jobs)]
    yield Benchmark(
        name="100 elastic jobs on 64 GPUs of three types",
        subject=body(lambda: found(arrivals)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def found(arrivals: list[Arrival]) -> Found:
    states = rehearse(arrivals, parse_fleet(FLEET), POLICIES["brim"]).fleet.jobs.values()
    ends = [(state.ended_s or 0) - state.submitted_s for state in states]
    return Found(sum(ends) / len(ends) / 3600, sum(state.preemptions for state in states) / len(ends))


def tables() -> dict[str, str]:
    if not WORKLOADS.exists() or not PROFILES.is_dir():
        return {}
    rows = []
    for mode, options in MODES.items():
        for hidden in (True, False):
            runs = []
            for window in WINDOWS:
                source = f"{WORKLOADS}?workload={window}&profiles={PROFILES}{options}"
                arrivals = read([source])[0].arrivals
                runs.append(found(arrivals if hidden else known(arrivals)))
            means = [run.mean_h for run in runs]
            rows.append(
                [
                    f"{mode}, {'hidden' if hidden else 'known'}",
                    f"{means[0]:.3f}",
                    PEERS.get(mode, "") if hidden else "",
                    f"{sum(means[:4]) / 4:.2f}",
                    f"{sum(means[4:]) / 4:.2f}",
                    f"{max(run.stops for run in runs):.1f}",
                ]
            )
    first = ["jobs", "saturn 1, h", "Sia's simulator, h"]
    head = [*first, "saturn 1 to 4, h", "philly 1 to 4, h", "most stops a job"]
    return {"elastic": markdown(head, rows)}
