"""The scenarios' lab of Kubernetes: the API in memory, a scheduler, and kubelets that run Pods as processes.

There are no containers: a Pod's paths are a folder, which its command is told instead of `/brimful`. What a
kubelet does to a Pod is done: signals and grace, the last words, exit codes, logs with moments, and that a
deleted Pod stays until nothing holds it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brimful.adapters.engines.kubernetes.engine import KubernetesEngine
from brimful.adapters.engines.kubernetes.inventory import held
from brimful.adapters.engines.kubernetes.manifests import HERE, NOTICE, name_of, pod_name
from brimful.adapters.engines.kubernetes.options import KubernetesOptions, tolerates
from brimful.adapters.engines.runner import BEGINS
from brimful.adapters.sites import Site
from tests.builders import eventually
from tests.engines.kubernetes_api import OVER, Served, Thing, World, moment
from tests.engines.labs import NODES, Lab

SPACE, GPU = "brimful", "nvidia.com/gpu"
ROUND_S = 0.02


def a_node(name: str, *, gpus: int = 4, **more: Any) -> Thing:
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": {GPU: str(gpus), "cpu": "16"}, "conditions": [ready], **more},
    }


def a_stranger(name: str, node: str, *, gpus: int = 1, priority: int = 0) -> Thing:
    limits = {"limits": {GPU: str(gpus)}}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "priority": priority,
            "terminationGracePeriodSeconds": 0,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
            "containers": [{"name": "x", "image": "sleep", "resources": limits}],
        },
    }


class Container:
    """A Pod's process, and what it printed, each line with its moment."""

    def __init__(self, pod: Thing, world: World, folder: Path) -> None:
        self.folder, self.uid, self.began = folder, pod["metadata"]["uid"], moment()
        for each in ("order", "lease", "told"):
            (folder / each).mkdir(parents=True)
        orders = next(each for each in pod["spec"]["volumes"] if each["name"] == "order")
        for source in orders["projected"]["sources"]:
            for key, body in world.get("secrets", SPACE, source["secret"]["name"])["data"].items():
                (folder / "order" / key).write_bytes(base64.b64decode(body))
        box = pod["spec"]["containers"][0]
        command = [str(folder) if part == HERE else part for part in box["command"]]
        env = {each["name"]: each["value"] for each in box["env"]}
        if env["MASTER_ADDR"].endswith(".svc"):
            env["MASTER_ADDR"] = "127.0.0.1"  # what the cluster's DNS would say, on one machine
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        self.process = subprocess.Popen(
            command,
            env={**kept, **env, "KUBERNETES_SERVICE_HOST": "x", "POD_UID": self.uid},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[tuple[str, bytes]] = []
        self.told, self.killed = False, False
        self.pump = threading.Thread(target=self._pump, daemon=True)
        self.pump.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), line))

    def kill(self) -> None:
        """All of it, as the end of a container is."""
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"POD_UID={self.uid}".encode() in (each / "environ").read_bytes():
                    os.kill(int(each.name), signal.SIGKILL)

    def end(self) -> Thing:
        code = self.process.returncode
        words = (self.folder / "end").read_text() if (self.folder / "end").exists() else ""
        return {
            "exitCode": 128 - code if code < 0 else code,
            "reason": "Completed" if code == 0 else "Error",
            "message": words,
            "startedAt": self.began,
            "finishedAt": moment(),
        }


class Machine(threading.Thread):
    """The scheduler and the kubelets of all nodes, in turns."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(daemon=True)
        self.world, self.folder = world, folder
        self.containers: dict[str, Container] = {}  # by the Pod's uid
        self.lost: set[str] = set()
        self.ahead_s: dict[str, int] = {}  # by Pod, how far the clock is ahead that its runner reads
        self.ends = threading.Event()
        self.trouble: list[BaseException] = []
        world.logs = self.log

    def run(self) -> None:
        while not self.ends.wait(ROUND_S):
            try:
                with self.world.lock:
                    pods = list(self.world.all("pods"))
                    for pod in pods:
                        self._schedule(pod)
                    for pod in pods:
                        if pod["spec"].get("nodeName") not in (None, *self.lost):
                            self._run(pod)
                    self._end_orphans()
            except Exception as error:
                self.trouble.append(error)
                raise

    # -- the scheduler -----------------------------------------------------------------------------------

    def _schedule(self, pod: Thing) -> None:
        spec, meta = pod["spec"], pod["metadata"]
        if spec.get("nodeName") or spec.get("schedulingGates") or meta.get("deletionTimestamp"):
            return
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        name = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        node = self.world.things.get(("nodes", "", name))
        why = "node(s) not found" if node is None else self._why_not(pod, node)
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        if not why:
            scheduled = {"type": "PodScheduled", "status": "True"}
            spec["nodeName"] = name
            pod["status"]["startTime"] = moment()
        if pod["status"].get("conditions") != [scheduled]:
            pod["status"]["conditions"] = [scheduled]
            self.world.touch(pod)

    def _why_not(self, pod: Thing, node: Thing) -> str:
        name = node["metadata"]["name"]
        taints = [
            taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"
        ]
        if any(not tolerates(pod["spec"].get("tolerations") or [], taint) for taint in taints):
            return "node(s) had untolerated taint"
        asked = int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
        here = [each for each in self.world.all("pods") if each["spec"].get("nodeName") == name]
        used = sum(held(here).values())
        if used + asked <= int(node["status"]["allocatable"][GPU]):
            return ""
        for victim in here:  # lower priority makes room
            below = victim["spec"].get("priority", 0) < pod["spec"].get("priority", 0)
            if below and not victim["metadata"].get("deletionTimestamp"):
                target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                victim["status"]["conditions"] = [*victim["status"]["conditions"], target]
                meta = victim["metadata"]
                self.world.delete("pods", meta["namespace"], meta["name"])
        return f"Insufficient {GPU}"

    # -- the kubelets ------------------------------------------------------------------------------------

    def _run(self, pod: Thing) -> None:
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        deleted = meta.get("deletionTimestamp")
        if pod["status"].get("phase") in OVER:
            if deleted:
                self.world.collect("pods", meta["namespace"], meta["name"])
        elif pod["spec"]["containers"][0]["image"] == "sleep":
            self._status(pod, "Failed" if deleted else "Running", {})
        elif uid not in self.containers:
            if deleted:
                self._status(pod, "Failed", {})
            else:
                self.containers[uid] = Container(pod, self.world, self.folder / uid)
                self._status(pod, "Running", {"running": {"startedAt": moment()}})
        else:
            self._attend(pod, self.containers[uid])

    def _attend(self, pod: Thing, container: Container) -> None:
        notice = (pod["metadata"].get("annotations") or {}).get(NOTICE)
        if notice is not None:
            (container.folder / "told" / "notice").write_text(notice)
        if container.process.poll() is not None:
            container.kill()
            container.pump.join()
            phase = "Failed" if container.process.returncode else "Succeeded"
            self._status(pod, phase, {"terminated": container.end()})
        elif pod["metadata"].get("deletionTimestamp"):
            if not container.told:
                container.told = True
                container.process.send_signal(signal.SIGTERM)
            if time.monotonic() >= pod["kill_at"]:
                container.kill()

    def _status(self, pod: Thing, phase: str, state: Thing) -> None:
        if pod["status"]["phase"] != phase:
            pod["status"]["phase"] = phase
            pod["status"]["containerStatuses"] = [{"name": "rank", "state": state}] if state else []
            self.world.touch(pod)

    def _end_orphans(self) -> None:
        """Processes of Pods that are not there any more, on nodes that are."""
        known = {pod["metadata"]["uid"] for pod in self.world.all("pods")}
        for uid, container in self.containers.items():
            if uid not in known and not self.lost and container.process.poll() is None:
                container.kill()

    def log(self, name: str, since: str) -> bytes:
        with self.world.lock:
            pod = self.world.get("pods", SPACE, name)
            container = self.containers.get(pod["metadata"]["uid"])
        lines = [] if container is None else list(container.lines)
        ahead_s = self.ahead_s.get(name, 0)
        shown = [(at, as_of(line, ahead_s)) for at, line in lines if at >= since.rstrip("Z")]
        return b"".join(at.encode() + b" " + line for at, line in shown)

    def close(self) -> None:
        self.ends.set()
        self.join()
        for container in self.containers.values():
            container.kill()
            container.process.wait()
            container.pump.join()
            assert container.process.stdout is not None
            container.process.stdout.close()
        assert not self.trouble, self.trouble


def as_of(line: bytes, ahead_s: int) -> bytes:
    """What a runner says of its begin by a clock that is ahead."""
    if not ahead_s or not line.startswith(BEGINS):
        return line
    at, _, rest = line.partition(b'"at_s": ')[2].partition(b",")
    return BEGINS + b'{"at_s": ' + str(int(at) + ahead_s).encode() + b"," + rest


class KubernetesLab(Lab):
    faults = frozenset({"engine_gone", "stop_waits", "node_lost", "preempted", "skewed_clock", "pending"})

    def __init__(self, folder: Path, **options: Any) -> None:
        self.world = World()
        for name in NODES:
            self.world.create("nodes", "", a_node(name))
        self.machine = Machine(self.world, folder / "pods")
        self.machine.start()
        self.served = Served(self.world)
        self.strangers: list[str] = []
        self.config = folder / "kubeconfig"
        self.config.write_text(kubeconfig(self.served.url))
        self.options = {"pending_s": 1, "grace_s": 1, "master_port": free_port(), **options}
        super().__init__(folder)

    def new_engine(self) -> KubernetesEngine:
        shared = str(self.folder / "checkpoints")
        made = KubernetesEngine(
            self.folder / "leases",
            KubernetesOptions(
                image="brimful:test",
                kubeconfig=str(self.config),
                folder=shared,
                volumes={shared: f"host:{shared}"},
                python=sys.executable,
                **self.options,
            ),
            site=Site(site="k8s", engine="kubernetes"),
            microusd_per_gpu_hour=2_000_000,
            log_bytes=1 << 20,
        )
        made.nodes()
        return made

    def occupy(self, node: str, gpu: int, *, gpus: int = 1, priority: int = 0) -> None:
        name = f"stranger-{len(self.strangers)}"
        self.strangers.append(name)
        self.world.create("pods", "default", a_stranger(name, node, gpus=gpus, priority=priority))
        eventually(lambda: self.world.get("pods", "default", name)["status"].get("conditions"))

    def vacate(self) -> None:
        while self.strangers:
            name = self.strangers.pop()
            self.world.delete("pods", "default", name)
            eventually(lambda name=name: ("pods", "default", name) not in self.world.things)  # type: ignore[misc]

    def engine_goes(self) -> None:
        self.world.away = True

    def engine_returns(self) -> None:
        self.world.away = False

    def lose_node(self, node: str) -> None:
        self.machine.lost.add(node)
        self._ready(node, "Unknown", [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])

    def node_returns(self, node: str) -> None:
        self.machine.lost.discard(node)
        self._ready(node, "True", [])

    def _ready(self, node: str, status: str, taints: list[Thing]) -> None:
        with self.world.lock:
            thing = self.world.get("nodes", "", node)
            thing["status"]["conditions"][0]["status"] = status
            thing["spec"]["taints"] = taints

    def preempt(self, node: str) -> None:
        self.occupy(node, 0, gpus=4, priority=100)

    def start_ahead(self, code: str, *, by_s: int) -> None:
        assert isinstance(self.engine, KubernetesEngine)
        self.machine.ahead_s[pod_name(name_of(self.engine.deployment, "a.1"), 0)] = by_s
        self.start(code)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.machine.close()
            self.served.close()


def kubeconfig(url: str) -> str:
    return f"""apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: "{url}"}}}}]
users: [{{name: me, user: {{token: "t"}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: me}}}}]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
