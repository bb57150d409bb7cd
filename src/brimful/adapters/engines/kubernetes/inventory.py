"""What the nodes of a cluster offer: GPU types, how many others hold, and why a node is closed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from brimful.adapters.engines.devices import catalog_name
from brimful.adapters.engines.kubernetes.client import Thing
from brimful.adapters.engines.kubernetes.manifests import Place
from brimful.adapters.engines.kubernetes.options import KubernetesOptions, tolerates

MIG = "nvidia.com/mig-"
# Labels that name the card: those of NVIDIA, AMD and the clouds.
PRODUCT = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
)
OVER = ("Succeeded", "Failed")


def places(node: Thing, options: KubernetesOptions) -> Iterator[tuple[str, Place, int]]:
    """Our name for the place, its Kubernetes resource, and the count: one per kind of GPU on the node."""
    name, has = node["metadata"]["name"], node.get("status", {}).get("allocatable") or {}
    kinds = [each for each in options.resources if each in has]
    kinds += sorted(each for each in has if each.startswith(MIG) and each not in kinds)
    counted = [(each, count) for each in kinds if (count := _count(has[each])) > 0]
    short = Counter(each.rpartition("/")[2] for each, _ in counted[1:])
    for i, (resource, count) in enumerate(counted):
        vendor, _, kind = resource.rpartition("/")
        own = kind if short[kind] == 1 else f"{kind}.{vendor}"  # two vendors may both use `gpu`
        yield name if i == 0 else f"{name}:{own}", Place(name, resource), count


def gpu_type(node: Thing, resource: str, options: KubernetesOptions) -> str:
    labels = node["metadata"].get("labels") or {}
    words = next((labels[each] for each in PRODUCT if labels.get(each)), "")
    found = options.gpu_types.get(resource) or options.gpu_types.get(words)
    if found:
        return catalog_name(found)
    kind = catalog_name(words.replace("_", " ")) if words else catalog_name(options.gpu or "gpu")
    # A slice is not the card that the label names.
    slice_of = resource.removeprefix(MIG) if resource.startswith(MIG) else ""
    return f"{kind}-mig-{slice_of}"[:64] if slice_of and "mig" not in kind else kind


def rack_of(node: Thing, options: KubernetesOptions) -> str:
    labels = node["metadata"].get("labels") or {}
    return str(labels.get(options.rack_label, "")) if options.rack_label else ""


def is_selected(node: Thing, options: KubernetesOptions) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in options.node_selector.items())


def why_closed(node: Thing, tolerations: list[dict[str, Any]]) -> str:
    """In Kubernetes' words; empty: the node accepts our Pods."""
    said = []
    spec = node.get("spec") or {}
    ready = _condition(node, "Ready")
    if ready.get("status") != "True":
        said.append(f"Ready={ready.get('status', '?')} {ready.get('reason', '')}".strip())
    if spec.get("unschedulable"):
        said.append("cordoned")
    for taint in spec.get("taints") or []:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            said.append(f"{taint.get('key')}{value}:{taint.get('effect')}")
    troubles = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    said += [kind for kind in troubles if _condition(node, kind).get("status") == "True"]
    return ", ".join(said)


def is_silent(node: Thing) -> bool:
    """Its kubelet has been silent for so long that the cluster has given it up."""
    return _condition(node, "Ready").get("status") == "Unknown"


def silent_since_s(node: Thing) -> int | None:
    return second_of(_condition(node, "Ready").get("lastTransitionTime"))


def second_of(text: object) -> int | None:
    """Seconds of a Kubernetes timestamp."""
    with contextlib.suppress(TypeError, ValueError):
        return int(datetime.fromisoformat(str(text)).timestamp())
    return None


def held(pods: Iterable[Thing]) -> Counter[Place]:
    """GPUs and slices that these Pods hold. A finished Pod holds none."""
    found: Counter[Place] = Counter()
    for pod in pods:
        spec, node = pod.get("spec") or {}, (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in OVER:
            for resource, count in asked_for(spec).items():
                found[Place(node, resource)] += count
    return found


def asked_for(spec: Thing) -> Counter[str]:
    """Its peak request: the sum over its containers, or the largest init container."""
    together: Counter[str] = Counter()
    for each in spec.get("containers") or []:
        together.update(_extended(each))
    for each in spec.get("initContainers") or []:
        if each.get("restartPolicy") == "Always":
            together.update(_extended(each))
        else:
            together |= _extended(each)
    return together


def _extended(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({key: _count(value) for key, value in asked.items() if "/" in key})


def _count(value: object) -> int:
    """Of an extended resource: a whole number; `2k` and the like do not occur for GPUs."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _condition(node: Thing, kind: str) -> Mapping[str, Any]:
    conditions: Sequence[Mapping[str, Any]] = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})
