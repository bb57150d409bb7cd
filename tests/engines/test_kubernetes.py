"""What the Kubernetes engine sends, and what it makes of the answers, beyond the scenarios of all engines."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from brimful.adapters.engines.cluster import HELD_S
from brimful.adapters.engines.kubernetes import inventory, manifests
from brimful.adapters.engines.kubernetes.client import Api
from brimful.adapters.engines.kubernetes.engine import ORPHAN_S, KubernetesEngine
from brimful.adapters.engines.kubernetes.manifests import Place
from brimful.adapters.engines.kubernetes.options import KubernetesOptions, tolerates, toleration, volume
from brimful.adapters.sites import Site, Surroundings, make_engine
from brimful.errors import BadInput, WorldFailed
from brimful.language import Number, say
from brimful.scheduler.ports import CannotStart
from tests.builders import code_of, eventually, refuses
from tests.engines.kubernetes_api import Refused, Served, Thing, World
from tests.engines.kubernetes_lab import GPU, SPACE, KubernetesLab, a_node, kubeconfig
from tests.engines.labs import GANG, NODES
from tests.engines.test_conformance import RUNS, SAVES, STAYS, TELLS, up

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
PLACES = {name: Place(name, GPU) for name in NODES}
READY = {"type": "Ready", "status": "True"}
PLAIN = KubernetesOptions(image="team/train:1")
FULL = KubernetesOptions(
    image="team/train:1",
    folder="/shared",
    volumes={
        "/shared": "pvc:shared",
        "/data": "nfs:10.0.0.7:/exports/data",
        "/models": "host:/mnt/models",
        "/etc/train": "configmap:train",
        "/keys": "secret:keys",
        "/dev/shm": "memory:16Gi",
        "/scratch": "empty:",
    },
    service_account="trainer",
    priority_class="research",
    runtime_class="nvidia",
    pull_secrets=("registry",),
    tolerations=("nvidia.com/gpu", "team=research:NoSchedule", "spot:NoExecute"),
    cpus_per_gpu=8,
    memory_mib_per_gpu=65536,
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubernetesLab]:
    made = KubernetesLab(tmp_path)
    yield made
    made.close()


def all_manifests(options: KubernetesOptions, resource: str = GPU) -> list[Thing]:
    places = {name: Place(name, resource) for name in NODES}
    records = [
        manifests.record("d1", "a.1", "ordered", {"nodes": list(NODES)}, before=None),
        manifests.record("d1", "a.1", "over", {}, before={"metadata": {"resourceVersion": "7"}}),
    ]
    orders = manifests.secrets("d1", "a.1", {"command": ["python"]}, b"x" * (manifests.PIECE_BYTES + 1))
    pods = manifests.pods(
        "d1", "a.1", GANG, places, options, namespace=SPACE, sends=True, secrets=len(orders)
    )
    return [*records, *orders, *pods]


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_is_sent_passes_the_published_schema_of_every_release(version: str) -> None:
    for options in (PLAIN, FULL):
        for resource in (GPU, "amd.com/gpu", "nvidia.com/mig-1g.10gb"):
            for thing in all_manifests(options, resource):
                kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_of_the_install_page_passes_it_too(version: str) -> None:
    for thing in _install_file():
        kubernetes_validate.validate(thing, version, strict=True)


def test_the_validator_would_find_a_mistake() -> None:
    pod = all_manifests(PLAIN)[-1]
    mistakes: list[Thing] = [{"schedulingGate": []}, {"restartPolicy": 3}]
    for wrong in mistakes:
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**pod, "spec": {**pod["spec"], **wrong}}, "1.28", strict=True)


def _install_file() -> list[Thing]:
    path = Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.yaml"
    return list(yaml.safe_load_all(path.read_text()))


def test_the_account_of_the_install_page_may_do_what_the_engine_does_and_no_more(lab: KubernetesLab) -> None:
    """Every kind of request that a lease's whole life makes, beside the rules."""
    lab.start(STAYS, parts=GANG)
    up(lab)
    lab.engine.warn("a.1", until_s=2_000_000_000)  # type: ignore[attr-defined]
    lab.stop("a.1", grace_s=1)
    lab.waits_for("ended")
    lab.look("nobody.1")
    engine = lab.engine
    assert isinstance(engine, KubernetesEngine)
    engine._records.sweep(before_s=2_000_000_000)
    allowed = set()
    for thing in _install_file():
        if thing["kind"] in ("Role", "ClusterRole"):
            space = SPACE if thing["kind"] == "Role" else ""
            for rule in thing["rules"]:
                allowed |= {(space, kind, verb) for kind in rule["resources"] for verb in rule["verbs"]}
    assert lab.served.asked == allowed


def test_the_ranks_of_a_gang_are_found_by_the_service_of_the_install_page() -> None:
    service = next(thing for thing in _install_file() if thing["kind"] == "Service")
    pods = [thing for thing in all_manifests(PLAIN) if thing["kind"] == "Pod"]
    for pod in pods:
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        assert len(pod["spec"]["hostname"]) <= 63
    env = {each["name"]: each["value"] for each in pods[1]["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"].split(".")[:3] == [pods[0]["spec"]["hostname"], "brimful", SPACE]


def test_a_pod_asks_for_the_chosen_node_and_its_gpus() -> None:
    pods = [thing for thing in all_manifests(FULL, "amd.com/gpu") if thing["kind"] == "Pod"]
    for pod, (node, gpus) in zip(pods, GANG, strict=True):
        spec = pod["spec"]
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [node]
        asked = spec["containers"][0]["resources"]
        assert asked["limits"]["amd.com/gpu"] == asked["requests"]["amd.com/gpu"] == str(len(gpus))
        assert asked["requests"]["cpu"] == str(8 * len(gpus))
        assert spec["priorityClassName"] == "research"
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", True)
        assert spec["terminationGracePeriodSeconds"] > FULL.grace_s
        assert {"key": "team", "operator": "Equal", "value": "research", "effect": "NoSchedule"} in spec[
            "tolerations"
        ]


@pytest.mark.parametrize("lease", ["a.1", "A_b.17", "x" * 100, "-.-", "train-llama.3"])
def test_names_are_the_same_each_time_and_valid(lease: str) -> None:
    name = manifests.name_of("d1", lease)
    assert name == manifests.name_of("d1", lease) != manifests.name_of("d2", lease)
    assert manifests.name_of("d1", lease + "x") != name
    pod = manifests.pod_name(name, 1023)
    assert len(pod) <= 63
    assert pod.replace("-", "").isalnum()
    assert pod == pod.lower()


@pytest.mark.parametrize("text", ["", ":NoSchedule", "key:Never", "=x:NoSchedule"])
def test_a_toleration_that_is_none_is_refused(text: str) -> None:
    with refuses(BadInput, "kubernetes.bad_toleration"):
        toleration(text)


@pytest.mark.parametrize(
    "source", [("data", "pvc:x"), ("/data", "pvc:"), ("/data", "disk:x"), ("/data", "nfs:server")]
)
def test_a_volume_that_is_none_is_refused(source: tuple[str, str]) -> None:
    with refuses(BadInput, "kubernetes.bad_volume"):
        volume(*source, name="v")


def test_tolerations_match_as_in_kubernetes() -> None:
    taint = {"key": "team", "value": "research", "effect": "NoSchedule"}
    for text, is_tolerated in {
        "team": True,
        "team:NoSchedule": True,
        "team:NoExecute": False,
        "team=research:NoSchedule": True,
        "team=other:NoSchedule": False,
        "other": False,
    }.items():
        assert tolerates([toleration(text)], taint) is is_tolerated, text


# -- nodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}, "k=v:NoSchedule"),
        ({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, "k:NoExecute"),
        ({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}}, ""),
        ({"spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}}, ""),
        ({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}},
         "Ready=False KubeletNotReady"),
        ({"status": {"conditions": [READY, {"type": "DiskPressure", "status": "True"}]}}, "DiskPressure"),
        ({"status": {}}, "Ready=?"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_pods_says_why(lab: KubernetesLab, change: Thing, why: str) -> None:
    node = lab.world.get("nodes", "", NODES[0])
    for part, values in change.items():
        node[part] = {**node[part], **values} if values else {"allocatable": node[part]["allocatable"]}
    offered = {each.node for each in lab.engine.nodes()}
    complaints = lab.engine.complaints()  # type: ignore[attr-defined]
    assert (NODES[0] in offered) is not bool(why)
    assert why in str(complaints.get(NODES[0], ""))


def test_a_node_offers_its_gpus_by_type_and_its_slices_beside_them(lab: KubernetesLab) -> None:
    node = a_node("mixed")
    node["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "0"}
    lab.world.create("nodes", "", node)
    found = {each.node: each for each in lab.engine.nodes()}
    assert (found["mixed"].gpu, found["mixed"].gpus) == ("a100-sxm-80gb", 4)
    slices = found["mixed:mig-1g.10gb"]
    assert (slices.gpu, slices.gpus) == ("a100-sxm-80gb-mig-1g.10gb", 7)
    two = lab.start(RUNS, parts=(("mixed:mig-1g.10gb", (0, 1)),))
    assert isinstance(two["a.1"], CannotStart), "CUDA shows a process one slice"
    assert two["a.1"].said == say("kubernetes.one_slice", resource="nvidia.com/mig-1g.10gb", gpus=2)


def test_a_share_of_a_gpu_is_refused_with_its_size(lab: KubernetesLab) -> None:
    order = lab.order(RUNS)
    order = order._replace(job=replace(order.job, gpu_milli=250))
    refused = lab.engine.start([order])["a.1"]
    assert isinstance(refused, CannotStart)
    assert refused.said == say("kubernetes.no_shares", site="k8s", share=Number(0.25, 2))
    assert "0.25" in str(refused)


def test_resources_that_two_vendors_call_alike_are_told_apart() -> None:
    node = a_node("mixed")
    more = {"amd.com/gpu": "2", "example.com/gpu": "1"}
    node["status"]["allocatable"] |= more
    options = KubernetesOptions(resources=(GPU, *more))
    found = {own: (place.resource, count) for own, place, count in inventory.places(node, options)}
    assert found == {
        "mixed": (GPU, 4),
        "mixed:gpu.amd.com": ("amd.com/gpu", 2),
        "mixed:gpu.example.com": ("example.com/gpu", 1),
    }


def test_a_node_with_more_gpus_than_can_be_is_not_offered(lab: KubernetesLab) -> None:
    lab.world.get("nodes", "", NODES[0])["status"]["allocatable"][GPU] = "999999999"
    assert {each.node for each in lab.engine.nodes()} == {NODES[1]}
    complaints = lab.engine.complaints()  # type: ignore[attr-defined]
    assert code_of(complaints[NODES[0]]) == "adapters.strange_node"


def test_what_others_hold_counts_by_resource_wherever_they_run() -> None:
    pods = [
        _a_pod("n", "Running", {GPU: "2"}),
        _a_pod("n", "Pending", {GPU: "1"}),
        _a_pod("n", "Failed", {GPU: "1"}),
        _a_pod("n", "Running", {"nvidia.com/mig-1g.10gb": "3", "cpu": "4"}),
        _a_pod("", "Pending", {GPU: "4"}),
    ]
    assert inventory.held(pods) == {Place("n", GPU): 3, Place("n", "nvidia.com/mig-1g.10gb"): 3}


def _a_pod(node: str, phase: str, asked: dict[str, str]) -> Thing:
    box = {"resources": {"limits": asked}}
    return {"spec": {"nodeName": node, "containers": [box]}, "status": {"phase": phase}}


def test_first_containers_hold_gpus_one_by_one_and_sidecars_beside_the_others() -> None:
    def box(gpus: str, **more: str) -> Thing:
        return {"resources": {"requests": {GPU: gpus}}, **more}

    spec = {"containers": [box("1"), box("1")], "initContainers": [box("4")]}
    assert inventory.asked_for(spec)[GPU] == 4
    spec["initContainers"] = [box("1", restartPolicy="Always"), box("1")]
    assert inventory.asked_for(spec)[GPU] == 3


# -- leases ----------------------------------------------------------------------------------------------


def test_the_pods_of_a_gang_are_released_together_or_not_at_all(lab: KubernetesLab) -> None:
    """The second Pod cannot be made: the first one never runs."""
    second = manifests.pod_name(manifests.name_of(_engine(lab).deployment, "a.1"), 1)
    create = lab.world.create

    def refuse(kind: str, space: str, thing: Thing) -> Thing:
        if thing["metadata"]["name"] == second:
            raise Refused(500, "etcdserver: request timed out")
        return create(kind, space, thing)

    lab.world.create = refuse  # type: ignore[method-assign]
    failed = lab.engine.start([lab.order(TELLS, parts=GANG)])
    assert "request timed out" in str(failed["a.1"].said)
    seen = lab.look()
    assert seen is not None
    assert seen.state == "absent", "it is asked for again"
    (first,) = lab.world.all("pods", SPACE)
    assert first["spec"]["schedulingGates"] == [{"name": manifests.GATE}]
    assert not first["spec"].get("nodeName")
    lab.world.create = create  # type: ignore[method-assign]
    assert lab.start(TELLS, parts=GANG) == {}
    assert lab.waits_for("ended").exit_codes == (0, 0)


def test_what_the_cluster_refuses_is_handed_back_with_its_reason(lab: KubernetesLab) -> None:
    create = lab.world.create

    def refuse(kind: str, space: str, thing: Thing) -> Thing:
        if kind == "pods":
            raise Refused(403, "exceeded quota: gpus")
        return create(kind, space, thing)

    lab.world.create = refuse  # type: ignore[method-assign]
    failed = lab.start(RUNS)
    assert isinstance(failed["a.1"], CannotStart)
    assert "exceeded quota" in str(failed["a.1"].said)
    lab.world.create = create  # type: ignore[method-assign]
    assert lab.start(RUNS) == {}, "what was handed back is never begun after all"
    assert lab.waits_for("ended").cause == "preempted_by_engine"
    assert not (lab.folder / "ran").exists()


def test_a_rank_that_somebody_deletes_ends_its_gang_and_burns_no_try(lab: KubernetesLab) -> None:
    lab.start(STAYS, parts=GANG)
    for rank in range(2):
        eventually(lambda rank=rank: "up" in lab.log(rank=rank))  # type: ignore[misc]
    lab.waits_for("running")
    second = manifests.pod_name(manifests.name_of(_engine(lab).deployment, "a.1"), 1)
    lab.world.delete("pods", SPACE, second)
    ended = lab.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None)


def _engine(lab: KubernetesLab) -> KubernetesEngine:
    assert isinstance(lab.engine, KubernetesEngine)
    return lab.engine


def test_a_start_that_comes_too_late_runs_nothing_even_after_all_traces_but_the_record_are_gone(
    lab: KubernetesLab,
) -> None:
    lab.start(RUNS)
    lab.waits_for("ended")
    assert list(lab.world.all("pods", SPACE)) == []
    assert list(lab.world.all("secrets", SPACE)) == [], "the job's environment was in it"
    lab.restart()
    assert lab.start(RUNS) == {}
    assert lab.waits_for("ended").exit_code == 0
    assert (lab.folder / "ran").read_text() == "x"


def test_a_server_that_was_deposed_in_the_midst_of_a_start_runs_nothing(lab: KubernetesLab) -> None:
    """It has read that the lease is ordered; before it goes on, the new leader stops the lease."""
    late, leader = _engine(lab), _engine_like(lab)
    create = late._api.create

    def slow(thing: Thing) -> Thing | None:
        if thing["kind"] == "Pod":
            leader.stop(["a.1"], grace_s=1)
            (seen,) = leader.observe(["a.1"])
            assert (seen.state, seen.cause) == ("ended", "stopped_by_us")
        return create(thing)

    late._api.create = slow  # type: ignore[method-assign]
    assert lab.start(RUNS) == {}
    eventually(lambda: not list(lab.world.all("pods", SPACE)))
    assert not (lab.folder / "ran").exists()


def _engine_like(lab: KubernetesLab) -> KubernetesEngine:
    return lab.new_engine()


def test_a_crash_between_the_record_and_the_gates_is_made_good_at_the_next_look(lab: KubernetesLab) -> None:
    engine = _engine(lab)
    engine._records.release = lambda *_: None  # type: ignore[method-assign]
    lab.start(RUNS)
    lab.restart()
    assert lab.waits_for("ended").exit_code == 0


def test_pods_stay_until_their_end_is_recorded(lab: KubernetesLab) -> None:
    """Somebody deletes the Pod while brimful is away: its end is there when brimful comes back."""
    lab.start(SAVES)
    eventually(lambda: "saved" in lab.log())
    lab.waits_for("running")
    (pod,) = lab.world.all("pods", SPACE)
    lab.world.delete("pods", SPACE, pod["metadata"]["name"])
    eventually(lambda: pod["status"]["phase"] in ("Failed", "Succeeded"))
    assert list(lab.world.all("pods", SPACE)), "the finalizer holds it"
    lab.restart()
    ended = lab.waits_for("ended")
    assert ended.cause == "preempted_by_engine"
    assert ended.exit_code is None
    assert ended.kept_work_s is not None
    eventually(lambda: not list(lab.world.all("pods", SPACE)))


def test_an_eviction_is_told_with_its_reason(lab: KubernetesLab) -> None:
    lab.start(STAYS)
    up(lab)
    lab.waits_for("running")
    (pod,) = lab.world.all("pods", SPACE)
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "drain",
    }
    pod["status"]["conditions"].append(target)
    lab.world.delete("pods", SPACE, pod["metadata"]["name"])
    ended = lab.waits_for("ended")
    assert ended.cause == "preempted_by_engine"
    assert "EvictionByEvictionAPI" in str(ended.problem)
    assert "drain" in str(ended.problem)


def test_an_image_that_cannot_be_pulled_ends_the_lease_with_the_kubelets_words(lab: KubernetesLab) -> None:
    now = [0.0]
    lab.engine = _with_clock(lab, now)
    lab.machine.ends.set()
    lab.machine.join()  # from here on nobody runs Pods
    lab.start(RUNS)
    (pod,) = lab.world.all("pods", SPACE)
    pod["spec"]["nodeName"] = NODES[0]
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "rank", "state": waiting}]}
    assert "ImagePullBackOff" in str(lab.waits_for("waiting").problem)
    now[0] = 601.0
    lab.look()
    pod["status"] = {"phase": "Failed", "containerStatuses": []}
    ended = lab.waits_for("ended")
    assert (ended.cause, ended.started_s) == ("failed", None)
    assert "no such image" in str(ended.problem)


def _with_clock(lab: KubernetesLab, now: list[float]) -> KubernetesEngine:
    made = lab.new_engine()
    made._clock = lambda: now[0]
    return made


def test_a_notice_reaches_the_job_and_can_be_taken_back(lab: KubernetesLab) -> None:
    waits = """
import os, pathlib, time
notice = pathlib.Path(os.environ["BRIMFUL_NOTICE"])
print("up", flush=True)
while not notice.exists(): time.sleep(0.05)
print(notice.read_text(), flush=True)
while notice.exists(): time.sleep(0.05)
print("stays", flush=True)
"""
    lab.start(waits)
    up(lab)
    engine = _engine(lab)
    engine.warn("a.1", until_s=2_000_000_000)
    eventually(lambda: any("2000000000" in line for line in lab.log()))
    engine.warn("a.1", until_s=None)
    assert lab.waits_for("ended").exit_code == 0
    assert lab.log()[-1] == "stays"


def test_a_node_whose_lease_was_handed_back_is_offered_again_after_a_while(lab: KubernetesLab) -> None:
    now = [0.0]
    lab.engine = _with_clock(lab, now)
    for gpu in range(4):
        lab.occupy(NODES[0], gpu)
    lab.start(RUNS)
    eventually(lambda: "Insufficient" in str((seen := lab.look()) and seen.problem))
    now[0] = 2.0
    assert lab.waits_for("ended").cause == "preempted_by_engine"
    lab.vacate()
    assert _offered(lab, NODES[0]) == 0
    now[0] += HELD_S
    assert _offered(lab, NODES[0]) == 4


def _offered(lab: KubernetesLab, name: str) -> int:
    return next(node.offered_gpus for node in lab.engine.nodes() if node.node == name)


def test_a_lease_that_nobody_asks_for_is_ended_after_a_while(lab: KubernetesLab) -> None:
    now = [0.0]
    lab.engine = _with_clock(lab, now)
    lab.start(STAYS)
    up(lab)
    lab.engine.observe([])
    now[0] = ORPHAN_S - 1
    lab.engine.observe([])
    assert lab.waits_for("running").state == "running"
    lab.engine.observe([])
    now[0] += ORPHAN_S
    eventually(lambda: lab.engine.observe([]) == [] and not list(lab.world.all("pods", SPACE)))
    assert lab.waits_for("ended").cause == "stopped_by_us"


def test_records_of_leases_that_were_over_long_ago_go(lab: KubernetesLab) -> None:
    lab.start(RUNS)
    ended = lab.waits_for("ended")
    engine = _engine(lab)
    assert ended.ended_s is not None
    engine._records.sweep(before_s=ended.ended_s - 60)
    assert len(list(lab.world.all("configmaps", SPACE))) == 1
    engine._records.sweep(before_s=ended.ended_s + 60)
    assert list(lab.world.all("configmaps", SPACE)) == []


def test_a_log_is_brought_without_gaps_or_repeats_and_outlives_its_pod(lab: KubernetesLab) -> None:
    prints = "import time\nfor i in range(300):\n    print(i, flush=True)\n    time.sleep(0.002)"
    lab.start(prints)
    eventually(lambda: lab.log() or lab.look())
    lab.restart()
    lab.waits_for("ended")
    assert lab.log() == [str(i) for i in range(300)]


@pytest.mark.parametrize(
    ("version", "is_refused"), [("v1.26.9", True), ("v1.27.0", False), ("v1.31.2+k3s1", False)]
)
def test_servers_below_1_27_are_refused_with_a_reason(tmp_path: Path, version: str, is_refused: bool) -> None:
    served = Served(World(), version=version)
    config = tmp_path / "config"
    config.write_text(kubeconfig(served.url))
    api = Api(site="k8s", kubeconfig=str(config), context="lab", namespace=SPACE)
    try:
        if is_refused:
            with refuses(WorldFailed, "kubernetes.too_old", "1.27"):
                api.nodes()
        else:
            assert api.nodes() == []
    finally:
        served.close()


def test_a_cluster_that_is_not_there_is_the_sites_trouble(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(kubeconfig("http://127.0.0.1:9"))
    broken = {config: "kubernetes.failed", tmp_path / "missing": "kubernetes.no_config"}
    for path, code in broken.items():
        api = Api(site="k8s", kubeconfig=str(path), context="", namespace=SPACE)
        with refuses(WorldFailed, code, "k8s"):
            api.nodes()


def test_lists_are_read_to_their_last_page(lab: KubernetesLab) -> None:
    for i in range(1203):
        spec = {"schedulingGates": [{"name": "x"}]}
        lab.world.things["pods", "default", f"p-{i}"] = {
            "metadata": {"name": f"p-{i}", "uid": str(i)},
            "spec": spec,
        }
    assert len(_engine(lab)._api.everybodys_pods()) == 1203


def test_a_site_is_made_from_its_table_and_needs_an_image_unless_it_is_watched(tmp_path: Path) -> None:
    given = Surroundings(folder=tmp_path / "k", log_bytes=1, microusd_per_gpu_hour=1)
    options: dict[str, Any] = {"image": "x", "volumes": {"/data": "pvc:data"}, "tolerations": ["gpu"]}
    made = make_engine(Site(site="k", engine="kubernetes", options=options), given)
    assert isinstance(made, KubernetesEngine)
    make_engine(Site(site="k", engine="kubernetes", mode="observe"), given)
    with refuses(BadInput, "sites.option_missing", "image"):
        make_engine(Site(site="k", engine="kubernetes"), given)
    for wrong in ({"tolerations": ["a:b"]}, {"volumes": {"data": "pvc:x"}}, {"images": "x"}):
        with pytest.raises(BadInput):
            make_engine(Site(site="k", engine="kubernetes", options={**options, **wrong}), given)


def test_the_record_survives_a_round_trip() -> None:
    thing = manifests.record("d1", "a.1", "released", {"nodes": ["n"], "speed": 1.5}, before=None)
    read = manifests.read_record(json.loads(json.dumps(copy.deepcopy(thing))))
    assert (read.lease, read.state, read.facts["speed"]) == ("a.1", "released", 1.5)
