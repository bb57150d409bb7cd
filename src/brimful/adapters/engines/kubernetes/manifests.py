"""A lease's objects in Kubernetes: its record, its order, and one Pod per rank.

The record is a ConfigMap and the only source of truth about the lease in the cluster. A start creates the
record, then the Pods with a scheduling gate, then writes `released` to the record, and only then removes the
gates. A stop writes `ending`. Both replace the version they read, so that of two servers one learns that it
is too late, and a lease whose Pods are gone is never started again.

    ordered    Pods may exist; none has run
    released   they run as soon as the scheduler has bound them
    ending     they were told to end; `why` is the reason
    over       `ended` says how; its Pods are no longer kept
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from brimful.adapters.engines.kubernetes.client import Thing
from brimful.adapters.engines.kubernetes.options import KubernetesOptions, toleration, volume
from brimful.fleet.events import Parts

DEPLOYMENT, OPEN = "brimful/deployment", "brimful/open"  # labels
LEASE, NOTICE = "brimful/lease", "brimful/notice"  # annotations
GATE, FINALIZER = "brimful/gang", "brimful/recorded"
HERE = "/brimful"  # in the Pod
PIECE_BYTES = 700 << 10  # of packed code: a Secret holds 1 MiB, and the first also holds the order
MARGIN_S, SENDING_S = 5, 120  # after the grace: to record its end, and to send its last checkpoint
SLUG_CHARS = 30

State = Literal["ordered", "released", "ending", "over"]


class Place(NamedTuple):
    """Where a node of ours is in Kubernetes."""

    node: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    lease: str
    state: State
    facts: Mapping[str, Any]
    thing: Thing  # as read, including its version

    @property
    def name(self) -> str:
        return str(self.thing["metadata"]["name"])


def name_of(deployment: str, lease: str) -> str:
    """A name for its objects: always the same one, and valid whatever characters the lease id has."""
    slug = re.sub(r"[^a-z0-9]+", "-", lease.lower()).strip("-")[:SLUG_CHARS].strip("-")
    digest = hashlib.sha256(f"{deployment}\0{lease}".encode()).hexdigest()[:12]
    return f"brimful-{slug}-{digest}" if slug else f"brimful-{digest}"


def pod_name(name: str, rank: int) -> str:
    return f"{name}-{rank}"


def selector(deployment: str, *, is_open: bool | None = None) -> str:
    of_state = "" if is_open is None else f",{OPEN}={str(is_open).lower()}"
    return f"{DEPLOYMENT}={deployment}{of_state}"


def record(
    deployment: str, lease: str, state: State, facts: Mapping[str, Any], *, before: Thing | None
) -> Thing:
    metadata = {
        "name": name_of(deployment, lease),
        "labels": {DEPLOYMENT: deployment, OPEN: str(state != "over").lower()},
    }
    if before is not None:
        metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
    data = {"lease": lease, "state": state, "facts": json.dumps(facts)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def read_record(thing: Thing) -> Record:
    data = thing["data"]
    return Record(lease=data["lease"], state=data["state"], facts=json.loads(data["facts"]), thing=thing)


def secret_names(name: str, count: int) -> list[str]:
    """Names of a lease's Secrets: the first holds the order, the rest the packed code."""
    return [name, *(f"{name}-code-{i}" for i in range(1, count))]


def secrets_of(pod: Thing) -> int:
    """How many Secrets its lease has."""
    volumes = (each for each in pod["spec"].get("volumes") or [] if each["name"] == "order")
    return max((len(each["projected"]["sources"]) for each in volumes if "projected" in each), default=1)


def secrets(deployment: str, lease: str, order: Mapping[str, Any], archive: bytes | None) -> list[Thing]:
    """What its ranks are told. The first holds the job's environment, which may contain secrets."""
    pieces = [archive[at : at + PIECE_BYTES] for at in range(0, len(archive), PIECE_BYTES)] if archive else []
    files = [{f"code.{i}": piece} for i, piece in enumerate(pieces)] or [{}]
    files[0]["order.json"] = json.dumps(order).encode()
    names = secret_names(name_of(deployment, lease), len(files))
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {DEPLOYMENT: deployment}},
            "immutable": True,
            "data": {key: base64.b64encode(body).decode() for key, body in held.items()},
        }
        for name, held in zip(names, files, strict=True)
    ]


def termination_s(options: KubernetesOptions, *, sends: bool) -> int:
    return past_grace_s(sends=sends) + options.grace_s


def past_grace_s(*, sends: bool) -> int:
    return SENDING_S if sends else MARGIN_S


def pods(
    deployment: str,
    lease: str,
    parts: Parts,
    places: Mapping[str, Place],
    options: KubernetesOptions,
    *,
    namespace: str,
    sends: bool,
    secrets: int = 1,
) -> list[Thing]:
    name = name_of(deployment, lease)
    master = f"{pod_name(name, 0)}.{options.service}.{namespace}.svc"
    made = []
    for rank, (node, gpus) in enumerate(parts):
        env = {
            "BRIMFUL_RANK": rank,
            "BRIMFUL_WORLD_SIZE": len(parts),
            "BRIMFUL_NODE": node,
            "BRIMFUL_GPUS": len(gpus),
            "MASTER_ADDR": master if len(parts) > 1 else "127.0.0.1",
            "MASTER_PORT": options.master_port,
        }
        spec = _spec(name, places[node], len(gpus), options, env=env, sends=sends, secrets=secrets)
        metadata = {
            "name": pod_name(name, rank),
            "labels": {DEPLOYMENT: deployment, "brimful/part": "rank"},
            "annotations": {LEASE: lease, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            "finalizers": [FINALIZER],
        }
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return made


def _spec(
    name: str,
    place: Place,
    gpus: int,
    options: KubernetesOptions,
    *,
    env: Mapping[str, object],
    sends: bool,
    secrets: int,
) -> Thing:
    orders = [{"secret": {"name": each}} for each in secret_names(name, secrets)]
    more = [volume(path, source, f"volume-{i}") for i, (path, source) in enumerate(options.volumes.items())]
    mounts = [
        {"name": each["name"], "mountPath": path} for each, path in zip(more, options.volumes, strict=True)
    ]
    rank = str(env["BRIMFUL_RANK"])
    named = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "runtimeClassName": options.runtime_class,
        "imagePullSecrets": [{"name": each} for each in options.pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        "schedulingGates": [{"name": GATE}],
        "hostname": pod_name(name, int(rank)),
        "subdomain": options.service,
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(options.service_account),
        "terminationGracePeriodSeconds": termination_s(options, sends=sends),
        "affinity": {"nodeAffinity": _on(place.node)},
        "tolerations": [toleration(each) for each in options.tolerations],
        **{key: value for key, value in named.items() if value},
        "volumes": [
            {"name": "order", "projected": {"sources": orders, "defaultMode": 0o444}},
            {"name": "lease", "emptyDir": {}},
            {"name": "told", "downwardAPI": {"items": [_told()]}},
            *more,
        ],
        "containers": [
            {
                "name": "rank",
                "image": options.image,
                "command": [options.python, "-P", "-m", "brimful.adapters.engines.kubernetes.rank", HERE],
                "env": [{"name": key, "value": str(value)} for key, value in env.items()],
                "resources": _resources(place.resource, gpus, options),
                "terminationMessagePath": f"{HERE}/end",
                "volumeMounts": [
                    {"name": "order", "mountPath": f"{HERE}/order", "readOnly": True},
                    {"name": "lease", "mountPath": f"{HERE}/lease"},
                    {"name": "told", "mountPath": f"{HERE}/told", "readOnly": True},
                    *mounts,
                ],
            }
        ],
    }


def _on(node: str) -> Thing:
    """By node name, so that the scheduler still checks what is free; a Pod that we bound would skip that."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _told() -> Thing:
    return {"path": "notice", "fieldRef": {"fieldPath": f"metadata.annotations['{NOTICE}']"}}


def _resources(resource: str, gpus: int, options: KubernetesOptions) -> Thing:
    asked = {
        "cpu": str(options.cpus_per_gpu * gpus) if options.cpus_per_gpu else "",
        "memory": f"{options.memory_mib_per_gpu * gpus}Mi" if options.memory_mib_per_gpu else "",
    }
    requests = {key: value for key, value in asked.items() if value}
    held = {resource: str(gpus)}  # for extended resources the request must equal the limit
    memory = {key: value for key, value in requests.items() if key == "memory"}
    return {"limits": {**held, **memory}, "requests": {**held, **requests}}
