"""A Ray cluster of our own: a head and two nodes of four made-up GPUs, in a network namespace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.adapters.engines.ray.bridge import Settings
from brimful.adapters.engines.ray.engine import RayEngine
from brimful.fleet.state import Node
from tests.builders import eventually
from tests.conftest import missing
from tests.engines.labs import NODES, Lab
from tests.patience import PATIENCE_S

PORT = 6390  # of the namespace, where nobody else is
QUICK = {  # a node counts as lost after 5 s of silence
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


class RayCluster:
    def __init__(self, folder: Path, *, inside: bool = False) -> None:
        """`inside`: we are in a network namespace already."""
        self.folder = folder
        self._ray = Path(sys.executable).parent / "ray"
        if not self._ray.exists() or os.geteuid() != 0 or shutil.which("nsenter") is None:
            missing("Ray, and root for a network namespace", "tools/setup.sh engines")
        # Short: the names of Ray's sockets are in it, and have 107 characters at most.
        self._temp = tempfile.mkdtemp(prefix="ray")
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.through: list[str] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        if inside:
            return
        self._keeper = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"up\n"
        self.through = ["nsenter", "-t", str(self._keeper.pid), "-n"]

    def begin(self) -> None:
        self._start("head", "--head", f"--port={PORT}", "--include-dashboard=false", "--num-gpus=0")
        for name in NODES:
            self.join(name)

    def join(self, name: str) -> None:
        self._start(name, f"--address=127.0.0.1:{PORT}", "--num-gpus=4")

    def _start(self, name: str, *given: str) -> None:
        """One by one, and again where it fails: on a busy machine a node may give up before it has joined."""
        command = [*self.through, str(self._ray), "start", "--block", "--node-ip-address=127.0.0.1", *given]
        command += [f"--node-name={name}", "--num-cpus=8", "--object-store-memory=80000000"]
        if name == "head":
            command.append(f"--temp-dir={self._temp}")
        log = self.folder / f"{name}.log"
        for _ in range(3):
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **QUICK},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            self._nodes[name] = process
            until_s = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < until_s:
                if b"block forever" in log.read_bytes():
                    return
                time.sleep(0.2)
            self.lose(name)
        raise AssertionError(log.read_text()[-2000:])

    def lose(self, name: str) -> None:
        """The machine is gone, as far as Ray can tell: its processes are killed, and nobody says goodbye."""
        process = self._nodes.pop(name)
        for pid in _below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for name in list(self._nodes):
            self.lose(name)
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
        shutil.rmtree(self._temp, ignore_errors=True)


def _below(pid: int) -> list[int]:
    """The process and all below it; children last. Our runners are not: they are detached."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


@contextlib.contextmanager
def ray_cluster(folder: Path, *, inside: bool = False) -> Iterator[RayCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    made = RayCluster(folder, inside=inside)
    try:
        made.begin()
        yield made
    finally:
        made.end()


class RayLab(Lab):
    faults = frozenset({"node_lost"})
    cluster: RayCluster  # one for all scenarios: it takes half a minute

    def __init__(self, folder: Path) -> None:
        self._strangers: list[subprocess.Popen[bytes]] = []
        super().__init__(folder)

    def new_engine(self) -> RayEngine:
        node = Node(
            site="ray",
            node="",
            gpu="h100",
            gpus=0,
            microusd_per_gpu_hour=0,
            declared=False,
            chosen_by="count",
        )
        space = f"brimful-{self.folder.name}"
        settings = Settings(f"127.0.0.1:{PORT}", space, str(self.folder / "nodes"), node, {}, "127.0.0.1")
        return RayEngine(self.folder / "leases", settings, through=self.cluster.through)

    def occupy(self, node: str, gpu: int) -> None:
        code = (
            "import ray,time\n"
            f"ray.init('127.0.0.1:{PORT}', _node_ip_address='127.0.0.1', log_to_driver=False)\n"
            "def hold(): time.sleep(10000)\n"
            f"i=[n['NodeID'] for n in ray.nodes() if n['NodeName']=={node!r} and n['Alive']][0]\n"
            "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as A\n"
            "ray.get(ray.remote(hold).options(num_gpus=1,num_cpus=0,scheduling_strategy=A(i,soft=False)).remote())"
        )
        self._strangers.append(subprocess.Popen(self._python(code), stdout=subprocess.DEVNULL))
        eventually(lambda: any(each.taken for each in self.engine.nodes()))

    def _python(self, code: str) -> Sequence[str]:
        return [*self.cluster.through, sys.executable, "-c", code]

    def vacate(self) -> None:
        for each in self._strangers:
            each.kill()
            each.wait()
        if self._strangers:
            eventually(lambda: not any(each.taken for each in self.engine.nodes()))
        self._strangers = []

    def lose_node(self, node: str) -> None:
        self.cluster.lose(node)

    def node_returns(self, node: str) -> None:
        self.cluster.join(node)

    def close(self) -> None:
        self.vacate()
        super().close()
        for engine in (*self.gone, self.engine):
            assert isinstance(engine, RayEngine)
            engine.close()
