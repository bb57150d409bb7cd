"""What only Ray needs: agents that do not add up, and a head that has forgotten who holds which GPUs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.adapters.engines.gangs import ORPHAN_S
from tests.builders import eventually
from tests.engines.labs import NODES
from tests.engines.ray_cluster import PORT, RayCluster, RayLab
from tests.engines.test_conformance import STAYS, up

pytestmark = pytest.mark.engines

ASKS = """
import ray
ray.init("127.0.0.1:{port}", _node_ip_address="127.0.0.1", log_to_driver=False)
from ray._private.state import available_resources_per_node
from ray.util import list_named_actors
names = {{n["NodeID"]: n["NodeName"] for n in ray.nodes() if n["Alive"]}}
free = {{names[i]: int(has.get("GPU", 0)) for i, has in available_resources_per_node().items() if i in names}}
print("free", free["{node}"])
print("agents", sum(each["namespace"] == "{space}" for each in list_named_actors(all_namespaces=True)))
"""


@pytest.fixture
def lab(ray: RayCluster, tmp_path: Path) -> Iterator[RayLab]:
    RayLab.cluster = ray
    made = RayLab(tmp_path)
    yield made
    made.close()


def asked(lab: RayLab) -> dict[str, int]:
    """What Ray itself says: GPUs that are free on the first node, agents of this deployment."""
    code = ASKS.format(port=PORT, node=NODES[0], space=f"brimful-{lab.folder.name}")
    command = [*lab.cluster.through, *lab._python("")[-3:-1], code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in map(str.split, said.splitlines())}


def test_an_agent_that_nobody_asks_ends_itself_and_its_job_goes_on(lab: RayLab) -> None:
    lab.idle_s = 3.0
    lab.restart()
    lab.start(STAYS)
    up(lab)
    before = lab.waits_for("running")
    eventually(lambda: asked(lab)["agents"] == 0)
    assert lab.waits_for("running").started_s == before.started_s, "another agent has found it"
    assert (lab.folder / "ran").read_text() == "x"


def test_a_head_that_lost_its_memory_is_told_again_who_holds_which_gpus(lab: RayLab) -> None:
    lab.start(STAYS)
    up(lab)
    lab.waits_for("running")
    eventually(lambda: asked(lab)["free"] == 3)
    lab.cluster.begin_again()
    lab.restart()
    lab.waits_for("running")
    eventually(lambda: asked(lab)["free"] == 3)
    lab.stop("a.1", grace_s=1)
    lab.waits_for("ended")
    eventually(lambda: asked(lab)["free"] == 4)


def test_a_lease_that_nobody_asks_about_is_ended_as_an_orphan_and_its_gpus_are_free(lab: RayLab) -> None:
    """As of a server whose data was restored from before the lease: it knows of a.2 alone."""
    for lease in ("a.1", "a.2"):
        lab.start(STAYS, lease)
        up(lab, lease)
        lab.waits_for("running", lease)
    lab.restart()
    began_s = time.time()
    stop = lab.folder / "nodes" / NODES[0] / "a.1" / "stop.json"

    def is_told() -> bool:
        lab.engine.observe(["a.2"])
        return stop.exists()

    eventually(is_told)
    assert stop.stat().st_mtime - began_s >= ORPHAN_S, "not at once: a server may be catching up"
    eventually(lambda: lab.engine.observe(["a.2"]) and asked(lab)["free"] == 3)
    assert lab.waits_for("running", "a.2").cause is None, "who is asked about goes on"
    assert lab.waits_for("ended").cause == "stopped_by_us"
