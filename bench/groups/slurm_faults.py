"""The effect of strangers, Slurm itself and lost nodes on our leases, and how soon it is noticed.

    make bench ARGS=slurm_faults       about a minute and a half; needs root and Debian's Slurm

Wall seconds. The first two ask the engine, like one look; the others use the real loop, from the event at
Slurm to the lease's end in the log.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.document import judged, markdown
from bench.groups.engines import Bench, Figure, a_bench, seconds
from bench.measure import Benchmark
from bench.slurm_scale import Loop, until
from brimful.fleet.job import Job
from brimful.fleet.lease import Lease
from brimful.scheduler.ports import Observation
from tests.engines.slurm_cluster import LOSES_NODES, is_missing
from tests.engines.test_conformance import POLITE

TITLE = "Slurm: what happens to leases (wall seconds)"
TABLES = ("slurm-faults",)


def benchmarks() -> Iterator[Benchmark]:
    yield from ()


def tables() -> dict[str, str]:
    if lacks := is_missing():
        print(f"the Slurm figures were not measured: {lacks} is missing", file=sys.stderr)
        return {}
    with a_bench() as bench:
        found = [*_beside_a_stranger(bench), *_under_the_loop(bench)]
    rows = [[each.what, each.found, judged(each.bar, is_met=each.is_met)] for each in found]
    return {"slurm-faults": markdown(["Slurm 22.05, fake GPUs, one machine", "measured", "bar"], rows)}


def _beside_a_stranger(bench: Bench) -> Iterator[Figure]:
    cluster = bench.cluster
    job = cluster.stranger("-w", "n-0", "--gres=gpu:a100:6")
    until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", "a stranger's")
    looks, taken = 0, 0
    while taken != 6:
        looks += 1
        taken = next(len(node.taken) for node in bench.engine.nodes() if node.node == "n-0")
    yield Figure("a stranger takes 6 of 8 GPUs: looks until seen", str(looks), "1", looks == 1)
    orders = bench.orders([(("n-0", (0, 1, 2)),)])  # one more than exists
    began = time.monotonic()
    assert not bench.engine.start(orders)
    over: list[Observation] = []
    while not over:
        bench.engine.nodes()
        over = [each for each in bench.engine.observe([orders[0].lease]) if each.state == "ended"]
        time.sleep(0.1)
    assert over[0].cause == "preempted_by_engine"
    yield seconds("a lease behind a stranger: handed back after", time.monotonic() - began, 5.0)
    cluster.run("scancel", "--name=stranger")
    cluster.wait_until_empty()


def _under_the_loop(bench: Bench) -> Iterator[Figure]:
    cluster = bench.cluster
    with tempfile.TemporaryDirectory() as name, Loop(Path(name), [bench.engine]) as loop:
        job = _submit(loop, name)
        first = _running(loop, job, leases=1)
        began = time.monotonic()
        cluster.stranger("-w", first.node, "--gres=gpu:8", partition="high")
        yield seconds("Slurm preempts ours: seen after", _over_after(loop, job, began), 2.0)
        second = _running(loop, job, leases=2)
        failed = loop.service.reader.fleet.jobs[job].failures
        yield Figure("and goes on elsewhere: retries used", str(failed), "0", not failed)
        cluster.reconfigure(**LOSES_NODES)
        began = time.monotonic()
        cluster.kill(second.node)
        what = f"slurmd lost (SlurmdTimeout {LOSES_NODES['SlurmdTimeout']} s): lease ended after"
        yield seconds(what, _over_after(loop, job, began, leases=2), 35.0)
        loop.service.submissions.cancel(job)


def _submit(loop: Loop, folder: str) -> str:
    command = (sys.executable, "-c", POLITE)
    job = Job(job="", gpus=8, command=command, folder=folder)
    return loop.service.submissions.submit(job).job.job


def _leases(loop: Loop, job: str) -> list[Lease]:
    with loop.service.reader.locked():
        return list(loop.service.reader.fleet.jobs[job].leases)


def _running(loop: Loop, job: str, *, leases: int) -> Lease:
    until(lambda: len(found := _leases(loop, job)) == leases and found[-1].started_s is not None, "running")
    return _leases(loop, job)[-1]


def _over_after(loop: Loop, job: str, began: float, *, leases: int = 1) -> float:
    while _leases(loop, job)[leases - 1].ended_s is None:
        time.sleep(0.02)
    return time.monotonic() - began
