"""A real server above the Kubernetes of the lab, as the how-to page describes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.kubernetes_api import Thing
from tests.engines.kubernetes_lab import SPACE, KubernetesLab
from tests.engines.labs import NODES
from tests.engines.test_slurm_server import COUNTS, phase
from tests.server.live import Live, live, wait_for


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubernetesLab]:
    made = KubernetesLab(tmp_path)
    yield made
    made.close()


def sites_of(lab: KubernetesLab, folder: Path) -> Path:
    shared = folder / "checkpoints"
    path = folder / "sites.toml"
    path.write_text(f"""[k8s]
engine = "kubernetes"
image = "brimful:test"
kubeconfig = "{lab.config}"
python = "{sys.executable}"
folder = "{shared}"
usd_per_gpu_hour = 3.6
pending_s = 1

[k8s.volumes]
"{shared}" = "host:{shared}"
""")
    return path


def pods(lab: KubernetesLab) -> list[Thing]:
    return list(lab.world.all("pods", SPACE))


@pytest.fixture
def server(lab: KubernetesLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.chdir(tmp_path)
    with live(tmp_path / "data", "--sites", str(sites_of(lab, tmp_path))) as made:
        yield made


def test_jobs_run_beside_strangers_and_go_on_elsewhere_when_they_are_preempted(
    server: Live, lab: KubernetesLab
) -> None:
    lab.occupy(NODES[1], 0, gpus=2)
    wait_for(lambda: server.ask("fleet", "show")["free"] == 6)
    command = [sys.executable, "-c", COUNTS]
    first = server.submit("--gpus", "4", command=command)
    wait_for(lambda: phase(server, first) == "running")
    assert {pod["spec"]["nodeName"] for pod in pods(lab)} == {NODES[0]}
    second = server.submit("--gpus", "2", command=command)
    wait_for(lambda: phase(server, second) == "running")
    lab.vacate()
    wait_for(lambda: "saved" in log_of(server, f"{first}.1"))
    lab.preempt(NODES[0])
    wait_for(lambda: server.show(first)["leases"][0]["reason_code"])
    assert server.show(first)["leases"][0]["reason_code"]["code"] == "kubernetes.sent_away"
    lab.vacate()
    wait_for(lambda: "saved" in log_of(server, f"{first}.2"))
    assert "from 1" in log_of(server, f"{first}.2")
    Path("go").touch()
    wait_for(lambda: {phase(server, job) for job in (first, second)} == {"finished"})
    wait_for(lambda: pods(lab) == [])


def log_of(server: Live, lease: str) -> str:
    path = server.data / "sites" / "k8s" / lease / "ranks" / "0" / "log"
    return path.read_text() if path.exists() else ""


RUNS_ONCE = """
import pathlib, time
with open("ran", "a") as file:
    file.write("x")
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def test_a_server_that_is_killed_finds_its_pods_again(
    lab: KubernetesLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = Live(tmp_path / "data", "--sites", str(sites_of(lab, tmp_path))).up()
    try:
        jobs = [server.submit("--gpus", "1", command=[sys.executable, "-c", RUNS_ONCE]) for _ in range(6)]
        wait_for(lambda: any(phase(server, job) == "running" for job in jobs), every_s=0.01)
        server.kill()
        server.up()
        wait_for(lambda: all(phase(server, job) == "running" for job in jobs))
        Path("go").touch()
        wait_for(lambda: all(phase(server, job) == "finished" for job in jobs))
        assert (tmp_path / "ran").read_text() == "x" * 6
        assert [len(server.show(job)["leases"]) for job in jobs] == [1] * 6
    finally:
        server.down()
