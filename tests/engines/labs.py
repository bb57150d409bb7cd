"""Where the scenarios run: an engine, and what only the world around it can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Protocol

from brimful.adapters.capabilities import KeepsLogs
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.files import write_json
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.scheduler.ports import Carries, Engine, Failures, Observation, Start
from tests.builders import a_node, eventually

NODES = ("n-0", "n-1")
ALONE: Parts = ((NODES[0], (0,)),)
GANG: Parts = ((NODES[0], (0, 1)), (NODES[1], (1,)))


class TestedEngine(Engine, KeepsLogs, Carries, Protocol):
    """What the scenarios ask of every engine."""


class Lab(ABC):
    """Two nodes, n-0 and n-1, of four GPUs each."""

    faults: ClassVar[frozenset[str]] = frozenset()  # the scenarios' word for each that it can make

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: set[str] = set()
        self.gone: list[TestedEngine] = []
        self.engine = self.new_engine()

    @abstractmethod
    def new_engine(self) -> TestedEngine:
        """As a server that starts makes it: it remembers nothing."""

    @abstractmethod
    def occupy(self, node: str, gpu: int) -> None:
        """Somebody who is not ours uses this GPU, or any one where the engine chooses by count."""

    @abstractmethod
    def vacate(self) -> None: ...

    # Faults. A lab that names one in `faults` can make it.

    def engine_goes(self) -> None:
        raise NotImplementedError

    def engine_returns(self) -> None:
        raise NotImplementedError

    def lose_node(self, node: str) -> None:
        raise NotImplementedError

    def node_returns(self, node: str) -> None:
        raise NotImplementedError

    def preempt(self, node: str) -> None:
        """Somebody more important to the engine wants all of the node."""
        raise NotImplementedError

    def hold_back(self, node: str) -> None:
        """The engine begins nothing on it, and says nothing of GPUs."""
        raise NotImplementedError

    def let_go(self, node: str) -> None:
        raise NotImplementedError

    def tell_by_others(self, lease: str) -> None:
        """Somebody who is not ours sends it SIGTERM: a machine that shuts down, an administrator."""
        raise NotImplementedError

    def start_ahead(self, code: str, *, by_s: int) -> None:
        """Start it on a node whose clock is so far ahead."""
        raise NotImplementedError

    def crowd(self, leases: Sequence[str]) -> int:
        """Order all of these at once. How many of them will run; the others wait in the engine's queue."""
        raise NotImplementedError

    # What the scenarios say.

    def restart(self) -> None:
        """Our server went away and came back; what it knew in memory is gone."""
        self.gone.append(self.engine)
        self.engine = self.new_engine()

    def start(self, code: str, lease: str = "a.1", *, parts: Parts = ALONE, **more: int) -> Failures:
        """Ordered again, as the loop does, while the engine does not answer in time."""
        order, failed = self.order(code, lease, parts=parts, **more), dict[str, BrimfulError]()

        def is_answered() -> bool:
            failed.clear()
            failed.update(self.engine.start([order]))
            return not any(isinstance(error, WorldFailed) for error in failed.values())

        eventually(is_answered)
        return failed

    def order(self, code: str, lease: str = "a.1", *, parts: Parts = ALONE, kept_until_s: int = 0) -> Start:
        return self.command([sys.executable, "-c", code], lease, parts=parts, kept_until_s=kept_until_s)

    def command(
        self, command: Sequence[str], lease: str = "a.1", *, parts: Parts = ALONE, kept_until_s: int = 0
    ) -> Start:
        self.begun.add(lease)
        gpus = sum(len(part) for _, part in parts)
        job = Job(job="a", gpus=gpus, command=tuple(command), folder=str(self.folder))
        return Start(lease, job, parts, kept_until_s=kept_until_s)

    def stop(self, *leases: str, grace_s: int = 600) -> Failures:
        return self.engine.stop(leases, grace_s=grace_s)

    def look(self, lease: str = "a.1") -> Observation | None:
        return next(iter(self.engine.observe([lease])), None)

    def waits_for(self, state: str, lease: str = "a.1") -> Observation:
        last: list[Observation] = []

        def found() -> bool:
            seen = self.look(lease)
            last[:] = [] if seen is None else [seen]
            return seen is not None and seen.state == state

        eventually(found)
        return last[0]

    def log(self, lease: str = "a.1", *, rank: int = 0) -> Sequence[str]:
        return self.engine.log(lease, rank=rank).data.decode().splitlines()

    def facts(self, lease: str = "a.1", *, rank: int = 0) -> Mapping[str, str]:
        """What a rank printed as `name=value` lines."""
        return dict(line.split("=", 1) for line in self.log(lease, rank=rank) if "=" in line)

    def close(self) -> None:
        self.stop(*self.begun, grace_s=1)
        left = set(self.begun)

        def are_over() -> bool:
            seen = self.engine.observe(left)
            left.difference_update(each.lease for each in seen if each.state in ("ended", "absent"))
            return not left

        eventually(are_over)


# The real runner for each folder. In a Python of its own it takes 14 MiB and 0.13 s of CPU, forked 3.7 MiB
# and next to nothing: five hundred at once fit on a small machine.
FORKS = """
import os, signal, sys
from pathlib import Path
from brimful.adapters.engines import runner
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if not os.fork():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os._exit(runner.main(Path(line.strip())))
"""


def sigterm(folder: Path, lease: str) -> None:
    """To the runner of the lease, which is somewhere below this folder."""
    started = next(each for each in folder.rglob("started.json") if lease in each.parts)
    os.kill(json.loads(started.read_text())["pid"], signal.SIGTERM)


class LocalLab(Lab):
    """This machine, and a driver that says who uses its GPUs."""

    faults = frozenset({"told_by_others", "crowd"})

    def __init__(self, folder: Path) -> None:
        self.used: dict[str, set[int]] = {}  # by device, the pids that the driver would name
        super().__init__(folder)

    def new_engine(self) -> LocalEngine:
        nodes = [replace(a_node(name, gpus=4), site="local") for name in NODES]
        devices = {name: [f"{name}-gpu-{i}" for i in range(4)] for name in NODES}
        return LocalEngine(self.folder / "leases", nodes, devices=devices, users=lambda: self.used)

    def occupy(self, node: str, gpu: int) -> None:
        self.used[f"{node}-gpu-{gpu}"] = {1}

    def vacate(self) -> None:
        self.used = {}

    def crowd(self, leases: Sequence[str]) -> int:
        """All run, each under a runner, which one process forks instead of starting Python for each."""
        folders = []
        for lease in leases:
            order, folder = self.command(("sleep", "3600"), lease), self.folder / "leases" / lease
            folder.mkdir()
            assert isinstance(self.engine, LocalEngine)
            write_json(folder / "order.json", self.engine._local_order(order))
            folders.append(f"{folder}\n")
        command = (sys.executable, "-P", "-c", FORKS)
        subprocess.run(command, input="".join(folders), stdout=subprocess.DEVNULL, text=True, check=True)
        return len(leases)

    def tell_by_others(self, lease: str) -> None:
        sigterm(self.folder, lease)

    def close(self) -> None:
        super().close()
        for engine in (*self.gone, self.engine):
            assert isinstance(engine, LocalEngine)
            eventually(lambda engine=engine: not any(map(engine._has_runner, self.begun)))  # type: ignore[misc]
