"""A restore beside the processes of the server that the backup is from: no job may run twice."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.files import identity
from brimful.adapters.stores.backup import Backup, back_up
from brimful.adapters.stores.engines_known import add_engines
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.main import main
from brimful.cli.operate import database
from brimful.client.settings import read_settings
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.events import JobSubmitted
from brimful.server.doctor import examine
from brimful.server.run.engines import bind_runs, engines_in
from brimful.server.run.folder_locks import locked_folders
from tests.adapters.test_snapshot import a_history
from tests.builders import a_job
from tests.server.live import Live, live, wait_for

Capture = pytest.CaptureFixture[str]


def ask(capsys: Capture, *typed: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["admin", *map(str, typed), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_folder_that_is_named_in_two_ways_is_locked_once(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "link").symlink_to("fleet")
    both = {"data": str(tmp_path / "fleet"), "engines": str(tmp_path / "link")}
    with (
        locked_folders(read_settings(both)),
        pytest.raises(WorldFailed),
        locked_folders(read_settings({"data": str(tmp_path / "link")})),
    ):
        pass


def test_runs_that_are_alive_go_on_once_or_the_restore_is_refused(tmp_path: Path, capsys: Capture) -> None:
    old, new, began = tmp_path / "old", tmp_path / "new", tmp_path / "began"
    with live(old, "--slots", "1") as server:
        server.ask("admin", "backup", str(tmp_path / "before.zip"))
        job = server.submit("--retries", "1", command=["sh", "-c", f"echo x >>{began}; exec sleep 600"])
        wait_for(lambda: server.show(job)["phase"] == "running" and began.exists())
        server.ask("admin", "backup", str(tmp_path / "with.zip"))
        code, answer = ask(capsys, "restore", tmp_path / "with.zip", "--data", new, "--engines", old)
        assert (code, answer["error"]["code"]) == (3, "already_running"), "its server would go on too"
        server.kill()
    known, there = ("restore", tmp_path / "with.zip", "--data", new), ("--engines", old)
    earlier = ("restore", tmp_path / "before.zip", "--data", new)
    for typed, reason in ((known, "elsewhere"), (earlier, "elsewhere"), ((*earlier, *there), "unknown")):
        code, answer = ask(capsys, *typed)
        assert (code, answer["error"]["code"]) == (1, "runs_alive")
        assert answer["error"]["reason"]["code"] == f"operate.runs_{reason}"
        assert f"{job}.1" in answer["error"]["problem"]
        assert reason == "unknown" or f"--engines {old}" in answer["error"]["hint"]
    code, answer = ask(capsys, *known, *there)
    assert (code, answer["data"]["running"], answer["data"]["lost"]) == (0, 1, [])
    code, answer = ask(capsys, "doctor", "--data", new)
    reasons = [reason for f in answer["data"]["findings"] for reason in f["reasons"]]
    assert (code, reasons) == (1, [{"code": "doctor.stray_elsewhere", "lease": f"{job}.1"}])
    assert ask(capsys, "doctor", "--data", new, *there)[0] == 0
    heir = Live(new, "--slots", "1", *map(str, there)).up()
    try:
        assert heir.show(job)["phase"] == "running"
        with pytest.raises(WorldFailed) as refused, locked_folders(read_settings({"data": str(old)})):
            pass
        assert refused.value.code == "already_running", "the old server would act on these runs too"
        heir.ask("job", "cancel", job)
        wait_for(lambda: heir.show(job)["phase"] == "cancelled")
        assert began.read_text() == "x\n"
    finally:
        heir.down()


@contextlib.contextmanager
def a_run(engine: str, lease: str) -> Iterator[None]:
    """A process as an engine with this id starts it."""
    env = {**os.environ, "BRIMFUL_ENGINE": engine, "BRIMFUL_LEASE": lease}
    with subprocess.Popen(["sleep", "600"], env=env) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_server_does_not_start_beside_runs_of_the_folder_it_was_restored_from(tmp_path: Path) -> None:
    """The server of that folder may have started them since the restore."""
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    for name in ("old", "new"):
        (tmp_path / name / "leases").mkdir(parents=True)
        identity(tmp_path / name / "leases")
    old, new = (identity(tmp_path / name / "leases") for name in ("old", "new"))
    (tmp_path / "new" / "leases" / "job-8.1").mkdir()
    with store.writing() as connection:
        add_engines(connection, [old])
    with a_run(old, "job-7.1"), a_run(new, "job-8.1"), a_run("0" * 32, "job-9.1"):
        with pytest.raises(WorldFailed, match=r"job-7\.1;") as refused:
            bind_runs(store, tmp_path / "new")
        assert refused.value.code == "runs_alive"
        codes = [each.as_dict() for f in examine(store, engines_in(tmp_path / "new")) for each in f.broken]
        strays = [("doctor.stray_elsewhere", "job-7.1"), ("doctor.stray", "job-8.1")]
        assert [(each["code"], each["lease"]) for each in codes] == strays
    bind_runs(store, tmp_path / "new")
    store.close()


def test_a_restore_ends_with_the_command_that_starts_it(tmp_path: Path, capsys: Capture) -> None:
    """Without --engines that server would be refused, or run other jobs."""
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    assert store.append(a_history(0), after=0)
    back_up(store, tmp_path / "b.zip")
    store.close()
    new, old = tmp_path / "new", tmp_path / "my old"
    main(["admin", "restore", *map(str, (tmp_path / "b.zip", "--data", new, "--engines", old))])
    assert capsys.readouterr().out.rstrip().endswith(f"brimful up --data {new} --engines '{old}'")


def test_a_backup_counts_in_the_singular_too() -> None:
    made = Backup(
        schema=6, brimful="0", rows={"users": 1, "tokens": 2, "notify_rules": 1, "later": 3}, sha256={}
    )
    assert database._tables(made) == "1 user, 2 tokens and browser sessions, 1 notification rule, 3 later"


def test_a_restore_names_jobs_whose_environment_is_not_here(tmp_path: Path, capsys: Capture) -> None:
    """Not those for which the log is enough."""
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    envs = {"j1": (), "j2": (("PATH", "/bin"),), "j3": (("KEY", ""), ("PATH", "/bin")), "j4": (("KEY", ""),)}
    jobs = [JobSubmitted(at_s=9, job=a_job(name, env=env)) for name, env in envs.items()]
    assert store.append([*a_history(0), *jobs], after=0)
    back_up(store, tmp_path / "b.zip")
    store.close()
    here = tmp_path / "new" / "sites" / "a" / ".env"
    here.mkdir(parents=True)
    (here / "j4.json").write_text("{}")
    code, answer = ask(capsys, "restore", tmp_path / "b.zip", "--data", tmp_path / "new")
    assert (code, answer["data"]["without_env"], answer["data"]["without_code"]) == (0, ["j3"], [])


@pytest.mark.parametrize("deep", ["leases", "sites/a"])
def test_engines_is_the_folder_that_holds_the_leases_and_not_the_leases(tmp_path: Path, deep: str) -> None:
    (tmp_path / deep).mkdir(parents=True)
    identity(tmp_path / deep)
    with pytest.raises(BadInput) as refused:
        read_settings({"data": str(tmp_path / "new"), "engines": str(tmp_path / deep)})
    assert str(refused.value.hint).endswith(f": {tmp_path}")
