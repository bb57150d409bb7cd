"""The ssh engine beside the suite: its connections, and machines that are not what they should be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from brimful.adapters.engines.ssh.engine import Reach, SshEngine, ssh_site
from brimful.adapters.sites import Site, Surroundings
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.scheduler.cloud.providers import Host
from brimful.scheduler.ports import Observation, Start
from tests.builders import a_node, eventually, refuses
from tests.engines.labs import NODES
from tests.engines.sshd import the_machines


class Ssh(Protocol):
    def __call__(self, python: str = sys.executable) -> SshEngine: ...


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Ssh]:
    made: list[SshEngine] = []

    def make(python: str = sys.executable) -> SshEngine:
        made.append(an_engine(tmp_path, python))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def an_engine(folder: Path, python: str) -> SshEngine:
    reach = Reach(ssh=the_machines().flags, python=python, folder=str(folder / "nodes"))
    made = SshEngine(folder / "leases", reach, site="ssh", log_bytes=1 << 20)
    node = replace(a_node(NODES[0]), site="ssh")
    made.take({node.node: Host(node, node.node)})
    return made


def a_fake(folder: Path, *lines: str) -> str:
    """A Python that says these lines, whatever it is asked, and then waits."""
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + "".join(f"read asked; echo '{line}'\n" for line in lines) + "cat\n")
    path.chmod(0o755)
    return str(path)


def test_one_connection_serves_everything_and_is_made_again_when_lost(ssh: Ssh, tmp_path: Path) -> None:
    machines, name = the_machines(), NODES[0]
    before, engine = machines.logins(name), ssh()
    eventually(lambda: _nodes(engine))
    job = Job(job="a", gpus=1, command=("sh", "-c", "echo up; sleep 3600"), folder=str(tmp_path))
    assert engine.start([Start("a.1", job, ((name, (0,)),))]) == {}
    eventually(lambda: engine.log("a.1").data == b"up\n")
    assert machines.logins(name) == before + 1
    machines.cut(name)
    with refuses(WorldFailed, "adapters.ssh_failed"):
        engine.nodes()
    machines.mend(name)
    eventually(lambda: any(each.state == "running" for each in _seen(engine)))
    assert machines.logins(name) == before + 2
    engine.stop(["a.1"], grace_s=1)
    eventually(lambda: any(each.state == "ended" for each in _seen(engine)))
    engine.take({})
    assert engine.log("a.1").data == b"up\n", "kept when the machine was given back"
    assert engine.nodes() == []


def _nodes(engine: SshEngine) -> list[Node]:
    """As soon as it answers: on a busy machine a first connection takes longer than one look."""
    try:
        return list(engine.nodes())
    except WorldFailed:
        return []


def _seen(engine: SshEngine) -> list[Observation]:
    try:
        return list(engine.observe(["a.1"]))
    except WorldFailed:
        return []


def test_a_python_that_is_too_old_is_named(ssh: Ssh, tmp_path: Path) -> None:
    engine = ssh(a_fake(tmp_path, '{"old": "3.8"}'))
    with refuses(WorldFailed, "adapters.ssh_old_python", "n-0"):
        engine.nodes()


@pytest.mark.parametrize(
    "lie",
    [
        "3",
        "[1, 2]",
        '[[{"observation": 3}], [], null]',
        '[[{"rank": 0, "ranks": 1, "devices": [], "observation": {"lease": "b.1"}}], [], null]',
    ],
)
def test_what_a_machine_makes_up_is_not_believed(ssh: Ssh, tmp_path: Path, lie: str) -> None:
    welcome = ('{"send": false}', '{"ok": null}')
    engine = ssh(a_fake(tmp_path, *welcome, f'{{"ok": {lie}}}', f'{{"ok": {lie}}}'))
    engine._place("a.1", [NODES[0]])
    assert engine.observe(["a.1"]) == [], "nothing is known of the lease"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"hosts": ["-oProxyCommand=id"], "gpu": "t4", "gpus": 1}, "sites.bad_value"),
        ({"hosts": [], "gpu": "t4", "gpus": 1}, "sites.bad_value"),
        ({"hosts": ["a"], "gpu": "t4", "gpus": 0}, "sites.bad_value"),
        ({"hosts": ["a"], "gpu": "t4"}, "sites.option_missing"),
    ],
)
def test_a_site_that_cannot_be_right_is_refused(
    tmp_path: Path, options: dict[str, object], code: str
) -> None:
    given = Surroundings(folder=tmp_path, log_bytes=0, microusd_per_gpu_hour=1)
    with refuses(BadInput, code):
        ssh_site(Site(site="lab", engine="ssh", options=options), given)
