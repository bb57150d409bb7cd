"""The Ray engine on a private cluster: lease latency, and how soon a lost node is noticed.

    make bench ARGS=ray       about two minutes; needs root and Ray (tools/setup.sh engines)

Wall seconds, since the bars are about waiting. Every figure comes from the run that prints it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.document import judged, markdown
from bench.groups.engines import Figure, seconds
from bench.measure import Benchmark
from tests.engines.labs import ALONE, GANG, NODES
from tests.engines.ray_cluster import RayLab, ray_cluster
from tests.engines.test_conformance import DEAF, POLITE, STAYS

TITLE = "Ray (wall seconds)"
TABLES = ("ray",)


def benchmarks() -> Iterator[Benchmark]:
    yield from ()


def tables() -> dict[str, str]:
    if os.geteuid() != 0 or importlib.util.find_spec("ray") is None:
        print("the Ray figures were not measured: Ray or root is missing", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as folder, ray_cluster(Path(folder) / "ray") as cluster:
        RayLab.cluster = cluster
        lab = RayLab(Path(folder) / "lab")
        figures = list(_figures(lab))
        rows = [[each.what, each.found, judged(each.bar, is_met=each.is_met)] for each in figures]
        lab.close()
    return {"ray": markdown(["Ray 2.60, made-up GPUs, one machine", "measured", "bar"], rows)}


def _figures(lab: RayLab) -> Iterator[Figure]:
    lab.start(STAYS, "warm.1")  # the agents start with the first lease
    lab.waits_for("running", "warm.1")
    lab.stop("warm.1", grace_s=1)
    lab.waits_for("ended", "warm.1")

    began = time.monotonic()
    lab.start(POLITE, "a.1", parts=ALONE)
    lab.waits_for("running", "a.1")
    yield seconds("lease, order to running", time.monotonic() - began, None)
    _wait_for_word(lab, "a.1")
    began = time.monotonic()
    lab.stop("a.1", grace_s=600)
    lab.waits_for("ended", "a.1")
    yield seconds("cooperative stop", time.monotonic() - began, None)

    began = time.monotonic()
    lab.start(STAYS, "b.1", parts=GANG)
    lab.waits_for("running", "b.1")
    yield seconds("gang on two nodes, order to both ranks running", time.monotonic() - began, None)
    lab.stop("b.1", grace_s=1)
    lab.waits_for("ended", "b.1")

    lab.start(DEAF, "c.1")
    lab.waits_for("running", "c.1")
    _wait_for_word(lab, "c.1")
    began = time.monotonic()
    lab.stop("c.1", grace_s=2)
    lab.waits_for("ended", "c.1")
    yield seconds("deaf job gone, grace 2 s", time.monotonic() - began, None)

    lab.start(STAYS, "d.1")
    lab.waits_for("running", "d.1")
    began = time.monotonic()
    lab.lose_node(NODES[0])
    assert lab.waits_for("ended", "d.1").cause == "node_lost"
    yield seconds("lost node noticed (Ray's own settings)", time.monotonic() - began, 10.0)
    lab.node_returns(NODES[0])


def _wait_for_word(lab: RayLab, lease: str) -> None:
    while "up" not in lab.log(lease):
        time.sleep(0.05)
