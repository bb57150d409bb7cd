"""A Kubernetes cluster that is only watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines.kubernetes.options import KubernetesOptions
from brimful.adapters.engines.kubernetes.watched import jobs_of
from brimful.adapters.observed import read_jobs
from tests.engines.kubernetes_api import Thing
from tests.engines.kubernetes_lab import GPU, KubernetesLab
from tests.engines.labs import NODES
from tests.server.live import live, wait_for


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubernetesLab]:
    made = KubernetesLab(tmp_path)
    yield made
    made.close()


def test_a_cluster_that_is_only_watched_sees_everybodys_pods_and_starts_nothing(
    lab: KubernetesLab, tmp_path: Path
) -> None:
    lab.occupy(NODES[0], 0, gpus=4)
    lab.occupy(NODES[0], 0, gpus=2)
    lab.served.asked.clear()
    sites = tmp_path / "sites.toml"
    sites.write_text(
        f'[k8s]\nengine = "kubernetes"\nmode = "observe"\nkubeconfig = "{lab.config}"\nusd_per_gpu_hour = 2\n'
    )
    folder = tmp_path / "data" / "sites" / "k8s"
    with live(tmp_path / "data", "--sites", str(sites)) as server:
        wait_for(lambda: len(_jobs(folder)) == 2)
        assert server.ask("fleet", "show")["gpus"] == 0, "what is watched is not for jobs"
        lab.world.delete("pods", "default", lab.strangers.pop(0))
        wait_for(lambda: all(job.started_s for job in _jobs(folder).values()))
        lab.vacate()
        wait_for(lambda: all(job.ended_s is not None for job in _jobs(folder).values()))
        told = server.ask("admin", "observed", "k8s")
        again = server.ask("simulate", str(folder / "observed.csv"), "--fleet", str(folder / "fleet.toml"))
    assert (told["jobs"], told["gpus"], told["still_waiting"]) == (2, 8, 0)
    del told["rehearsed"]["cpu_s"]
    assert told["rehearsed"] == {key: again["runs"][0][key] for key in told["rehearsed"]}
    assert lab.served.asked == {("", "nodes", "list"), ("", "pods", "list")}


def _jobs(folder: Path) -> dict[str, Any]:
    return dict(read_jobs(folder)) if (folder / "observed.json").exists() else {}


def a_pod(uid: str, made: str, *, owner: str = "", gpus: int = 8, **status: Any) -> Thing:
    owners = [{"uid": owner}] if owner else []
    meta = {"uid": uid, "namespace": "team-a", "creationTimestamp": made, "ownerReferences": owners}
    spec = {"containers": [{"resources": {"limits": {GPU: str(gpus)}}}], "nodeName": f"node-{uid}"}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "startTime": made, **status}}


def over(at: str) -> Thing:
    return {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"finishedAt": at}}}]}


def test_pods_of_one_owner_that_came_together_are_one_job() -> None:
    first, later = "2026-11-17T10:00:00Z", "2026-11-17T10:00:03Z"
    (job,) = jobs_of([a_pod("b", later, owner="o"), a_pod("a", first, owner="o")], KubernetesOptions())
    assert (job.job, job.user, job.gpus, job.nodes, job.ended_s) == ("o", "team-a", 16, 2, None)
    assert job.started_s == job.submitted_s + 3, "a gang runs when its last Pod does"


def test_pods_that_a_job_makes_one_after_another_are_jobs_of_their_own() -> None:
    first = a_pod("a", "2026-11-17T10:00:00Z", owner="o", **over("2026-11-17T10:00:02Z"))
    second = a_pod("b", "2026-11-17T10:00:02Z", owner="o")
    found = jobs_of([first, second], KubernetesOptions())
    assert [(job.gpus, job.ended_s is None) for job in found] == [(8, False), (8, True)]
    assert len({job.job for job in found}) == 2


def test_pods_without_gpus_are_not_jobs_and_one_that_waits_has_not_begun() -> None:
    waits = a_pod("w", "2026-11-17T10:00:00Z")
    waits["status"] = {"phase": "Pending"}
    (job,) = jobs_of([a_pod("web", "2026-11-17T10:00:00Z", gpus=0), waits], KubernetesOptions())
    assert (job.job, job.started_s, job.ended_s) == ("w", None, None)
