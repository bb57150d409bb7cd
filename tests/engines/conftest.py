"""The engines under test. A new engine is a `Lab` and a line in LABS: the scenarios stay the same for all.

A scenario marked `@pytest.mark.fault("node_lost")` runs on the engines whose lab can make that fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.kubernetes_lab import KubernetesLab
from tests.engines.labs import Lab, LocalLab
from tests.engines.live_kubernetes import Cluster, LiveLab, is_set_up
from tests.engines.ray_cluster import RayCluster, RayLab, ray_cluster
from tests.engines.slurm_lab import SlurmLab, close_clusters
from tests.engines.sshd import SshLab, close_machines

LABS: dict[str, Callable[[Path], Lab]] = {
    "local": LocalLab,
    "slurm": SlurmLab,
    "kubernetes": KubernetesLab,
    "live-kubernetes": LiveLab,
    "ray": RayLab,
    "ssh": SshLab,
}
FAULTS: dict[str, frozenset[str]] = {
    "local": LocalLab.faults,
    "slurm": SlurmLab.faults,
    "kubernetes": KubernetesLab.faults,
    "live-kubernetes": LiveLab.faults,
    "ray": RayLab.faults,
    "ssh": SshLab.faults,
}
MARKS = {"ray": pytest.mark.engines, "live-kubernetes": pytest.mark.kubernetes}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" in metafunc.fixturenames:
        wanted = {str(mark.args[0]) for mark in metafunc.definition.iter_markers("fault")}
        found = [name for name in LABS if wanted <= FAULTS[name]]
        marked = [pytest.param(name, marks=MARKS.get(name, ())) for name in found]
        metafunc.parametrize("site", marked, indirect=True)


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.fixture(scope="session")
def live_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    is_set_up()
    made = Cluster(tmp_path_factory.mktemp("kubernetes") / "cluster")
    yield made
    made.close()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    if request.param == "ray":
        RayLab.cluster = request.getfixturevalue("ray")
    if request.param == "live-kubernetes":
        LiveLab.cluster = request.getfixturevalue("live_kubernetes")
    made = LABS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _clusters_end_with_the_tests() -> Iterator[None]:
    yield
    close_clusters()
    close_machines()
