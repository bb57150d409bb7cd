"""The Slurm engine on a private cluster: lease latency, the cost of a look, what survives kills.

    make bench ARGS=engines       about six minutes; needs root and Debian's Slurm

Wall seconds, since the bars are about waiting. Every figure comes from the run that prints it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.document import judged, markdown
from bench.measure import Benchmark, body
from bench.slurm_kills import AIMED, Outcome, aimed, survive
from bench.slurm_scale import away, many
from brimful.adapters.engines.slurm.commands import Commands
from brimful.adapters.engines.slurm.engine import SlurmEngine
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.text import jobs_from
from brimful.adapters.sites import Site
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.scheduler.ports import Observation, Start
from tests.engines.slurm_cluster import Cluster, is_missing

TITLE = "Slurm (wall seconds)"
TABLES = ("slurm",)
SLEEPS = ("sleep", "600")
DEAF = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
LIMIT_S = 120.0
FOREIGN = 1000
AT_EACH = 5  # kills at each named moment


class Figure(NamedTuple):
    what: str
    found: str
    bar: str
    is_met: bool


def benchmarks() -> Iterator[Benchmark]:
    """The cost of a look beyond `squeue` itself; the table below includes `squeue`."""
    line = "RUNNING|n-1|gres:gpu:a100:1|0|2026-01-01T00:00:00|N/A|None|brimful:here:job-1.1"
    ours = "\n".join(f"{job}|{job}|{line}" for job in range(1, 1_001))
    yield Benchmark(
        name="read squeue's 1,000 lines, all of them ours",
        subject=body(lambda: list(jobs_from(ours, prefix="brimful:"))),
        peer_name="split them",
        peer=body(lambda: [line.split("|", 9) for line in ours.splitlines()]),
    )


def tables() -> dict[str, str]:
    if lacks := is_missing():
        print(f"the Slurm figures were not measured: {lacks} is missing", file=sys.stderr)
        return {}
    found = [*_on_four_nodes(), *_with_kills(), *_at_scale()]
    rows = [[each.what, each.found, judged(each.bar, is_met=each.is_met)] for each in found]
    return {"slurm": markdown(["Slurm 22.05, fake GPUs, one machine", "measured", "bar"], rows)}


class Bench:
    """An engine, and how long it takes to see what was ordered."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
        self.cluster, self.folder, self.leases = cluster, folder, 0
        options = SlurmOptions(partition="low")
        self.engine = SlurmEngine(
            folder,
            Commands("low"),
            options,
            site=Site(site="hpc", engine="slurm"),
            microusd_per_gpu_hour=1,
            log_bytes=1 << 20,
        )
        self.engine.nodes()

    def orders(self, places: Sequence[Parts], command: Sequence[str] = SLEEPS) -> list[Start]:
        made = []
        for parts in places:
            self.leases += 1
            gpus = sum(len(some) for _, some in parts)
            job = Job(job=f"j{self.leases}", gpus=gpus, command=tuple(command), folder="/")
            made.append(Start(f"j{self.leases}.1", job, parts))
        return made

    def start(self, places: Sequence[Parts], command: Sequence[str] = SLEEPS) -> tuple[list[str], float]:
        """The leases, and how long until all are seen running."""
        orders = self.orders(places, command)
        began = time.monotonic()
        failed = self.engine.start(orders)
        assert not failed, failed
        leases = [each.lease for each in orders]
        self.until(leases, "running")
        return leases, time.monotonic() - began

    def stop(self, leases: Sequence[str], *, grace_s: int = 600) -> float:
        began = time.monotonic()
        self.engine.stop(leases, grace_s=grace_s)
        self.until(leases, "ended")
        return time.monotonic() - began

    def until(self, leases: Sequence[str], state: str) -> list[Observation]:
        left, seen = set(leases), list[Observation]()
        until = time.monotonic() + LIMIT_S
        while left:
            found = [each for each in self.engine.observe(left) if each.state == state]
            left -= {each.lease for each in found}
            seen += found
            assert time.monotonic() < until, f"{len(left)} of {len(leases)} are not {state}"
            if left:
                time.sleep(0.02)
        return seen


@contextmanager
def a_bench(*groups: tuple[str, int, str, int], **settings: object) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(groups, more=settings) if groups else Cluster(more=settings)
        try:
            yield Bench(cluster, Path(folder) / "leases")
        finally:
            cluster.close()


def _on_four_nodes() -> Iterator[Figure]:
    with a_bench() as bench:
        sizes = {node.node: node.gpus for node in bench.engine.nodes()}
        ones: list[Parts] = [((name, (gpu,)),) for name, gpus in sizes.items() for gpu in range(gpus)]
        leases, took_s = bench.start(ones)
        yield seconds("24 one-GPU leases, order to all running", took_s, 5.0)
        places = _places(bench)
        planned = {lease: parts[0][0] for lease, parts in zip(leases, ones, strict=True)}
        astray = sum(places[lease] != node for lease, node in planned.items())
        yield Figure("of these, on another node than chosen", str(astray), "0", is_met=not astray)
        shared = _shared(bench, leases, places)
        yield Figure("GPUs with two tenants", str(shared), "0", is_met=not shared)
        yield seconds("24 cooperative stops at once", bench.stop(leases), None)
        gang, took_s = bench.start([(("n-0", tuple(range(8))), ("n-1", tuple(range(8))))])
        yield seconds("gang of 2 x 8, order to both ranks running", took_s, 3.0)
        bench.stop(gang)
        single, _ = bench.start([(("n-0", (0,)),)])
        yield seconds("cooperative stop", bench.stop(single), 1.0)
        deaf, _ = bench.start([(("n-0", (0,)),)], DEAF)
        time.sleep(0.5)
        yield seconds("deaf job gone, grace 2 s", bench.stop(deaf, grace_s=2), 4.0)
        yield from _beside_strangers(bench)


def _places(bench: Bench) -> dict[str, str]:
    """Where Slurm runs each lease, whatever was planned."""
    lines = bench.cluster.run("squeue", "-h", "-t", "running", "-o", "%j|%N").splitlines()
    rows = (line.rpartition("|") for line in lines)
    return {name.rpartition(":")[2]: node for name, _, node in rows}


def _shared(bench: Bench, leases: Sequence[str], places: Mapping[str, str]) -> int:
    """GPUs on one node that the processes of two leases see."""
    seen: set[tuple[str, str]] = set()
    doubled = 0
    for lease in leases:
        child = next(iter((bench.folder / lease / "ranks" / "0").glob("child.json")))
        group = int(child.read_text().split('"group": ')[1].split(",")[0])
        environ = Path(f"/proc/{group}/environ").read_bytes().split(b"\0")
        devices = next(each for each in environ if each.startswith(b"CUDA_VISIBLE_DEVICES=")).decode()
        doubled += (places[lease], devices) in seen
        seen.add((places[lease], devices))
    return doubled


def _beside_strangers(bench: Bench) -> Iterator[Figure]:
    cluster = bench.cluster
    cluster.run("sbatch", "-p", "low", "-J", "stranger", "-o", "/dev/null", "--gres=gpu:a100:8", "-N2",
                "--wrap=exec sleep 3600")  # fmt: skip
    # Jobs of their own: Slurm shows an array that waits as one line.
    for _ in range(FOREIGN):
        cluster.run("sbatch", "-p", "low", "-J", "stranger", "-o", "/dev/null", "--gres=gpu:a100:8",
                    "--wrap=exec sleep 3600")  # fmt: skip
    lines = len(cluster.run("squeue", "-h", "--name=stranger").splitlines())
    assert lines == FOREIGN + 1, lines
    times = []
    for _ in range(30):
        began = time.monotonic()
        bench.engine.nodes()
        bench.engine.observe([])
        times.append(time.monotonic() - began)
    yield seconds("one look beside 1,000 foreign jobs, median", statistics.median(times), 0.15)
    cluster.run("scontrol", "update", "partitionname=low", "state=DOWN")  # they queue and never start
    orders = bench.orders([(("v-0", (0,)),)] * 200)
    began = time.monotonic()
    failed = bench.engine.start(orders)
    took_s = time.monotonic() - began
    assert not failed, next(iter(failed.values()))
    a_second = len(orders) / took_s
    yield Figure("submits a second", f"{a_second:.0f}", "≥ 40", a_second >= 40)
    bench.engine.stop([each.lease for each in orders], grace_s=1)
    cluster.run("scancel", "--name=stranger")


def _with_kills() -> Iterator[Figure]:
    with a_bench() as bench:
        outcome = survive(bench.cluster, kills=50, seed=1)
        yield _killed("around sbatch and scancel, at random", outcome)
        outcome = aimed(bench.cluster, each=AT_EACH)
        yield _killed("at named moments", outcome)
    for moment in AIMED:
        found = outcome.hits[moment]
        yield Figure(f"of these, {moment}", str(found), f"≥ {AT_EACH}", is_met=found >= AT_EACH)


def _killed(where: str, outcome: Outcome) -> Figure:
    for each in outcome.broken[:5]:
        print(each, file=sys.stderr)
    broken, of = len(outcome.broken), f"{outcome.jobs} jobs, {outcome.runs} leases ran"
    what = f"{outcome.kills} x kill -9 of the server {where}: broken"
    return Figure(what, f"{broken} ({of})", "0", is_met=not broken)


NODES, LEASES = 200, 2000


def _at_scale() -> Iterator[Figure]:
    """Real batch jobs under the real loop; slurm_scale.py says what is simulated."""
    gone = dict(away())
    yield seconds("slurmctld away for 20 s: longest tick", gone["longest_tick_s"], 0.1)
    yield Figure("and leases declared lost", f"{gone['ended']:.0f}", "0", is_met=not gone["ended"])
    found, name = dict(many(NODES, LEASES)), f"{LEASES} leases running on {NODES} nodes"
    yield seconds(f"{name}: tick p99", found["tick_p99_s"], 0.25)
    share = found["worker_share"]
    yield Figure(f"{name}: site worker, share of a core", f"{share:.0%}", "≤ 30%", share <= 0.3)
    yield Figure(f"{name}: leases that ended", f"{found['ended']:.0f}", "0", is_met=not found["ended"])


def seconds(what: str, found_s: float, bar_s: float | None) -> Figure:
    bar = "" if bar_s is None else f"≤ {bar_s:g} s"
    shown = f"{found_s * 1000:.0f} ms" if found_s < 1 else f"{found_s:.1f} s"
    return Figure(what, shown, bar, bar_s is None or found_s <= bar_s)
