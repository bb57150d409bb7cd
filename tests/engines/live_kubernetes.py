"""A real API server and scheduler for the scenarios, with kubelets that run Pods as processes.

`tools/kubernetes.sh` builds them from Debian's source. That is 1.20, the newest that Debian has whole: it
knows no scheduling gates and drops them, so that here a gang is not held back. All else is Kubernetes' own:
names that are taken, versions of objects, patches, finalizers, graceful deletion, binding, preemption,
rights, and logs, which the API server fetches from our kubelets.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp.web
import pytest
import yaml

from brimful.adapters.engines.kubernetes import client
from brimful.adapters.engines.kubernetes.client import Api
from brimful.adapters.engines.kubernetes.engine import KubernetesEngine
from brimful.adapters.engines.kubernetes.manifests import name_of, pod_name
from brimful.errors import WorldFailed
from tests.builders import eventually
from tests.conftest import missing
from tests.engines.kubernetes_api import OVER, Thing, moment
from tests.engines.kubernetes_lab import (
    SPACE,
    Container,
    KubernetesLab,
    a_node,
    a_stranger,
    as_of,
    free_port,
)
from tests.engines.labs import NODES, Lab
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "kubernetes" / "bin"
MERGE = "application/merge-patch+json"
ADMIN, SERVER = "admin-token", "server-token"


def is_missing() -> str:
    programs = ("etcd", "kube-apiserver", "kube-scheduler")
    return ", ".join(name for name in programs if not (BIN / name).exists())


class Cluster:
    """etcd, the API server and the scheduler, on loopback, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port, self.etcd = free_port(), free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        _key(folder / "sa.key")
        account = f"system:serviceaccount:{SPACE}:brimful-server"
        (folder / "tokens.csv").write_text(
            f'{ADMIN},admin,1,"system:masters"\n{SERVER},{account},2,"system:serviceaccounts"\n'
        )
        self.admin_config, self.server_config = folder / "admin.config", folder / "server.config"
        for path, token in ((self.admin_config, ADMIN), (self.server_config, SERVER)):
            authority = folder / "certs" / "apiserver.crt"  # which the API server makes
            path.write_text(_kubeconfig(self.port, token, authority))
        try:
            self._begin_all()
        except BaseException:
            self.close()
            raise

    def _begin_all(self) -> None:
        self._begin("etcd", *_etcd_flags(self.folder, self.etcd))
        self.start_api()
        self._begin(
            "kube-scheduler",
            f"--kubeconfig={self.admin_config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--port=0",
            f"--secure-port={free_port()}",
        )
        client.LEAST, least = (1, 20), client.LEAST
        self.admin = Api(site="admin", kubeconfig=str(self.admin_config), context="", namespace=SPACE)
        self.admin.nodes()
        client.LEAST = least
        self.install()

    def _begin(self, name: str, *flags: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [BIN / name, *flags], stdout=log, stderr=log, cwd=self.folder
            )

    def start_api(self) -> None:
        folder = self.folder
        self._begin(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={folder / 'certs'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://lab",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            f"--service-account-key-file={folder / 'sa.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-cluster-ip-range=10.0.0.0/24",
        )
        until = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert time.monotonic() < until, (folder / "kube-apiserver.log").read_text()[-2000:]
            assert self.running["kube-apiserver"].poll() is None, "it ended"
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        import urllib.request

        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        asked = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/readyz", headers={"Authorization": f"Bearer {ADMIN}"}
        )
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(asked, context=context, timeout=5).status == 200)
        return False

    def end_api(self) -> None:
        process = self.running.pop("kube-apiserver")
        process.kill()
        process.wait()

    def install(self) -> None:
        """The file of the install page, as it is."""
        text = (ROOT / "docs" / "how-to" / "kubernetes.yaml").read_text()
        for thing in yaml.safe_load_all(text):
            space = thing["metadata"].get("namespace")
            group = "/apis/" if "/" in thing["apiVersion"] else "/api/"
            where = f"/namespaces/{space}" if space else ""
            self.ask("POST", f"{group}{thing['apiVersion']}{where}/{thing['kind'].lower()}s", thing)

    def ask(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> Thing:
        found = self.admin._json(method, path, body=body, content=content, none_on=(404, 409))
        return found or {}

    def close(self) -> None:
        for process in reversed(list(self.running.values())):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)


class Kubelets(threading.Thread):
    """Of all nodes: run what is bound, end what is deleted, tell the API server, and serve it logs."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(daemon=True)
        self.cluster, self.folder = cluster, folder
        self.containers: dict[str, Container] = {}
        self.by_name: dict[str, Container] = {}
        self.kill_at: dict[str, float] = {}
        self.lost: set[str] = set()
        self.ahead_s: dict[str, int] = {}
        self.ends = threading.Event()
        self.trouble: list[BaseException] = []
        self.port = 0
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._logs = threading.Thread(target=self._serve, daemon=True)
        self._logs.start()
        assert self._up.wait(PATIENCE_S)

    def run(self) -> None:
        while not self.ends.wait(0.05):
            try:
                pods = self.cluster.admin.everybodys_pods()
                for pod in pods:
                    if pod["spec"].get("nodeName") not in (None, *self.lost):
                        self._attend(pod)
                known = {pod["metadata"]["uid"] for pod in pods}
                for uid, container in self.containers.items():
                    if uid not in known and not self.lost and container.process.poll() is None:
                        container.kill()
            except WorldFailed:
                continue  # the API server is away: what runs goes on
            except Exception as error:  # noqa: BLE001 - told when the lab closes
                self.trouble.append(error)
                return

    def _attend(self, pod: Thing) -> None:
        meta, uid, phase = pod["metadata"], pod["metadata"]["uid"], pod["status"].get("phase")
        deleted, container = meta.get("deletionTimestamp"), self.containers.get(uid)
        if phase in OVER:
            if deleted and meta.get("deletionGracePeriodSeconds"):
                self._remove(pod)
        elif pod["spec"]["containers"][0]["image"] == "sleep":
            if deleted:
                self._remove(pod)
            elif phase != "Running":
                self._status(pod, "Running", {})
        elif container is None:
            if deleted:
                self._status(pod, "Failed", {})
            else:
                path = f"/api/v1/namespaces/{SPACE}/secrets"
                shim: Any = SimpleNamespace(
                    get=lambda _k, _s, name: self.cluster.ask("GET", f"{path}/{name}")
                )
                made = Container(pod, shim, self.folder / uid)
                self.containers[uid] = self.by_name[meta["name"]] = made
                self._status(pod, "Running", {"running": {"startedAt": moment()}})
        elif container.process.poll() is not None:
            container.kill()
            container.pump.join()
            code = container.process.returncode
            self._status(pod, "Failed" if code else "Succeeded", {"terminated": container.end()})
        elif deleted:
            self._end(uid, container, int(meta["deletionGracePeriodSeconds"]))

    def _end(self, uid: str, container: Container, grace_s: int) -> None:
        if not container.told:
            container.told = True
            self.kill_at[uid] = time.monotonic() + grace_s
            container.process.send_signal(signal.SIGTERM)
        if time.monotonic() >= self.kill_at[uid]:
            container.kill()

    def _status(self, pod: Thing, phase: str, state: Thing) -> None:
        boxes = [
            {"name": "rank", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        ]
        status = {"phase": phase, "startTime": moment(), "containerStatuses": boxes if state else []}
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self.cluster.ask("PATCH", path, {"status": status}, content=MERGE)

    def _remove(self, pod: Thing) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.cluster.ask("DELETE", path, {"gracePeriodSeconds": 0})

    # -- logs, as the API server asks a kubelet for them --------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        app = aiohttp.web.Application()
        app.router.add_get("/containerLogs/{space}/{pod}/{box}", self._log)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certs = self.cluster.folder / "certs"
        context.load_cert_chain(certs / "apiserver.crt", certs / "apiserver.key")
        self.port = free_port()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context).start()
        self._up.set()
        while not self.ends.is_set():
            await asyncio.sleep(0.05)
        await runner.cleanup()
        await asyncio.sleep(0.1)  # TLS says goodbye

    async def _log(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        name, query = request.match_info["pod"], request.query
        container = self.by_name.get(name)
        lines = [] if container is None else list(container.lines)
        since, ahead_s = query.get("sinceTime", "").rstrip("Z"), self.ahead_s.get(name, 0)
        shown = b"".join(at.encode() + b" " + as_of(line, ahead_s) for at, line in lines if at >= since)
        assert query.get("timestamps") == "true"
        return aiohttp.web.Response(body=shown[: int(query["limitBytes"])])

    def close(self) -> None:
        self.ends.set()
        self.join()
        self._logs.join()
        for container in self.containers.values():
            container.kill()
            container.process.wait()
            container.pump.join()
            assert container.process.stdout is not None
            container.process.stdout.close()
        assert not self.trouble, self.trouble


def _key(path: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", str(path), "2048"], check=True, capture_output=True)


def _etcd_flags(folder: Path, port: int) -> list[str]:
    peer = free_port()
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
    ]


def _kubeconfig(port: int, token: str, authority: Path) -> str:
    return f"""apiVersion: v1
kind: Config
current-context: lab
clusters:
  - {{name: lab, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{authority}"}}}}
users: [{{name: me, user: {{token: "{token}"}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: me}}}}]
"""


def is_set_up() -> None:
    if lacks := is_missing():
        missing(f"Kubernetes ({lacks})", "tools/setup.sh kubernetes")


class LiveLab(KubernetesLab):
    """The engine as the install page's account, against a real API server and scheduler."""

    cluster: Cluster  # one for all scenarios
    nodes = 0

    def __init__(self, folder: Path) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(client, "LEAST", (1, 20))
        self.kubelets = Kubelets(self.cluster, folder / "pods")
        for name in NODES:
            self._join(name)
        self.kubelets.start()
        self.config = self.cluster.server_config
        self.strangers = []
        self.options = {"pending_s": 2, "grace_s": 1, "master_port": free_port()}
        Lab.__init__(self, folder)

    def _join(self, name: str) -> None:
        node = a_node(name)
        self.cluster.ask("POST", "/api/v1/nodes", {**node, "status": {}})
        status = {
            **node["status"],
            "capacity": {**node["status"]["allocatable"], "pods": "110"},
            "allocatable": {**node["status"]["allocatable"], "pods": "110"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelets.port}},
        }
        path = f"/api/v1/nodes/{name}"
        self.cluster.ask("PATCH", f"{path}/status", {"status": status}, content=MERGE)
        self.cluster.ask("PATCH", path, {"spec": {"taints": None}}, content=MERGE)

    def occupy(self, node: str, gpu: int, *, gpus: int = 1, priority: int = 0) -> None:
        name = f"stranger-{len(self.strangers)}"
        self.strangers.append(name)
        pod = a_stranger(name, node, gpus=gpus)
        del pod["spec"]["priority"]
        if priority:
            high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": priority}
            high["metadata"] = {"name": "high"}
            self.cluster.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
            pod["spec"]["priorityClassName"] = "high"
        self.cluster.ask("POST", "/api/v1/namespaces/default/pods", pod)
        eventually(lambda: priority or self._stranger(name)["status"].get("conditions"))

    def _stranger(self, name: str) -> Thing:
        return self.cluster.ask("GET", f"/api/v1/namespaces/default/pods/{name}")

    def vacate(self) -> None:
        while self.strangers:
            name = self.strangers.pop()
            self.cluster.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}")
            eventually(lambda name=name: not self._stranger(name))  # type: ignore[misc]

    def engine_goes(self) -> None:
        self.cluster.end_api()

    def engine_returns(self) -> None:
        self.cluster.start_api()

    def lose_node(self, node: str) -> None:
        self.kubelets.lost.add(node)
        self._ready(node, "Unknown", [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}])

    def node_returns(self, node: str) -> None:
        self.kubelets.lost.discard(node)
        self._ready(node, "True", [])

    def _ready(self, node: str, status: str, taints: list[Thing]) -> None:
        ready = {"type": "Ready", "status": status, "lastTransitionTime": moment()}
        path = f"/api/v1/nodes/{node}"
        self.cluster.ask("PATCH", f"{path}/status", {"status": {"conditions": [ready]}}, content=MERGE)
        self.cluster.ask("PATCH", path, {"spec": {"taints": taints}}, content=MERGE)

    def start_ahead(self, code: str, *, by_s: int) -> None:
        assert isinstance(self.engine, KubernetesEngine)
        self.kubelets.ahead_s[pod_name(name_of(self.engine.deployment, "a.1"), 0)] = by_s
        self.start(code)

    def close(self) -> None:
        try:
            self.vacate()
            Lab.close(self)
            eventually(lambda: not self.cluster.admin.everybodys_pods())
        finally:
            for name in NODES:
                self.cluster.ask("DELETE", f"/api/v1/nodes/{name}")
            self.kubelets.close()
            self.patch.undo()
