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
from brimful.errors import WorldFailed
from brimful.fleet.state import Node
from tests.builders import eventually
from tests.conftest import missing
from tests.engines.labs import NODES, Lab, sigterm
from tests.patience import PATIENCE_S

PORT = 6390  # of the namespace, where nobody else is
SETTINGS = {  # its health checks are as Ray has them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default its workers wait for everything else on a busy machine
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


# What every Python of a node reads first: its clock is as far ahead as a file says.
CLOCK = """
import time
from pathlib import Path
by, real = Path(__file__).parent / "ahead", time.time
time.time = lambda: real() + (float(by.read_text()) if by.exists() else 0.0)
"""
# One that was lost may be called alive for some seconds more, beside the one that has its name now.
NODE_ID = """
import sys, time, ray
def node_id(name):
    while len(ids := [n["NodeID"] for n in ray.nodes() if n["NodeName"] == name and n["Alive"]]) != 1:
        time.sleep(0.1)
    return ids[0]
"""
# Holds one GPU of each node that it is told of, in the order in which it is told.
STRANGER = f"""{NODE_ID}
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init("127.0.0.1:{{port}}", _node_ip_address="127.0.0.1", log_to_driver=False)
def hold(): time.sleep(10000)
for line in sys.stdin:
    node = node_id(line.strip())
    ray.remote(hold).options(num_gpus=1, num_cpus=0, scheduling_strategy=On(node, soft=False)).remote()
"""
DRAIN = f"""{NODE_ID}
from ray._raylet import GcsClient
ray.init("127.0.0.1:{{port}}", _node_ip_address="127.0.0.1", log_to_driver=False)
node = node_id(sys.argv[1])
preempted = 2  # DRAIN_NODE_REASON_PREEMPTION
until_ms = int(time.time() + 60) * 1000
print(GcsClient(address="127.0.0.1:{{port}}").drain_node(node, preempted, "by a test", until_ms))
"""


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
        self.ahead = folder / "clock" / "ahead"  # by how many seconds the clocks of Python are
        self.ahead.parent.mkdir(exist_ok=True)
        (self.ahead.parent / "sitecustomize.py").write_text(CLOCK)
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

    def begin_again(self) -> None:
        """A head without its memory, and nodes that join it anew."""
        for name in list(self._nodes):
            self.lose(name)
        self.begin()

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
                    env={**os.environ, **SETTINGS, "PYTHONPATH": str(self.ahead.parent)},
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
    faults = frozenset(
        {
            "engine_gone",
            "stop_waits",
            "node_lost",
            "preempted",
            "skewed_clock",
            "pending",
            "told_by_others",
        }
    )
    cluster: RayCluster  # one for all scenarios: it takes half a minute
    idle_s = 3600.0

    def __init__(self, folder: Path) -> None:
        self._stranger: subprocess.Popen[str] | None = None
        self._held = 0
        self._drained: list[str] = []
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
        settings = Settings(
            f"127.0.0.1:{PORT}",
            f"brimful-{self.folder.name}",
            str(self.folder / "nodes"),
            node,
            {},
            "127.0.0.1",
            self.idle_s,
        )
        return RayEngine(self.folder / "leases", settings, through=self.cluster.through)

    def log(self, lease: str = "a.1", *, rank: int = 0) -> Sequence[str]:
        found: list[Sequence[str]] = []

        def is_answered() -> bool:
            with contextlib.suppress(WorldFailed):  # an agent that does not answer in time is asked again
                found.append(super(RayLab, self).log(lease, rank=rank))
            return bool(found)

        eventually(is_answered)
        return found[0]

    def occupy(self, node: str, gpu: int) -> None:
        if self._stranger is None:
            self._stranger = subprocess.Popen(self._python(STRANGER), stdin=subprocess.PIPE, text=True)
        assert self._stranger.stdin is not None
        print(node, file=self._stranger.stdin, flush=True)
        self._held += 1
        wanted = min(self._held, 4)  # all on one node
        eventually(lambda: sum(len(each.taken) for each in self.engine.nodes()) >= wanted)

    def _python(self, code: str, *given: str) -> Sequence[str]:
        return [*self.cluster.through, sys.executable, "-c", code.format(port=PORT), *given]

    def vacate(self) -> None:
        if self._stranger is not None:
            self._stranger.kill()
            self._stranger.communicate()
            eventually(lambda: not any(each.taken for each in self.engine.nodes()))
        self._stranger, self._held = None, 0

    def engine_goes(self) -> None:
        self.cluster.lose("head")

    def engine_returns(self) -> None:
        self.cluster.begin_again()

    def lose_node(self, node: str) -> None:
        self.cluster.lose(node)

    def node_returns(self, node: str) -> None:
        self.cluster.join(node)

    def preempt(self, node: str) -> None:
        """What an autoscaler does when its cloud takes the machine back in a minute."""
        said = subprocess.run(self._python(DRAIN, node), capture_output=True, text=True, check=True)
        assert "(True," in said.stdout, said.stdout
        self._drained.append(node)

    def tell_by_others(self, lease: str) -> None:
        sigterm(self.folder, lease)

    def start_ahead(self, code: str, *, by_s: int) -> None:
        self.cluster.ahead.write_text(str(by_s))
        self.start(code)

    def close(self) -> None:
        self.cluster.ahead.unlink(missing_ok=True)
        self.vacate()
        super().close()
        for node in self._drained:
            self.cluster.lose(node)
            self.cluster.join(node)
        for engine in (*self.gone, self.engine):
            assert isinstance(engine, RayEngine)
            engine.close()
