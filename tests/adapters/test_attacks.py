"""Jobs of one tenant against another tenant and the server, on a machine they share: none may succeed.

A real server, started as root, and two real uids. Every attack that can be run without harm also runs on a
server whose jobs share its user, and there it must succeed: an attack that never works proves nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.chaos import python_for_all
from brimful.client.client import Client
from brimful.client.settings import read_settings
from tests.adapters import attacks
from tests.conftest import ROOT
from tests.server.live import Live, live, wait_for

SECRET = "the-secret-of-the-victim"
KEY_SECRET = b"the-key-of-the-server"
MEMORY_MIB = 200
LINGER_S = 5

# What comes of it where jobs share the server's user. "harm": not tried there. "held": it fails there too.
ATTACKS = {
    "token_file": "works",
    "data_folder": "works",
    "database": "works",
    "environ_of_all": "works",
    "environment_file": "works",
    "log_of_victim": "works",
    "checkpoint_of_victim": "works",
    "roots_files": "works",
    "roots_group": "works",
    "tmp_of_victim": "works",
    "posix_memory": "works",
    "system_v_memory": "works",
    "message_queue": "works",
    "unix_socket": "works",
    "keyring": "works",
    "process_list": "works",
    "memory_of_victim": "works",
    "root_of_others": "works",
    "open_files": "works",
    "api_without_token": "held",
    "lease_folder": "works",
    "overwrite_checkpoint": "works",
    "trace_victim": "works",
    "signal_victim": "works",
    "signal_everybody": "harm",
    "kill_runner": "works",
    "kill_own_init": "harm",
    "slow_down_victim": "works",
    "enter_namespaces": "works",
    "uncover": "harm",
    "other_devices": "works",
    "make_device": "works",
    "setuid_program": "works",
    "privileges": "harm",
    "leave_cgroup": "works",
    "list_cgroups": "works",
    "core_dump": "works",
    "give_away": "works",
    "link_to_token": "works",
    "replace_own_folders": "works",
    "forge_notice": "works",
    "linked_sample": "held",
    "piped_folders": "held",
    "linked_checkpoint": "held",
    "long_log": "held",
    "fork_bomb": "harm",
    "memory_hog": "harm",
    "full_tmp": "harm",
    "daemon": "held",
}


@dataclass(frozen=True)
class Machine:
    """A server with a victim that runs, and every attack on both, under way or over."""

    server: Live
    client: Client
    victim: str
    jobs: dict[str, str]
    uid: int

    def log(self, job: str) -> str:
        text, offset = "", 0
        while (piece := self.client.log(job, offset=offset))["text"]:
            text, offset = text + piece["text"], piece["next_offset"]
        return text

    def over(self, attack: str) -> str:
        """What it printed, once it has ended."""
        job = self.jobs[attack]
        wait_for(lambda: self.client.job(job)["phase"] in ("finished", "failed"))
        return self.log(job)

    def lease(self, attack: str) -> Path:
        return self.server.data / "leases" / f"{self.jobs[attack]}.1"


@pytest.fixture(scope="module", autouse=True)
def _as_root() -> Iterator[None]:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("needs root on Linux: two users are tried, and their jobs isolated")
    groups = os.getgroups()
    os.setgroups([0])  # as after a login
    yield
    os.setgroups(groups)


@pytest.fixture(scope="module")
def setuid_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`id`, root's, with the setuid bit, where every user may run it."""
    folder = Path(f"/usr/local/lib/brimful-test-{os.getpid()}")
    folder.mkdir(mode=0o755)
    try:
        program = folder / "id"
        shutil.copy("/usr/bin/id", program)
        program.chmod(0o4755)
        (folder / "of-the-group").write_text("of root's group")
        (folder / "of-the-group").chmod(0o640)
        yield program
    finally:
        shutil.rmtree(folder)


def _give_a_key() -> None:
    """Into a session keyring of this process, which the servers it starts inherit."""
    libc = ctypes.CDLL(None)
    libc.syscall(attacks.SYS_KEYCTL, 1, None)
    assert libc.syscall(attacks.SYS_ADD_KEY, b"user", attacks.KEY_NAME, KEY_SECRET, len(KEY_SECRET), -3) > 0


def machine(server: Live, setuid: Path, names: list[str], uid: int) -> Machine:
    client = Client(read_settings(env=server.env))
    source, python = Path(attacks.__file__).read_text(), python_for_all()

    def submit(name: str, tenant: str, **env: object) -> str:
        told = {key: str(value) for key, value in env.items()}
        command = [python, "-c", source, name]
        return client.submit(command, folder="/", tenant=tenant, env=told, retries=0, name=name)["job"]

    victim = submit("be_the_victim", "victim", VICTIM_SECRET=SECRET)
    wait_for(lambda: "ready" in client.log(victim)["text"])
    pid = next(p for p in _pids() if f"VICTIM_SECRET={SECRET}".encode() in _environ(p) and _is_python(p))
    facts = {
        "DATA": server.data,
        "URL": client.url,
        "SERVER_PID": server.pid,
        "RUNNER_PID": read_fact(server.data / "leases" / f"{victim}.1" / "started.json")["pid"],
        "VICTIM_PID": pid,
        "VICTIM_JOB": victim,
        "VICTIM_LEASE": f"{victim}.1",
        "SETUID": setuid,
        "LINGER_S": LINGER_S,
    }
    told = {f"ATTACK_{key}": value for key, value in facts.items()}
    jobs = {name: submit(name, "attacker", **told) for name in names}
    return Machine(server=server, client=client, victim=victim, jobs=jobs, uid=uid)


def read_fact(path: Path) -> dict[str, Any]:
    from brimful.adapters.files import read_json

    found = read_json(path)
    assert found is not None
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _is_python(pid: int) -> bool:
    return b"be_the_victim" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, setuid_program: Path) -> Iterator[Machine]:
    """Two tenants, each with a user of its own."""
    _give_a_key()
    Path("/tmp/brimful-host").write_text("the host's own")
    uid = 1_000_000_000 + 2 * os.getpid()  # in no table of users, and nobody else's
    users = f"victim={uid},attacker={uid + 1}"
    options = ("--slots", "8", "--log-mib", "1", "--job-users", users, "--job-memory-mib", str(MEMORY_MIB))
    with ExitStack() as stack:
        stack.callback(lambda: Path("/tmp/brimful-host").unlink())
        server = stack.enter_context(live(tmp_path_factory.mktemp("shared") / "data", *options))
        found = machine(server, setuid_program, list(ATTACKS), uid + 1)
        stack.callback(lambda: found.client.cancel(found.victim))
        yield found


@pytest.fixture(scope="module")
def open_machine(tmp_path_factory: pytest.TempPathFactory, setuid_program: Path) -> Iterator[Machine]:
    """The same with all jobs as the server's own user."""
    _give_a_key()
    names = [name for name, works in ATTACKS.items() if works == "works"]
    options = ("--slots", "8", "--jobs-share-my-user")
    with ExitStack() as stack:
        server = stack.enter_context(live(tmp_path_factory.mktemp("open") / "data", *options))
        stack.callback(attacks.clean_up_after_victim)
        found = machine(server, setuid_program, names, 0)
        yield found
        found.client.cancel(found.victim)
        wait_for(lambda: found.client.job(found.victim)["phase"] == "cancelled")


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attack_fails_where_each_tenant_has_a_user(shared: Machine, attack: str) -> None:
    said = shared.over(attack)
    assert "WON" not in said
    assert SECRET not in said
    assert KEY_SECRET.decode() not in said
    assert "TRIED" in said
    assert shared.client.job(shared.victim)["phase"] == "running"
    assert "HIT" not in shared.log(shared.victim)


@pytest.mark.parametrize("attack", [name for name, works in ATTACKS.items() if works == "works"])
def test_the_attack_works_where_jobs_share_a_user(open_machine: Machine, attack: str) -> None:
    assert "WON" in open_machine.over(attack)


def test_every_attack_is_listed_in_the_docs() -> None:
    rows = (ROOT / "docs" / "explanation" / "security.md").read_text().splitlines()
    listed = {row.split("`")[1]: row.rstrip(" |").endswith("✓") for row in rows if row.startswith("| `")}
    assert listed == {name: works == "works" for name, works in ATTACKS.items()}


def test_a_linked_sample_is_not_shown(shared: Machine) -> None:
    token = (shared.server.data / "token").read_text().strip()
    shared.over("linked_sample")
    assert token not in str(shared.client.job(shared.jobs["linked_sample"]))


def test_a_memory_hog_is_told_its_limit(shared: Machine) -> None:
    shared.over("memory_hog")
    job = shared.client.job(shared.jobs["memory_hog"])
    assert job["phase"] == "failed"
    assert f"{MEMORY_MIB} MiB" in str(job["why"])


def test_a_long_log_is_cut_on_disk(shared: Machine) -> None:
    shared.over("long_log")
    assert (shared.lease("long_log") / "log").stat().st_blocks * 512 < 8 << 20  # of the 40 MB it wrote


def test_nothing_of_an_attacker_lives_when_its_jobs_are_over(shared: Machine) -> None:
    for attack in ATTACKS:
        shared.over(attack)
    owners = {_owner(pid) for pid in _pids()}
    assert shared.uid not in owners
    assert shared.uid - 1 in owners  # the victim's
    assert shared.client.get("/v1/ready")
