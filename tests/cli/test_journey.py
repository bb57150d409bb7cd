"""The whole way, with real processes: `brimful up`, submit, logs, show, cancel, Ctrl-C, and up again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import eventually

ROOT = Path(__file__).parents[2]
BRIMFUL = [sys.executable, "-m", "brimful.cli.main"]


class Here:
    """A data folder, a server on it now and then, and the command line."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BRIMFUL_")}
        self.env |= {"BRIMFUL_DATA": str(data), "BRIMFUL_PORT": "0", "BRIMFUL_GRACE_S": "1"}
        self.server: subprocess.Popen[str] | None = None

    def up(self, *flags: str) -> dict[str, Any]:
        self.server = subprocess.Popen(
            [*BRIMFUL, "up", "--json", *flags],
            env=self.env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        if not line:
            raise AssertionError(self.server.communicate()[1])
        data: dict[str, Any] = json.loads(line)["data"]
        return data

    def down(self, number: int = signal.SIGINT) -> tuple[int, str]:
        assert self.server is not None
        self.server.send_signal(number)
        _out, err = self.server.communicate(timeout=30)
        code, self.server = self.server.returncode, None
        return code, err

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BRIMFUL, *words],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def data_of(self, *words: str) -> Any:
        done = self.run(words[0], "--json", *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["data"]

    def phase(self, job: str) -> str:
        return str(self.data_of("show", job)["phase"])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path / "data")
    yield here
    if here.server is not None:
        for job in here.data_of("jobs")["jobs"]:
            here.run("cancel", job["job"])
        eventually(lambda: all(gpu["job"] is None for gpu in here.data_of("fleet")["nodes"][0]["gpus"]))
        here.down()


def test_submit_run_and_bill(here: Here) -> None:
    here.up("--usd-per-hour", "3600")
    done = here.run("submit", "--follow", "--", "python", "examples/train_tiny.py", "--steps", "200")
    assert done.returncode == 0, done.stderr
    assert "step  200  loss" in done.stdout
    assert "job-1 finished" in done.stdout

    job = here.data_of("show", "job-1")
    assert job["phase"] == "finished"
    (lease,) = job["leases"]
    assert job["cost_microusd"] == lease["billed_s"] * 1_000_000  # a dollar a second
    assert "loss" in here.run("logs", "job-1").stdout
    assert "job-1" in here.run("jobs").stdout
    assert "lease" in here.run("show", "job-1").stdout


def test_a_failing_command_is_a_clear_no(here: Here) -> None:
    here.up()
    done = here.run("submit", "--follow", "--", "python", "-c", "import sys; sys.exit(5)")
    assert done.returncode == 1
    assert "job-1 failed: exit code 5" in done.stdout


def test_ctrl_c_stops_cleanly_and_a_restart_finds_job_and_money_again(here: Here) -> None:
    here.up()
    here.run("submit", "--follow", "--", "true")
    here.run("submit", "--", "sleep", "600")
    eventually(lambda: here.phase("job-2") == "running")
    code, err = here.down()
    assert code == 0
    assert "Traceback" not in err
    assert "stopped; everything is kept" in err

    here.up()
    phases = {job["job"]: job["phase"] for job in here.data_of("jobs")["jobs"]}
    assert phases == {"job-1": "finished", "job-2": "running"}
    assert here.run("cancel", "job-2").returncode == 0
    eventually(lambda: here.phase("job-2") == "cancelled")


def test_a_killed_server_loses_nothing(here: Here) -> None:
    here.up()
    here.run("submit", "--", "sh", "-c", "sleep 1; echo survived")
    eventually(lambda: here.phase("job-1") in ("running", "finished"))
    here.down(signal.SIGKILL)
    here.up()
    eventually(lambda: here.phase("job-1") == "finished")
    assert here.run("logs", "job-1").stdout == "survived\n"


@pytest.mark.postgres
def test_the_same_on_postgresql(here: Here, postgres_url: str) -> None:
    here.env["BRIMFUL_DATABASE"] = postgres_url
    here.up()
    done = here.run("submit", "--follow", "--json", "--", "true")
    assert json.loads(done.stdout)["data"]["phase"] == "finished"
    assert not (here.data / "brimful.db").exists()


def test_a_taken_port_is_one_clear_error(here: Here) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = here.run("up", "--port", str(port))
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_two_servers_do_not_share_a_folder(here: Here) -> None:
    here.up()
    done = here.run("up")
    assert done.returncode == 3
    assert "another brimful" in done.stderr


def test_an_unusable_folder_is_one_clear_error(here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = here.run("up", "--data", str(tmp_path / "file" / "data"))
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert "cannot use the data folder" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["up", "--port", "99999"], "--port is '99999'"),
        (["up", "--host", "0.0.0.0"], "not loopback"),
        (["up", "--slots", "-1"], "--slots"),
        (["up", "--usd-per-hour", "free"], "--usd-per-hour is 'free'"),
        (["up", "--database", "nonsense://"], "is not understood"),
        (["submit"], "there is no command to run"),
        (["submit", "--gpus", "x", "--", "true"], "--gpus"),
        (["submit", "--budget", "-3", "--", "true"], "--budget"),
        (["submit", "--env", "oops", "--", "true"], "not NAME=VALUE"),
        (["show"], "required: JOB"),
    ],
)
def test_bad_input_is_one_clear_error_with_a_hint(here: Here, words: list[str], told: str) -> None:
    done = here.run(*words)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["jobs"], ["show", "job-1"], ["logs", "job-1"], ["cancel", "job-1"], ["fleet"]]
)
def test_without_a_server_the_error_says_how_to_start_one(here: Here, words: list[str]) -> None:
    here.env["BRIMFUL_URL"] = "http://127.0.0.1:9"
    done = here.run(*words, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "no_server")
    assert "make run" in error["hint"]


def test_a_dry_run_changes_nothing(here: Here) -> None:
    here.up()
    assert "would submit" in here.run("submit", "--dry-run", "--", "true").stdout
    assert here.data_of("jobs")["jobs"] == []


def test_a_stranger_without_the_token_cannot_submit(here: Here) -> None:
    here.up()
    here.env["BRIMFUL_TOKEN"] = "guess"
    done = here.run("submit", "--", "true")
    assert done.returncode == 1
    assert "token" in done.stderr


def test_a_budget_ends_a_job(here: Here) -> None:
    here.up("--usd-per-hour", "3600")
    began = time.monotonic()
    done = here.run("submit", "--follow", "--json", "--budget", "1", "--", "sleep", "600")
    job = json.loads(done.stdout)["data"]
    assert done.returncode == 1
    assert time.monotonic() - began < 50
    assert "budget of $1.00 is used up" in job["why"]
    assert job["cost_microusd"] == 1_000_000
