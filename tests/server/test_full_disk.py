"""A file system that is really full: a clear no, nothing lost, and on with the work once there is room."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import WorldFailed
from tests.builders import check_reason, refuses
from tests.disk import fill, small_disk
from tests.server.live import BRIMFUL, Live, live, wait_for


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder
        (tmp_path / "go").touch()  # whatever failed, no job runs on


def answer(server: Live, *words: str) -> dict[str, Any]:
    command = [BRIMFUL, words[0], "--json", *words[1:]]
    done = subprocess.run(command, env=server.env, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_full_disk_loses_nothing(disk: Path, tmp_path: Path) -> None:
    with live(disk) as server:
        go = tmp_path / "go"
        until = ("sh", "-c", f"while ! test -e {go}; do sleep 0.1; done; echo done; exit 7")
        job = server.submit(command=until)
        wait_for(lambda: server.show(job)["phase"] == "running")
        assert server.ready()["healthy"]
        fill(disk / "filler")
        full = wait_for(lambda: not (found := server.ready())["healthy"] and found)
        assert full["reason_code"] == "server.disk_full"

        refused = answer(server, "submit", "--no-pack", "--env", "SECRET=1", "--", "true")
        assert not refused["ok"]
        full = {"code": "language.os_enospc"}
        check_reason(refused["error"]["reason"], "adapters.cannot_keep_environment", "job-2", full)
        # One without an environment gets as far as the log.
        with refuses(WorldFailed, "adapters.database_failed") as caught:
            Client(read_settings({"data": str(disk)})).submit(["x" * 90_000] * 10, folder="/")
        assert caught.value.code == "database_failed"
        assert server.show(job)["phase"] == "running", "who only looks is answered"
        go.touch()
        wait_for((disk / "leases" / f"{job}.1" / "ended.json").exists)

        (disk / "filler").unlink()
        over = wait_for(lambda: (view := server.show(job))["phase"] == "failed" and view)
        assert over["exit_code"] == over["why_code"]["exit_code"] == 7
        again = server.submit(command=("true",))
        wait_for(lambda: server.show(again)["phase"] == "finished")
        assert [each["job"] for each in server.ask("jobs")["jobs"]] == [again, job], (
            "the refused one is not there"
        )
        assert answer(server, "admin", "doctor", "--data", str(disk))["ok"]
