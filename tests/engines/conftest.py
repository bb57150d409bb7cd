"""The engines under test. A new engine is one more class here: the scenarios stay the same for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.scheduler.ports import Failures, Observation, Start
from tests.builders import a_node, eventually

NODES = ("n-0", "n-1")
ALONE: Parts = ((NODES[0], (0,)),)
GANG: Parts = ((NODES[0], (0, 1)), (NODES[1], (1,)))


class LocalSite:
    """Two nodes of four GPUs on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: dict[str, set[int]] = {}  # by device, the pids that the driver would name
        self.begun: set[str] = set()
        self.gone: list[LocalEngine] = []
        self.engine = self._new()

    def restart(self) -> None:
        """Our server went away and came back; what it knew in memory is gone."""
        self.gone.append(self.engine)
        self.engine = self._new()

    def _new(self) -> LocalEngine:
        nodes = [replace(a_node(name, gpus=4), site="local") for name in NODES]
        devices = {name: [f"{name}-gpu-{i}" for i in range(4)] for name in NODES}
        return LocalEngine(self.folder / "leases", nodes, devices=devices, users=lambda: self.used)

    def occupy(self, node: str, gpu: int) -> None:
        """Somebody who is not ours uses this GPU."""
        self.used[f"{node}-gpu-{gpu}"] = {1}

    def vacate(self) -> None:
        self.used = {}

    # -- the same for every engine -----------------------------------------------------------------------

    def start(self, code: str, lease: str = "a.1", *, parts: Parts = ALONE, **more: int) -> Failures:
        return self.engine.start([self.order(code, lease, parts=parts, **more)])

    def order(self, code: str, lease: str = "a.1", *, parts: Parts = ALONE, kept_until_s: int = 0) -> Start:
        self.begun.add(lease)
        gpus = sum(len(part) for _, part in parts)
        job = Job(job="a", gpus=gpus, command=(sys.executable, "-c", code), folder=str(self.folder))
        return Start(lease, job, parts, kept_until_s=kept_until_s)

    def stop(self, *leases: str, grace_s: int = 600) -> Failures:
        return self.engine.stop(leases, grace_s=grace_s)

    def look(self, lease: str = "a.1") -> Observation | None:
        return next(iter(self.engine.observe([lease])), None)

    def waits_for(self, state: str, lease: str = "a.1") -> Observation:
        def found() -> bool:
            seen = self.look(lease)
            return seen is not None and seen.state == state

        eventually(found)
        seen = self.look(lease)
        assert seen is not None
        return seen

    def log(self, lease: str = "a.1", *, rank: int = 0) -> Sequence[str]:
        return self.engine.log(lease, rank=rank).data.decode().splitlines()

    def facts(self, lease: str = "a.1", *, rank: int = 0) -> Mapping[str, str]:
        """What a rank printed as `name=value` lines."""
        return dict(line.split("=", 1) for line in self.log(lease, rank=rank) if "=" in line)

    def close(self) -> None:
        self.stop(*self.begun, grace_s=1)
        for lease in self.begun:
            eventually(lambda lease=lease: self._is_over(lease))  # type: ignore[misc]
        for engine in (*self.gone, self.engine):
            eventually(lambda engine=engine: not any(map(engine._has_runner, self.begun)))  # type: ignore[misc]

    def _is_over(self, lease: str) -> bool:
        seen = self.look(lease)
        return seen is not None and seen.state in ("ended", "absent")


ENGINES = {"local": LocalSite}


@pytest.fixture(params=ENGINES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalSite]:
    made = ENGINES[request.param](tmp_path)
    yield made
    made.close()
