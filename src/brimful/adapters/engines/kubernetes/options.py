"""The options of a Kubernetes site in the sites file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.errors import BadInput
from brimful.language import Quoted, say

SOURCES = "pvc:NAME, host:/PATH, nfs:SERVER:/PATH, configmap:NAME, secret:NAME, memory:SIZE, empty:"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    image: str = ""  # must have brimful and the jobs' libraries; required unless the site is only watched
    namespace: str = "brimful"
    kubeconfig: str = ""  # empty: the Pod's service account, then KUBECONFIG or ~/.kube/config
    context: str = ""  # in the kubeconfig; empty: the current one
    deployment: str = ""  # owner of our leases; empty: the id of the site's folder
    folder: str = ""  # in Pods, on a volume all nodes share: checkpoints if there is no store
    volumes: Mapping[str, str] = field(default_factory=dict)  # path in the Pod -> source, such as pvc:data
    service_account: str = ""  # for jobs; empty: the namespace's default, without a token in the Pod
    priority_class: str = ""
    runtime_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")  # key[=value][:effect]
    node_selector: Mapping[str, str] = field(default_factory=dict)  # only nodes with these labels are used
    resources: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")  # MIG resources are found in addition
    gpu: str = ""  # GPU type on nodes without a label for it
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # a label's or resource's name -> ours
    rack_label: str = ""
    cpus_per_gpu: int = 0  # 0: no request
    memory_mib_per_gpu: int = 0
    grace_s: int = 10  # time a job has to save, whoever ends it; same as the server's rule
    pending_s: int = 10  # a Pod that is still unbound after this is handed back
    begin_s: int = 600  # a Pod that has not started on its node after this is given up
    master_port: int = 29500
    service: str = "brimful"  # headless, so that the ranks of a gang find each other
    python: str = "python3"  # in the image, with brimful installed


def toleration(text: str) -> dict[str, Any]:
    """In the syntax of `kubectl taint`: `key`, `key:NoSchedule`, `key=value:NoSchedule`."""
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    if not key or (effect and effect not in EFFECTS):
        choices = ", ".join(EFFECTS)
        raise BadInput(say("kubernetes.bad_toleration", text=Quoted(text[:80]), choices=choices))
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    return {**found, **({"value": value} if equals else {}), **({"effect": effect} if effect else {})}


def tolerates(tolerations: list[dict[str, Any]], taint: Mapping[str, Any]) -> bool:
    return any(
        each["key"] == taint.get("key")
        and each.get("effect", taint.get("effect")) == taint.get("effect")
        and (each["operator"] == "Exists" or each.get("value", "") == (taint.get("value") or ""))
        for each in tolerations
    )


def volume(path: str, source: str, name: str) -> dict[str, Any]:
    """The source must be one of SOURCES and the path absolute."""
    kind, _, what = source.partition(":")
    server, _, export = what.partition(":")
    made: dict[str, dict[str, Any]] = {
        "pvc": {"persistentVolumeClaim": {"claimName": what}},
        "host": {"hostPath": {"path": what}},
        "nfs": {"nfs": {"server": server, "path": export}},
        "configmap": {"configMap": {"name": what}},
        "secret": {"secret": {"secretName": what}},
        "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": what}},
        "empty": {"emptyDir": {"sizeLimit": what} if what else {}},
    }
    lacks = kind not in made or not path.startswith("/") or (not what and kind != "empty")
    if lacks or (kind == "nfs" and not export.startswith("/")):
        said = {"path": Quoted(path[:80]), "source": Quoted(source[:80]), "choices": SOURCES}
        raise BadInput(say("kubernetes.bad_volume", **said))
    return {"name": name, **made[kind]}
