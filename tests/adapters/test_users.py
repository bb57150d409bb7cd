"""Whom a tenant's jobs run as, and which tenants may share a machine."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from brimful.adapters.engines.devices import device_files
from brimful.adapters.engines.job_users import cgroups
from brimful.adapters.engines.job_users.users import JobUser, JobUsers, find_users
from brimful.adapters.engines.local import LocalEngine
from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import BadInput, Refused
from brimful.fleet.job import Job
from brimful.language import say
from brimful.scheduler.ports import CannotStart, Start
from tests.builders import a_node, code_of
from tests.patience import PATIENCE_S
from tests.server.live import BRIMFUL, Live, live, wait_for

ALICE = JobUser(name="alice", uid=20001, gid=20001, groups=(), home="/srv/alice", shell="/bin/sh")
PLACES = [cgroups.Place(controller=each, version=2, folder=Path("/nowhere")) for each in ("memory", "pids")]


@pytest.fixture
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("_root")
def test_a_user_is_a_name_or_a_uid_that_need_not_be_in_any_table() -> None:
    known = next(each for each in pwd.getpwall() if 0 not in os.getgrouplist(each.pw_name, each.pw_gid))
    found = find_users({"vision": known.pw_name, "speech": "1999999999"})
    assert (found["vision"].uid, found["vision"].home) == (known.pw_uid, known.pw_dir)
    assert found["vision"].groups == tuple(os.getgrouplist(known.pw_name, known.pw_gid))
    assert found["speech"] == JobUser(
        name="1999999999", uid=1999999999, gid=1999999999, groups=(), home="/tmp", shell="/bin/sh"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to look with another user's rights")
@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_a_server_says_at_start_whose_jobs_cannot_run_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """A link is followed: an environment that everyone may enter can come from a Python in root's home."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name, "home")
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python3").touch(mode=0o755)
        python = Path(name, "python")
        python.symlink_to(home / "bin" / "python3")
        Path(name).chmod(0o755)
        home.chmod(mode)
        monkeypatch.setattr(sys, "executable", str(python))
        JobUsers(tmp_path, {"vision": ALICE})
        said = say("adapters.python_closed", users="alice", python=python, folder=home)
        assert (str(said) in caplog.messages) == (mode == 0o700)


@pytest.mark.usefixtures("_root")
@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({"a": "there-is-nobody"}, "adapters.no_such_user"),
        ({"a": str(1 << 32)}, "adapters.no_such_user"),
        ({"a": "root"}, "adapters.user_is_root"),
        ({"a": "0"}, "adapters.user_is_root"),
        ({"a": "20001", "b": "20001"}, "adapters.user_shared"),
        ({"a": "20001", "b": "020001"}, "adapters.user_shared"),
    ],
)
def test_a_user_who_cannot_be_is_refused(named: dict[str, str], code: str) -> None:
    with pytest.raises(BadInput) as refused:
        find_users(named)
    assert code_of(refused.value.said) == code
    assert refused.value.hint


def test_users_need_a_server_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput) as refused:
        find_users({"a": "20001"})
    assert refused.value.code == "users_need_root"


@pytest.mark.parametrize(
    ("users", "places", "shares", "second"),
    [
        ({}, [], False, "second_tenant"),
        ({}, [], True, None),
        ({"a": ALICE}, PLACES, False, "no_job_user"),
        ({"a": ALICE}, PLACES, True, "no_job_user"),
        ({"a": ALICE, "b": ALICE}, PLACES, False, None),
        ({"a": ALICE, "b": ALICE}, [], False, "second_tenant"),
        ({"a": ALICE, "b": ALICE}, [], True, None),
    ],
)
def test_a_second_tenant_comes_in_only_where_it_can_be_kept_apart(
    users: dict[str, JobUser],
    places: list[cgroups.Place],
    shares: bool,
    second: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroups, "find", lambda: places)
    for _ in range(2):  # it is remembered across a restart
        rule = JobUsers(tmp_path, users, shares=shares)
        rule.admit("a")
        if second is None:
            rule.admit("b")
            continue
        with pytest.raises(Refused) as refused:
            rule.admit("b")
        assert refused.value.code == second
        assert refused.value.hint


def test_a_job_from_before_the_rule_does_not_start(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "leases", [a_node()], runs_as=JobUsers(tmp_path, {}))
    engine.admit("a")
    job = Job(job="x", gpus=1, tenant="b", command=("true",), folder="/")
    failed = engine.start([Start(lease="x.1", job=job, parts=(("node-0", (0,)),))])
    assert isinstance(failed["x.1"], CannotStart)
    assert code_of(failed["x.1"].said) == "adapters.second_tenant"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("vision=alice, speech=20002", {"vision": "alice", "speech": "20002"}),
        ("", {}),
        ("vision", None),
        ("vision=", None),
        ("vision=alice,vision=bob", None),
        ("*=alice", None),
        ("vision=ali:ce", None),
        ("vision=alice,", None),
    ],
)
def test_the_map_of_users_is_read_or_refused(text: str, read: dict[str, str] | None) -> None:
    if read is not None:
        assert read_settings({"job_users": text}, env={}).users_of_tenants == read
        return
    with pytest.raises(BadInput) as refused:
        read_settings({"job_users": text}, env={})
    assert code_of(refused.value.said) == "client.bad_job_users"


@pytest.mark.parametrize(("text", "read"), [("1", True), ("0", False), ("yes", None)])
def test_sharing_a_user_is_said_with_one_or_not(text: str, read: bool | None) -> None:
    env = {"BRIMFUL_JOBS_SHARE_MY_USER": text}
    if read is not None:
        assert read_settings(env=env).jobs_share_my_user is read
        return
    with pytest.raises(BadInput):
        read_settings(env=env)


def test_a_server_refuses_a_second_tenant_until_it_is_told_otherwise(tmp_path: Path) -> None:
    def submit(server: Live, tenant: str) -> str:
        client = Client(read_settings(env=server.env))
        return client.submit(["true"], folder="/", tenant=tenant)["job"]

    with live(tmp_path / "data", "--slots", "1") as server:
        submit(server, "a")
        with pytest.raises(Refused) as refused:
            submit(server, "b")
        assert refused.value.code == "second_tenant"
        assert "--jobs-share-my-user" in refused.value.hint
    with live(tmp_path / "data", "--slots", "1", "--jobs-share-my-user") as server:
        job = submit(server, "b")
        wait_for(lambda: server.show(job)["phase"] == "finished")
        env = server.env
    if os.geteuid() == 0:  # as root, jobs of both would run as root, and read what the others left
        again = [BRIMFUL, "up", "--json", "--port", "0", "--slots", "1"]
        ended = subprocess.run(again, check=False, env=env, capture_output=True, timeout=PATIENCE_S)
        error = json.loads(ended.stdout)["error"]
        assert (ended.returncode, error["code"]) == (1, "second_tenant")
        assert "--job-users" in error["hint"]


def a_driver(folder: Path, minors: dict[str, int]) -> Path:
    for place, minor in minors.items():
        (folder / "gpus" / place).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 33\nDevice Minor: \t {minor}\n"
        (folder / "gpus" / place / "information").write_text(text)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in minors.values())):
        (folder / name).touch()
    return folder / "gpus"


def test_device_files_follow_the_place_on_the_bus(tmp_path: Path) -> None:
    driver = a_driver(tmp_path, {"0000:3b:00.0": 2, "0000:04:00.0": 1, "0000:86:00.0": 0})
    found = device_files(["0", "1"], driver=driver, dev=tmp_path)
    assert [Path(each).name for each in found] == ["nvidiactl", "nvidia-uvm", "nvidia1", "nvidia2"]
    assert device_files(["0"], driver=tmp_path / "none", dev=tmp_path) == []


@pytest.mark.parametrize("device", ["3", "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"])
def test_a_gpu_whose_file_is_not_known_is_none_to_isolate(device: str, tmp_path: Path) -> None:
    driver = a_driver(tmp_path, {"0000:3b:00.0": 0})
    with pytest.raises(CannotStart) as refused:
        device_files([device], driver=driver, dev=tmp_path)
    assert code_of(refused.value.said) == "adapters.no_device_file"
