"""Everyone's Pods as jobs, for a site that is only watched.

Pods of one owner that were created together are one job: those of a Job, a PyTorchJob or a Ray cluster need
their GPUs all at once. Pods that a Job creates one after another are separate jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from brimful.adapters.capabilities import SeenJob
from brimful.adapters.engines.kubernetes import inventory
from brimful.adapters.engines.kubernetes.client import Thing
from brimful.adapters.engines.kubernetes.inventory import MIG, OVER, second_of
from brimful.adapters.engines.kubernetes.options import KubernetesOptions

TOGETHER_S = 5  # Pods of one owner created within this time are one job


def jobs_of(pods: Sequence[Thing], options: KubernetesOptions) -> list[SeenJob]:
    by_owner: dict[str, list[list[Thing]]] = {}
    for pod in sorted(pods, key=_made_s):
        if _gpus(pod, options):
            groups = by_owner.setdefault(_owner(pod), [])
            if groups and _are_together(groups[-1], pod):
                groups[-1].append(pod)
            else:
                groups.append([pod])
    # An owner's first job is named after the owner, so that its name survives its first Pod.
    return [
        _job(owner if i == 0 else each[0]["metadata"]["uid"], each, options)
        for owner, groups in by_owner.items()
        for i, each in enumerate(groups)
    ]


def _are_together(group: Sequence[Thing], pod: Thing) -> bool:
    made_s = _made_s(pod)
    over = any(ended_s is not None and ended_s <= made_s for ended_s in map(_ended_s, group))
    return made_s - _made_s(group[-1]) <= TOGETHER_S and not over


def _job(name: str, pods: Sequence[Thing], options: KubernetesOptions) -> SeenJob:
    """It starts when all its Pods have started, and is over when all of them are."""
    began = [_began_s(pod) for pod in pods]
    ended = [_ended_s(pod) for pod in pods]
    nodes = {pod["spec"].get("nodeName") for pod in pods} - {None}
    started_s = max((each for each in began if each is not None), default=None)
    return SeenJob(
        job=name,
        user=pods[0]["metadata"].get("namespace", ""),
        gpus=sum(_gpus(pod, options) for pod in pods),
        nodes=max(1, len(nodes) or len(pods)),
        gpu="",
        submitted_s=_made_s(pods[0]),
        started_s=None if None in began else started_s,
        ended_s=None if None in ended else max(each for each in ended if each is not None),
    )


def _owner(pod: Thing) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid") or pod["metadata"]["uid"])


def _gpus(pod: Thing, options: KubernetesOptions) -> int:
    asked = inventory.asked_for(pod["spec"])
    return sum(n for key, n in asked.items() if key in options.resources or key.startswith(MIG))


def _made_s(pod: Thing) -> int:
    return second_of(pod["metadata"].get("creationTimestamp")) or 0


def _began_s(pod: Thing) -> int | None:
    """When its node accepted it: it holds its GPUs from then on, however long the image pull takes."""
    return second_of((pod.get("status") or {}).get("startTime"))


def _ended_s(pod: Thing) -> int | None:
    status = pod.get("status") or {}
    if status.get("phase") not in OVER:
        return None
    ends = [
        second_of(((each.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for each in status.get("containerStatuses") or []
    ]
    known = [each for each in ends if each is not None]
    # Nobody says when a Pod was evicted before it started: it ran for no time.
    return max(known) if known else _began_s(pod) or _made_s(pod)
