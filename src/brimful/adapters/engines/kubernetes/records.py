"""Reads the objects of a deployment's leases in the cluster and changes them one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.adapters.engines.kubernetes import manifests
from brimful.adapters.engines.kubernetes.client import Api, Thing
from brimful.adapters.engines.kubernetes.look import Rank
from brimful.adapters.engines.kubernetes.manifests import FINALIZER, GATE, Record, State


class Records:
    """Every step can be repeated, also by another server."""

    def __init__(self, api: Api, deployment: str, *, sends: bool) -> None:
        """`sends`: ranks need time to send checkpoints after their grace."""
        self._api, self.deployment, self._past_s = api, deployment, manifests.past_grace_s(sends=sends)

    def find(self, lease: str) -> Record | None:
        thing = self._api.record(manifests.name_of(self.deployment, lease))
        return None if thing is None else manifests.read_record(thing)

    def all(self, *, is_open: bool) -> list[Record]:
        found = self._api.records(manifests.selector(self.deployment, is_open=is_open))
        return [manifests.read_record(each) for each in found]

    def write(
        self, lease: str, state: State, facts: Mapping[str, Any], before: Record | None
    ) -> Record | None:
        """None: someone else wrote first."""
        old = None if before is None else before.thing
        thing = manifests.record(self.deployment, lease, state, facts, before=old)
        made = self._api.create(thing) if before is None else self._api.replace_record(thing)
        return None if made is None else manifests.read_record(made)

    def pods(self) -> list[Thing]:
        return self._api.pods(manifests.selector(self.deployment))

    @staticmethod
    def ranks(record: Record, pods: Sequence[Thing]) -> list[Rank]:
        named = {pod["metadata"]["name"]: pod for pod in pods}
        count = len(record.facts.get("nodes", ()))
        return [Rank(named.get(manifests.pod_name(record.name, rank))) for rank in range(count)]

    def release(self, pod: str, at: int = 0) -> None:
        """Remove the Pod's gate; the patch's test makes a second request harmless."""
        path = f"/spec/schedulingGates/{at}"
        test = {"op": "test", "path": f"{path}/name", "value": GATE}
        self._api.patch_pod(pod, [test, {"op": "remove", "path": path}])

    def release_late(self, ranks: Sequence[Rank]) -> None:
        """For a released lease whose server died before it had removed all gates."""
        for rank in ranks:
            if rank.pod is not None and rank.is_gated:
                gates = [each["name"] for each in rank.pod["spec"]["schedulingGates"]]
                if GATE in gates:
                    self.release(rank.pod["metadata"]["name"], gates.index(GATE))

    def end(self, ranks: Sequence[Rank], *, grace_s: int) -> None:
        for rank in ranks:
            if rank.pod is not None and not rank.is_deleted and not rank.is_over:
                self._api.delete("pods", rank.pod["metadata"]["name"], grace_s=grace_s + self._past_s)

    def let_go(self, pods: Sequence[str], name: str, *, secrets: int) -> None:
        """The lease is over and recorded: delete all its objects."""
        for pod in pods:
            path = "/metadata/finalizers/0"
            test = {"op": "test", "path": path, "value": FINALIZER}
            self._api.patch_pod(pod, [test, {"op": "remove", "path": path}])
            self._api.delete("pods", pod)
        for secret in manifests.secret_names(name, secrets):
            self._api.delete("secrets", secret)

    def sweep(self, *, before_s: int) -> None:
        """Delete records of leases that were over by then."""
        for record in self.all(is_open=False):
            if int(record.facts.get("over_s", record.facts.get("at_s", before_s))) < before_s:
                self._api.delete("configmaps", record.name)
