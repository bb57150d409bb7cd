"""Slurm over ssh: every command goes to a login node, over one connection."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.adapters.engines.slurm.engine import SlurmEngine, slurm_site
from brimful.adapters.sites import Site, Surroundings
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.job import Job
from brimful.scheduler.ports import Start
from tests.builders import eventually, refuses
from tests.engines.ports import reserve_ports
from tests.engines.slurm_cluster import Cluster
from tests.engines.slurm_lab import the_cluster


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, int]]:
    cluster = the_cluster()
    monkeypatch.delenv("SLURM_CONF", raising=False)  # known on the login node only
    lock, (port,) = reserve_ports(1)
    with lock:
        yield cluster, port
        cluster.wait_until_empty()


def a_site(folder: Path, address: str, ssh: list[str]) -> SlurmEngine:
    site = Site(site="hpc", engine="slurm", address=address, options={"partition": "low", "ssh": ssh})
    return slurm_site(site, Surroundings(folder=folder, log_bytes=1 << 20, microusd_per_gpu_hour=1))


def test_a_lease_runs_over_one_connection_that_is_made_again_when_it_was_lost(
    login: tuple[Cluster, int], tmp_path: Path
) -> None:
    cluster, port = login
    engine = a_site(tmp_path / "leases", "root@127.0.0.1", cluster.start_login(port))
    assert {"n-0", "n-1"} <= {node.node for node in engine.nodes()}
    command = (sys.executable, "-c", "import time; print('it is $HOME', flush=True); time.sleep(3600)")
    job = Job(job="a", gpus=1, command=command, folder=str(tmp_path))
    assert engine.start([Start("a.1", job, (("n-0", (0,)),))]) == {}
    eventually(lambda: any(seen.state == "running" for seen in engine.observe(["a.1"])))
    eventually(lambda: engine.log("a.1").data == b"it is $HOME\n")
    assert cluster.login.logins() == 1
    cluster.login.close()
    with refuses(WorldFailed, "slurm.ssh_failed"):
        engine.nodes()
    cluster.login.open()
    assert "n-0" in {node.node for node in engine.nodes()}
    assert engine.stop(["a.1"], grace_s=1) == {}
    eventually(lambda: any(seen.cause == "stopped_by_us" for seen in engine.observe(["a.1"])))
    assert cluster.login.logins() == 2
    cluster.login.close()


@pytest.mark.parametrize("address", ["-oProxyCommand=touch x", "a b", "host;id", ""])
def test_what_could_be_a_flag_or_a_command_is_no_address(address: str, tmp_path: Path) -> None:
    if not address:
        assert a_site(tmp_path, address, [])
        return
    with refuses(BadInput, "sites.bad_value"):
        a_site(tmp_path, address, [])
