"""A real server above a real Slurm: strangers, Slurm's own preemption, and our own crashes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.slurm_kills import AT_SBATCH, Tools, await_second, is_at
from brimful.fleet.state import OVER
from brimful.language import words
from brimful.server.doctor import examine
from brimful.server.run.engines import engines_in
from tests.engines.slurm_cluster import Cluster
from tests.engines.slurm_lab import the_cluster
from tests.server.live import Live, live, wait_for
from tests.server.test_two_servers import Pair

# Saves at once, then waits until the file `go` is there; goes on from what it has saved.
COUNTS = """
import pathlib, time
from brimful.job import Run
run = Run()
step = int((run.latest / "n").read_text()) if run.latest else 0
print("from", step, flush=True)
with run.saving(step + 1) as folder:
    (folder / "n").write_text(str(step + 1))
print("saved", flush=True)
while not run.told and not pathlib.Path("go").exists():
    time.sleep(0.05)
raise SystemExit(75 if run.told else 0)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = the_cluster()
    monkeypatch.setenv("SLURM_CONF", found.env["SLURM_CONF"])
    yield found
    found.run("scancel", "--full", "--user=root")
    found.wait_until_empty()


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    sites = tmp_path / "sites.toml"
    sites.write_text('[hpc]\nengine = "slurm"\npartition = "low"\nusd_per_gpu_hour = 3.6\n')
    monkeypatch.chdir(tmp_path)
    with live(tmp_path / "data", "--sites", str(sites)) as made:
        yield made


def phase(server: Live, job: str) -> str:
    return str(server.show(job)["phase"])


def log_of(server: Live, lease: str) -> str:
    path = server.data / "sites" / "hpc" / lease / "ranks" / "0" / "log"
    return path.read_text() if path.exists() else ""


def test_a_job_runs_on_slurm_and_never_on_what_a_stranger_holds(server: Live, cluster: Cluster) -> None:
    for node in ("n-0", "n-1"):
        cluster.stranger("-w", node, "--gres=gpu:a100:6")
    wait_for(lambda: server.ask("fleet", "show")["free"] == 12)
    jobs = [
        server.submit("--gpus", "2", "--gpu", "a100", command=[sys.executable, "-c", COUNTS])
        for _ in range(3)
    ]
    wait_for(lambda: [phase(server, job) for job in jobs].count("running") == 2)
    assert [phase(server, job) for job in jobs] == ["running", "running", "waiting"]
    assert server.show(jobs[2])["leases"] == [], "it was never ordered: Slurm keeps nothing of ours waiting"
    Path("go").touch()
    wait_for(lambda: {phase(server, job) for job in jobs} == {"finished"})


def test_people_see_who_else_holds_gpus_and_which_nodes_slurm_keeps_closed(
    server: Live, cluster: Cluster
) -> None:
    cluster.stranger("-w", "n-0", "--gres=gpu:a100:6")
    drain = ("scontrol", "update", "NodeName=v-1", "State=DRAIN")
    cluster.run(*drain, "Reason=fans")
    try:
        wait_for(lambda: server.ask("fleet", "show")["gpus"] == 20)
        wait_for(lambda: server.ask("fleet", "nodes")[0]["others"] == ["root"])
        assert words("fleet.gpu_held_by", users="root") in server.read("fleet", "show")
        told = server.read("fleet", "nodes")
        assert "v-1" in told
        assert "fans" in told
    finally:
        cluster.run("scontrol", "update", "NodeName=v-1", "State=RESUME")


def test_what_slurm_preempts_goes_on_elsewhere_from_its_checkpoint(server: Live, cluster: Cluster) -> None:
    job = server.submit("--gpus", "8", command=[sys.executable, "-c", COUNTS])
    wait_for(lambda: "saved" in log_of(server, f"{job}.1"))
    node = server.show(job)["leases"][0]["node"]
    cluster.stranger("-w", node, "--gres=gpu:8", partition="high")
    wait_for(lambda: "saved" in log_of(server, f"{job}.2"))
    shown = server.show(job)
    assert shown["leases"][0]["reason_code"]["code"] == "slurm.sent_away"
    assert shown["leases"][1]["node"] != node
    assert "from 1" in log_of(server, f"{job}.2")
    Path("go").touch()
    wait_for(lambda: phase(server, job) == "finished")


def test_what_slurm_keeps_waiting_is_handed_back_and_runs_elsewhere(server: Live, cluster: Cluster) -> None:
    command = [sys.executable, "-c", COUNTS]
    runs = server.submit("--gpus", "8", command=command)
    wait_for(lambda: "saved" in log_of(server, f"{runs}.1"))
    busy = server.show(runs)["leases"][0]["node"]
    blocked = "n-1" if busy == "n-0" else "n-0"
    cluster.stranger("-w", blocked, "-n", "64")  # its cores and none of its GPUs
    job = server.submit("--gpus", "8", command=command)
    wait_for(lambda: [each["reason_code"] for each in server.show(job)["leases"][:1] if each["ended_s"]])
    Path("go").touch()
    wait_for(lambda: phase(server, job) == "finished")
    first, *_, last = server.show(job)["leases"]
    assert (first["node"], first["started_s"]) == (blocked, None)
    assert first["reason_code"]["code"] == "slurm.handed_back"
    assert last["node"] == busy


@pytest.mark.postgres
def test_the_other_server_takes_over_at_any_moment_around_sbatch(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text('[hpc]\nengine = "slurm"\npartition = "low"\n')
    pair, tools = Pair(tmp_path, postgres_url, sites=str(sites)), Tools(cluster, tmp_path)
    leases = tmp_path / "engines" / "sites" / "hpc"
    names: list[str] = []
    try:
        for server in pair.servers:
            tools.go_before(server)
            server.up()
        leader, other = pair.servers
        for how in AT_SBATCH.values():
            wait_for(lambda leader=leader: pair.holder()[1] == leader.pid, every_s=0.05)
            submit = lambda: names.extend(pair.submit(0.1) for _ in range(3))  # noqa: E731
            other.signal(signal.SIGSTOP)  # or it might have gone on before anybody looks
            name = tools.fall(leader, how, "--job-name", submit)
            noted = leases / name.rpartition(":")[2] / "submitted.json"
            assert is_at(cluster, how, name, is_noted=noted.exists())
            other.signal(signal.SIGCONT)
            await_second(cluster, how, name)
            wait_for(lambda: all(pair.phase(name) in OVER for name in names))
            leader, other = other, leader.up()
        assert {pair.phase(name) for name in names} == {"finished"}
        assert list(pair.work.glob("*.twice")) == []
        assert len(list(pair.work.glob("*.done"))) == len(names)
        assert [len(pair.users.reader.job(name).leases) for name in names] == [1] * len(names)
        findings = list(examine(pair.store, engines_in(tmp_path / "engines")))
        assert [each for finding in findings for each in finding.broken] == []
    finally:
        pair.end()


@pytest.mark.postgres
def test_two_servers_start_nothing_twice_when_the_leader_is_killed_during_starts(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text('[hpc]\nengine = "slurm"\npartition = "low"\n')
    pair = Pair(tmp_path, postgres_url, sites=str(sites))
    one, two = pair.servers
    try:
        one.up()
        two.up()
        names = [pair.submit(1.0) for _ in range(12)]
        wait_for(pair.runs, every_s=0.01)  # a first lease has its folder: others are under way
        one.kill()
        wait_for(lambda: all(pair.phase(name) in OVER for name in names))
        assert {pair.phase(name) for name in names} == {"finished"}
        assert list(pair.work.glob("*.twice")) == []
        assert len(list(pair.work.glob("*.done"))) == len(names)
        assert [len(pair.users.reader.job(name).leases) for name in names] == [1] * len(names)
        findings = list(examine(pair.store, engines_in(tmp_path / "engines")))
        assert [each for finding in findings for each in finding.broken] == []
    finally:
        pair.end()
