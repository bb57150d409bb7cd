"""The scenarios' lab of Slurm: one private cluster for all tests of a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.slurm.commands import Commands
from brimful.adapters.engines.slurm.engine import SlurmEngine
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.text import JobRow, Span
from brimful.adapters.sites import Site
from tests.conftest import missing
from tests.engines.labs import ALONE, Lab
from tests.engines.slurm_cluster import LOSES_NODES, REMEDY, Cluster, is_missing, wait_until

_CLUSTERS: list[Cluster] = []


def the_cluster() -> Cluster:
    if not _CLUSTERS:
        if lacks := is_missing():
            missing(f"Slurm ({lacks})", REMEDY)
        _CLUSTERS.append(Cluster())
    return _CLUSTERS[0]


def close_clusters() -> None:
    while _CLUSTERS:
        _CLUSTERS.pop().close()


class Ahead(Commands):
    """A controller whose clock is ahead."""

    def __init__(self, partition: str, *, by_s: int) -> None:
        super().__init__(partition)
        self._by_s = by_s

    def clock_s(self) -> int | None:
        said_s = super().clock_s()
        return None if said_s is None else said_s + self._by_s

    def jobs(self, prefix: str) -> list[JobRow]:
        return [
            row._replace(span=Span(*(None if at_s is None else at_s + self._by_s for at_s in row.span)))
            for row in super().jobs(prefix)
        ]


class SlurmLab(Lab):
    ahead_s = 0
    faults = frozenset(
        {
            "engine_gone",
            "stop_without_engine",
            "node_lost",
            "preempted",
            "skewed_clock",
            "pending",
            "held_back",
            "told_by_others",
            "crowd",
        }
    )

    def __init__(
        self, folder: Path, *, notices: str = "", cluster: Cluster | None = None, **options: object
    ) -> None:
        self.notices = notices
        self.cluster = cluster or the_cluster()
        self.options = SlurmOptions(partition="low", **options)  # type: ignore[arg-type]
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("SLURM_CONF", self.cluster.env["SLURM_CONF"])
        super().__init__(folder)

    def new_engine(self) -> SlurmEngine:
        made = SlurmEngine(
            self.folder / "leases",
            Ahead(self.options.partition, by_s=self.ahead_s),
            self.options,
            site=Site(site="hpc", engine="slurm", notices=self.notices),
            microusd_per_gpu_hour=2_000_000,
            log_bytes=1 << 20,
        )
        made.nodes()
        return made

    def occupy(self, node: str, gpu: int) -> None:
        job = self.cluster.stranger("-w", node, "--gres=gpu:1")
        wait_until(lambda: self.cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")

    def vacate(self) -> None:
        self.cluster.run("scancel", "--name=stranger")
        wait_until(lambda: not self.cluster.run("squeue", "-h", "--name=stranger"))

    def engine_goes(self) -> None:
        self.cluster.end_controller()
        self.cluster.configure(MessageTimeout=1)  # or each command would wait for it

    def engine_returns(self) -> None:
        self.cluster.configure()
        self.cluster.start_controller()
        self.cluster.wait_until_up()

    def lose_node(self, node: str) -> None:
        self.cluster.kill(node)
        self.cluster.reconfigure(**LOSES_NODES)

    def node_returns(self, node: str) -> None:
        self.cluster.reconfigure()
        self.cluster.start_node(node)
        self.cluster.wait_until_up()

    def preempt(self, node: str) -> None:
        """Somebody whose partition goes first wants the whole node."""
        self.cluster.stranger("-w", node, "--gres=gpu:8", partition="high")

    def hold_back(self, node: str) -> None:
        """Somebody has its cores and none of its GPUs."""
        job = self.cluster.stranger("-w", node, "-n", "64")
        wait_until(lambda: self.cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")

    def let_go(self, node: str) -> None:
        self.vacate()

    def crowd(self, leases: Sequence[str]) -> int:
        """All on one node: a lease runs on each of its eight GPUs, the others wait in Slurm's queue."""
        self.options = replace(self.options, pending_s=3600)  # or they would be handed back
        self.restart()
        orders = [self.command(("sleep", "3600"), lease, parts=ALONE) for lease in leases]
        assert self.engine.start(orders) == {}
        return 8

    def tell_by_others(self, lease: str) -> None:
        """As with `--signal` of `sbatch`, or an administrator's `scancel`: Slurm calls the job completed."""
        job = json.loads((self.folder / "leases" / lease / "submitted.json").read_text())["job"]
        self.cluster.run("scancel", "--full", "--signal=TERM", job)

    def start_ahead(self, code: str, *, by_s: int) -> None:
        """As a controller says it whose clock is so far ahead."""
        self.ahead_s = by_s
        self.restart()
        self.start(code)

    def close(self) -> None:
        try:
            self.cluster.configure()
            if not self.cluster.is_up("slurmctld"):
                self.cluster.start_controller()
            for node in self.cluster.nodes:
                if not self.cluster.is_up(node):
                    self.cluster.start_node(node)
            self.cluster.run("scontrol", "reconfigure")
            self.cluster.wait_until_up()
            self.vacate()
            super().close()
            wait_until(lambda: not self.cluster.run("squeue", "-h"))
            self.cluster.wait_until_up()
        finally:
            self.patch.undo()
