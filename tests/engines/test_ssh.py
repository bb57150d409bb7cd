"""The ssh engine beside the suite: its connections, and machines that are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest

from brimful.adapters.engines.ssh import connection
from brimful.adapters.engines.ssh.engine import Reach, SshEngine, ssh_site
from brimful.adapters.sites import Site, Surroundings
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.scheduler.cloud.providers import Host
from brimful.scheduler.ports import Observation, Start
from tests.builders import a_node, code_of, eventually, refuses
from tests.engines.labs import NODES
from tests.engines.sshd import the_machines
from tests.patience import PATIENCE_S


class Ssh(Protocol):
    def __call__(self, python: str = sys.executable, **more: str) -> SshEngine: ...


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Ssh]:
    made: list[SshEngine] = []

    def make(python: str = sys.executable, **more: str) -> SshEngine:
        made.append(an_engine(tmp_path, python, **more))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def an_engine(folder: Path, python: str, *, notices: str = "") -> SshEngine:
    reach = Reach(ssh=the_machines().flags, python=python, folder=str(folder / "nodes"))
    made = SshEngine(folder / "leases", reach, site="ssh", log_bytes=1 << 20, notices=notices)
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


def test_a_machine_under_notice_is_closed_from_the_first_answer_on(ssh: Ssh, tmp_path: Path) -> None:
    """Also to a server that has just begun, and knows nothing of what was said before."""
    signal_file = tmp_path / "signal.yml"
    end = datetime.now(UTC) + timedelta(minutes=5)
    signal_file.write_text(f"instance_status: STATUS_PREEMPTING\nend_time: {end.isoformat()}\n")
    engine = ssh(notices=f"mithril@{signal_file}")

    def offered() -> list[Node] | None:
        nodes = _nodes(engine)
        return nodes if engine._machines[NODES[0]][1].answers else None

    eventually(lambda: offered() is not None)
    assert offered() == []
    assert code_of(engine.complaints()[NODES[0]]) == "adapters.machine_under_notice"


def test_leases_start_side_by_side(ssh: Ssh, tmp_path: Path) -> None:
    """Each waits for the others: one after the other, none would ever be through."""
    engine = ssh()
    eventually(lambda: _nodes(engine))
    together, began = threading.Barrier(3, timeout=PATIENCE_S), engine._start

    def start(each: Start) -> None:
        together.wait()
        began(each)

    engine._start = start  # type: ignore[method-assign, assignment]
    job = Job(job="a", gpus=1, command=("true",), folder=str(tmp_path))
    starts = [Start(f"{name}.1", replace(job, job=name), ((NODES[0], (0,)),)) for name in "abc"]
    assert engine.start(starts) == {}
    eventually(lambda: {each.state for each in engine.observe(["a.1", "b.1", "c.1"])} == {"ended"})


def test_machines_come_and_go_while_many_ask(ssh: Ssh) -> None:
    """The worker looks, and people read logs: whoever finds a machine gone first closes it, once."""
    engine, node = ssh(), replace(a_node(NODES[0]), site="ssh")
    hosts = {f"n-{i}": Host(replace(node, node=f"n-{i}"), "nowhere") for i in range(20)}
    together = threading.Barrier(8, timeout=PATIENCE_S)

    def ask(_: int) -> int:
        together.wait()
        return len(engine._meet())

    with ThreadPoolExecutor(8) as threads:
        for i in range(40):
            engine.take({} if i % 2 else hosts)
            assert set(threads.map(ask, range(8))) == {0 if i % 2 else len(hosts)}


def test_our_code_is_packed_once_for_all_machines() -> None:
    """A new server connects to all of them at once, and most have it already."""
    connection._read_ourselves.cache_clear()
    connection._compress.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: connection.ourselves().hash, range(8)))) == 1
    assert connection._read_ourselves.cache_info().misses == 1
    assert connection._compress.cache_info().misses == 0
    assert hashlib.sha256(gzip.decompress(connection.packed())).hexdigest() == connection.ourselves().hash


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
        '[[{"observation": 3}], []]',
        '[[{"rank": 0, "ranks": 1, "devices": [], "observation": {"lease": "b.1"}}], []]',
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
