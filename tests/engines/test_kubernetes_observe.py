"""A Kubernetes cluster that is only watched."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines.kubernetes.options import KubernetesOptions
from brimful.adapters.engines.kubernetes.watched import jobs_of
from brimful.adapters.observed import read_jobs
from tests.engines.kubernetes_api import Served, Thing, World
from tests.engines.kubernetes_lab import GPU, KubernetesLab, a_node, kubeconfig
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


HOUR = 3600
BEGAN = datetime(2026, 11, 17, 10, tzinfo=UTC)
# Job, Pods, GPUs of each, and hours at which it came, started and ended: of a site that was never in a hurry.
RECORDED = (
    ("first", 1, 4, 0.0, 0.0, 4.0),
    ("gang", 2, 4, 0.5, 5.0, 7.0),
    ("small", 1, 1, 1.0, 7.5, 8.5),
    ("pair", 1, 2, 1.25, 8.0, 11.0),
    ("second-gang", 2, 2, 2.0, 11.5, 12.0),
    ("last", 1, 3, 2.0, 12.0, 14.0),
)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    """A cluster of two nodes that has run all of them, and where one Pod waits. The kubeconfig."""
    world = World()
    for name in NODES:
        world.create("nodes", "", a_node(name))
    for job, pods, gpus, came_h, start_h, end_h in RECORDED:
        for i in range(pods):
            # The Pods of a gang come and start one after the other; it runs when its last one does.
            early_h = (pods - 1 - i) / HOUR
            done = {**over(at(end_h - early_h)), "startTime": at(start_h - early_h)}
            pod = a_pod(f"{job}-{i}", at(came_h + i / HOUR), owner=job, gpus=gpus, **done)
            world.things["pods", "team-a", f"{job}-{i}"] = pod
    waits = a_pod("waits", at(13.0))
    waits["status"] = {"phase": "Pending"}
    world.things["pods", "team-a", "waits"] = waits
    world.things["pods", "team-a", "web"] = a_pod("web", at(0.0), gpus=0)
    served, config = Served(world), tmp_path / "kubeconfig"
    config.write_text(kubeconfig(served.url))
    yield config
    served.close()


def at(hour: float) -> str:
    return (BEGAN + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_report_is_a_rehearsal_of_the_jobs_that_were_recorded(recorded: Path, tmp_path: Path) -> None:
    """Of their trace and fleet as this test writes them, not as the observer does."""
    sites, trace, fleet = (tmp_path / name for name in ("sites.toml", "ours.csv", "ours.toml"))
    sites.write_text(
        f'[k8s]\nengine = "kubernetes"\nmode = "observe"\nkubeconfig = "{recorded}"\nusd_per_gpu_hour = 2\n'
    )
    rows = [
        f"{job},{came_h * HOUR:.0f},{(end_h - start_h) * HOUR:.0f},{pods * gpus},team-a,,"
        f"{'node' if pods == 1 else 'site'}\n"
        for job, pods, gpus, came_h, start_h, end_h in RECORDED
    ]
    trace.write_text("job,submit_s,run_s,gpus,tenant,gpu,within\n" + "".join(rows))
    fleet.write_text('[[nodes]]\ncount = 2\ngpus = 4\ngpu = "a100-sxm-80gb"\nusd_per_gpu_hour = "2"\n')
    folder = tmp_path / "data" / "sites" / "k8s"
    with live(tmp_path / "data", "--sites", str(sites)) as server:
        wait_for(lambda: len(_jobs(folder)) == len(RECORDED) + 1)
        told = server.ask("admin", "observed", "k8s")
        (run,) = server.ask("simulate", str(trace), "--fleet", str(fleet))["runs"]
    assert (told["jobs"], told["gpus"], told["still_waiting"]) == (len(RECORDED), 8, 1)
    del told["rehearsed"]["cpu_s"]
    assert told["rehearsed"] == {key: run[key] for key in told["rehearsed"]}
    waits_h = [start_h - came_h for *_, came_h, start_h, _ in RECORDED]
    assert told["observed"]["mean_first_wait_h"] == pytest.approx(sum(waits_h) / len(waits_h))
    assert told["observed"]["makespan_h"] == pytest.approx(14.0)
    assert told["rehearsed"]["makespan_h"] < 14.0, "brimful would have been in more of a hurry"
    assert told["saved_usd"] == pytest.approx((14.0 - told["rehearsed"]["makespan_h"]) * 8 * 2)


def _jobs(folder: Path) -> dict[str, Any]:
    return dict(read_jobs(folder)) if (folder / "observed.json").exists() else {}


def a_pod(uid: str, made: str, *, owner: str = "", gpus: int = 8, **status: Any) -> Thing:
    owners = [{"uid": owner}] if owner else []
    meta: Thing = {"name": uid, "uid": uid, "namespace": "team-a"}
    meta |= {"creationTimestamp": made, "ownerReferences": owners}
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
