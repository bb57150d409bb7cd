"""A root server with `--job-users`: at a Slurm site each tenant's jobs are jobs of that tenant's user."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import brimful
from bench.chaos import python_for_all
from brimful.adapters.code import CodeStore
from brimful.adapters.engines.job_users.users import JobUsers, find_users
from brimful.adapters.engines.slurm import engine
from brimful.adapters.engines.slurm.commands import Commands
from brimful.adapters.engines.slurm.engine import SlurmEngine
from brimful.adapters.engines.slurm.tenants import Tenants
from brimful.adapters.sites import Site
from brimful.client.pack import packed
from brimful.errors import BrimfulError
from brimful.fleet.events import Parts
from brimful.scheduler.ports import Start
from tests.builders import eventually, refuses
from tests.engines.labs import ALONE, GANG, NODES
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import FAILS

USERS = {"red": "games", "blue": "mail"}  # of every Debian


class SharedLab(SlurmLab):
    """Its folder is one that everybody on the cluster can get to, as on a cluster."""

    def __init__(self) -> None:
        shared = Path(tempfile.mkdtemp(prefix="brimful-shared-"))
        shared.chmod(0o755)
        shutil.copytree(Path(brimful.__file__).parent, shared / "lib" / "brimful")
        python = shared / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={shared}/lib exec {python_for_all()} "$@"\n')
        python.chmod(0o755)
        self.users = find_users(USERS)
        self.code = CodeStore(shared / "code")
        (shared / "secret").write_text("root's own")
        (shared / "secret").chmod(0o640)  # root's group may read it, and root is in it
        super().__init__(shared, python=str(python))

    def new_engine(self) -> SlurmEngine:
        made = SlurmEngine(
            self.folder / "leases",
            Commands("low", users=list(USERS.values())),
            self.options,
            site=Site(site="hpc", engine="slurm"),
            microusd_per_gpu_hour=2_000_000,
            log_bytes=1 << 20,
            code=self.code,
            runs_as=JobUsers(self.folder, self.users),
        )
        made.nodes()
        return made

    def run(
        self, script: str, tenant: str, lease: str = "a.1", *, parts: Parts = ALONE, code: str = ""
    ) -> None:
        order = self.command(["/bin/sh", "-c", script], lease, parts=parts)
        job = replace(order.job, tenant=tenant, job=lease.partition(".")[0], code=code, folder="/")
        assert self.engine.start([Start(lease, job, parts)]) == {}


@pytest.fixture
def lab() -> Iterator[SharedLab]:
    made = SharedLab()
    yield made
    made.close()
    shutil.rmtree(made.folder)


def words(lab: SharedLab, lease: str = "a.1", *, rank: int = 0) -> Sequence[str]:
    ended = lab.waits_for("ended", lease)
    assert ended.cause == "finished", [ended, *lab.log(lease, rank=rank)]
    return lab.log(lease, rank=rank)


def test_a_lease_is_its_tenants_users_job_and_its_files_are_that_users(lab: SharedLab) -> None:
    saves = "cd $BRIMFUL_CHECKPOINT_DIR && echo kept > state && cat state"
    lab.run(f"id -un; id -gn; echo $HOME; cat {lab.folder}/secret; {saves}", "red")
    lab.run("id -un; ls /", "blue", "b.1")
    games = pwd.getpwnam("games")
    log = words(lab)
    assert (log[0], log[2], log[-1]) == ("games", games.pw_dir, "kept")
    assert "root's own" not in log
    assert words(lab, "b.1")[0] == "mail"
    assert (lab.folder / "leases" / "a.1").stat().st_uid == games.pw_uid
    assert (lab.folder / "leases" / ".checkpoints" / "a" / "state").stat().st_uid == games.pw_uid
    lab.run("cat $BRIMFUL_CHECKPOINT_DIR/../a/state; true", "blue", "b.2")
    assert "kept" not in words(lab, "b.2")


def test_a_tenants_gang_is_told_to_stop_and_found_again(lab: SharedLab) -> None:
    lab.run("id -un; exec sleep 600", "red", parts=GANG)
    eventually(lambda: all(lab.log(rank=rank) == ["games"] for rank in (0, 1)))
    before = lab.waits_for("running")
    lab.restart()
    assert lab.waits_for("running").started_s == before.started_s
    lab.stop("a.1", grace_s=5)
    assert lab.waits_for("ended").cause == "stopped_by_us"


def test_packed_code_runs_as_the_tenants_user(lab: SharedLab, tmp_path: Path) -> None:
    (tmp_path / "hello.sh").write_text("echo hello from $(id -un)\n")
    with packed(tmp_path) as pack, lab.code.receiving("red", pack.code) as kept:
        kept.write(pack.file.read())
    lab.run("sh hello.sh", "red", code=pack.code)
    assert words(lab) == ["hello from games"]


def test_links_that_a_tenant_puts_into_its_folder_lead_root_nowhere(lab: SharedLab) -> None:
    lab.run("echo ready; exec sleep 600", "red")
    eventually(lambda: lab.log() == ["ready"])
    lab.waits_for("running")
    rank = lab.folder / "leases" / "a.1" / "ranks" / "0"
    pid = os.fork()
    if pid == 0:  # what its job could do
        try:
            os.setgid(lab.users["red"].gid)
            os.setuid(lab.users["red"].uid)
            (rank / "log").rename(rank / "old")
            (rank / "log").symlink_to(lab.folder / "secret")
            (rank / "stop.json").symlink_to(lab.folder / "secret")
            (rank / "sample.json").symlink_to(lab.folder / "secret")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(BrimfulError):
        lab.log()
    assert isinstance(lab.engine, SlurmEngine)
    with pytest.raises(BrimfulError):
        lab.engine.sample("a.1")
    lab.stop("a.1", grace_s=1)
    assert lab.waits_for("ended").cause == "stopped_by_us"
    assert (lab.folder / "secret").read_text() == "root's own"


FORGES = """
cd {folder}
for name in started ended; do
    ( while :; do echo '{{"at_s": 1, "exit_code": 0, "speed": 1}}' > ranks/0/$name.json; done ) &
done
rm -f submitted.json; echo '{{"skew_s": -1e9}}' > skew.json
echo up; while [ ! -e {go} ]; do sleep 0.05; done
chmod 000 {folder}
"""


def test_the_bill_has_slurms_times_whatever_the_tenants_runner_wrote(lab: SharedLab) -> None:
    go = lab.folder / "go"
    lab.run(FORGES.format(folder=lab.folder / "leases" / "a.1", go=go), "red")
    eventually(lambda: "up" in lab.log())
    running = lab.waits_for("running")
    go.touch()
    ended = lab.waits_for("ended")
    assert isinstance(lab.engine, SlurmEngine)
    (row,) = Commands("low", users=["games"]).jobs(f"brimful:{lab.engine.identity[:8]}:")
    assert running.started_s == ended.started_s == row.span.began_s is not None
    assert ended.ended_s == row.span.ended_s is not None
    assert ended.skew_s == 0.0


def test_a_tenant_whose_runner_never_says_that_it_runs_is_billed_all_the_same(
    lab: SharedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SILENT_S", -1)
    lab.run("exec sleep 600", "red")
    own = lab.folder / "leases" / "a.1" / "ranks" / "0"
    eventually((own / "child.json").exists)
    (own / "child.json").unlink()
    lab.restart()
    assert lab.waits_for("running").started_s is not None


def test_a_job_that_a_tenant_names_like_anothers_lease_is_not_taken_for_it(lab: SharedLab) -> None:
    assert isinstance(lab.engine, SlurmEngine)
    name = f"brimful:{lab.engine.identity[:8]}:a.1"
    forged = f"x\n7|7|FAILED|n-0|gres:gpu:1|{lab.users['red'].uid}|None|{name}"
    for each in (name, forged):
        lab.cluster.run(
            "sbatch", "-J", each, "-p", "low", "--uid=mail", "-o", "/dev/null", "--wrap", "sleep 600"
        )
    try:
        assert lab.look() is None or lab.waits_for("absent")
        lab.run("echo mine", "red")
        assert words(lab) == ["mine"]
    finally:
        lab.cluster.run("scancel", "--user=mail")


def test_a_tenant_without_a_user_is_refused_and_so_is_a_folder_that_users_cannot_enter(
    lab: SharedLab, tmp_path: Path
) -> None:
    assert isinstance(lab.engine, SlurmEngine)
    with pytest.raises(BrimfulError) as caught:
        lab.engine.admit("green")
    assert caught.value.code == "no_job_user"
    here = replace(lab.options, python="")
    for closed, options, code in (
        (tmp_path, lab.options, "slurm.user_cannot_reach"),
        (lab.folder, here, "slurm.user_cannot_reach_link"),
    ):
        if closed == lab.folder and not Path(sys.executable).resolve().is_relative_to("/root"):
            continue
        with refuses(BrimfulError, code, "games"):
            SlurmEngine(
                closed / "other",
                Commands("low"),
                options,
                site=Site(site="hpc", engine="slurm"),
                microusd_per_gpu_hour=1,
                log_bytes=1,
                runs_as=JobUsers(closed, lab.users),
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives itself another user's rights, which needs root")
def test_a_python_that_links_to_where_users_cannot_go_is_named_with_its_link(tmp_path: Path) -> None:
    shared = Path(tempfile.mkdtemp(prefix="brimful-shared-"))
    try:
        shared.chmod(0o755)
        (tmp_path / "python").touch()
        tmp_path.chmod(0o700)
        link = shared / "python"
        link.symlink_to(tmp_path / "python")
        with refuses(BrimfulError, "slurm.user_cannot_reach_link", str(link)):
            Tenants(find_users(USERS), site="hpc").let_in(shared / "leases", link)
    finally:
        shutil.rmtree(shared)


def test_a_tenants_rank_that_fails_ends_its_gang(lab: SharedLab) -> None:
    place = lab.folder / "meet"
    place.mkdir()
    place.chmod(0o777)
    (place / "fails.py").write_text(FAILS)
    lab.run(f"cd {place} && exec {python_for_all()} fails.py", "red", parts=GANG)
    ended = lab.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("failed", 3)
    assert NODES[0] in {node.node for node in lab.engine.nodes()}
