"""The real loop above a Slurm of many nodes, and beside one whose controller goes away.

    python -m bench.slurm_scale 200 2000     nodes and leases; about ten minutes on two cores, 10 GiB

The leases are real batch jobs on real slurmd. A shell script stands in for each rank: two thousand Python
runners would need 28 GiB of memory on this machine, which on a cluster is two hundred.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.slurm.engine import slurm_site
from brimful.adapters.sites import Site, Surroundings
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.ports import Engine
from brimful.scheduler.rules import Rules
from brimful.server.service.service import Service
from tests.engines.slurm_cluster import Cluster

LIMIT_S = 1200.0
STEADY_S = 60.0
AWAY_S = 20.0
# What the engine calls as `python -P -m brimful.adapters.engines.slurm.rank FOLDER`, and what it reads back.
RANK = """#!/bin/sh
for folder; do :; done
cd "$folder/ranks/0" || exit 1
rm -f order.json
echo "{\\"at_s\\": $(date +%s), \\"pid\\": $$, \\"speed\\": 1.0, \\"checkpoints\\": \\"\\"}" > started.json
echo "{\\"group\\": $$, \\"born\\": \\"\\", \\"resumes_s\\": 0}" > child.json
exec sleep 100000
"""


@dataclass
class Ticks:
    """How long each took, in wall and CPU seconds."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def p99(self, those: Sequence[float]) -> float:
        return sorted(those)[int(0.99 * (len(those) - 1))] if those else 0.0


class Loop:
    """A server's loop in this process, with a timer on every tick."""

    def __init__(self, folder: Path, engines: Sequence[Engine]) -> None:
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        self.service = Service(self.store, engines, Rules())
        self.ticks = Ticks()
        tick = self.service.driver.tick

        def timed() -> object:
            began, used_s = time.monotonic(), time.thread_time()
            try:
                return tick()
            finally:
                self.ticks.wall_s.append(time.monotonic() - began)
                self.ticks.cpu_s.append(time.thread_time() - used_s)

        self.service.driver.tick = timed  # type: ignore[method-assign, assignment]

    def __enter__(self) -> Loop:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()
        self.store.close()

    def submit(self, count: int, *, sites: Sequence[str] = ()) -> list[str]:
        job = Job(job="", gpus=1, command=("sleep", "100000"), folder="/", sites=tuple(sites))
        return [self.service.submissions.submit(job).job.job for _ in range(count)]

    def running(self) -> int:
        with self.service.reader.locked():
            leases = self.service.reader.fleet.open_leases.values()
            return sum(each.started_s is not None for each in leases)

    def ended(self) -> int:
        """Leases of endless jobs that are over."""
        with self.service.reader.locked():
            states = self.service.reader.fleet.jobs.values()
            return sum(lease.ended_s is not None for state in states for lease in state.leases)

    def worker_cpu_s(self, site: str) -> float:
        """Of its thread, and of all the commands that it ran: nothing else here starts any."""
        worker = next(each for each in self.service.driver._workers if each.site == site)
        fields = (
            Path(f"/proc/self/task/{worker._thread.native_id}/stat").read_text().rpartition(")")[2].split()
        )
        own_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own_s + children.ru_utime + children.ru_stime


def until(check: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > LIMIT_S:
            raise AssertionError(f"{what}: not after {LIMIT_S:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began


@contextmanager
def a_cluster(folder: Path, groups: Sequence[tuple[str, int, str, int]]) -> Iterator[tuple[Cluster, Engine]]:
    cluster = Cluster(groups, more={"JobCompType": "jobcomp/none"})
    os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
    played = folder / "rank"
    played.write_text(RANK)
    played.chmod(0o755)
    site = Site(
        site="hpc", engine="slurm", options={"partition": "low", "python": str(played), "pending_s": 3600}
    )
    given = Surroundings(folder=folder / "leases", log_bytes=1 << 20, microusd_per_gpu_hour=1)
    try:
        yield cluster, slurm_site(site, given)
    finally:
        cluster.close()


def many(nodes: int, leases: int) -> Iterator[tuple[str, float]]:
    """The cost of starting them all, and of having them."""
    with tempfile.TemporaryDirectory() as name:
        folder, gpus = Path(name), -(-leases // nodes)
        began = time.monotonic()
        with a_cluster(folder, [("n-", nodes, "a100", gpus)]) as (_, engine), Loop(folder, [engine]) as loop:
            yield "up_s", time.monotonic() - began
            loop.submit(leases)
            yield "all_running_s", until(lambda: loop.running() == leases, "running")
            yield "starting_tick_p99_s", loop.ticks.p99(loop.ticks.wall_s)
            yield "starting_tick_cpu_p99_s", loop.ticks.p99(loop.ticks.cpu_s)
            loop.ticks = Ticks()
            began, used_s = time.monotonic(), loop.worker_cpu_s("hpc")
            time.sleep(STEADY_S)
            yield "worker_share", (loop.worker_cpu_s("hpc") - used_s) / (time.monotonic() - began)
            yield "ticks", len(loop.ticks.wall_s)
            yield "tick_p99_s", loop.ticks.p99(loop.ticks.wall_s)
            yield "tick_cpu_p99_s", loop.ticks.p99(loop.ticks.cpu_s)
            yield "ended", loop.ended()


def away() -> Iterator[tuple[str, float]]:
    """The controller is away for twenty seconds, beside a site that keeps running."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = Node(site="desk", node="desk-0", gpu="slot", gpus=4, microusd_per_gpu_hour=1, declared=True)
        desk = LocalEngine(folder / "desk", [node], site="desk")
        with (
            a_cluster(folder, [("n-", 4, "a100", 8)]) as (cluster, engine),
            Loop(folder, [engine, desk]) as loop,
        ):
            loop.submit(16, sites=["hpc"])
            until(lambda: loop.running() == 16, "running")
            cluster.end_controller()
            loop.ticks = Ticks()
            time.sleep(AWAY_S / 2)
            others = loop.submit(2, sites=["desk"])
            yield "desk_running_s", until(lambda: loop.running() == 18, "the other site's")
            time.sleep(AWAY_S / 2)
            yield "ticks", len(loop.ticks.wall_s)
            yield "longest_tick_s", max(loop.ticks.wall_s)
            yield "longest_tick_cpu_s", max(loop.ticks.cpu_s)
            cluster.start_controller()
            cluster.wait_until_up()
            until(lambda: not loop.service.reader.health.problems, "found again")
            yield "running_after", loop.running()
            yield "ended", loop.ended()
            for job in others:
                loop.service.submissions.cancel(job)
            until(lambda: loop.running() == 16, "the other site's end")


def main(nodes: int, leases: int) -> None:
    for what, found in (*away(), *many(nodes, leases)):
        print(f"{what:24} {found:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
