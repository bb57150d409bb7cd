"""The whole way, with real processes: `brimful up`, submit, logs, show, cancel, Ctrl-C, and up again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from brimful.cli.fleet import job as job_command
from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import Refused
from brimful.language import Quoted, language, say, words
from brimful.scheduler.policies import DEFAULT, read_policy
from tests.builders import check_reason, eventually
from tests.fake_nvml import LOST, FakeNvml, a_card
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BRIMFUL = [sys.executable, "-m", "brimful.cli.main"]


class Here:
    """A data folder, a server on it now and then, and the command line."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BRIMFUL_")}
        self.env |= {"BRIMFUL_DATA": str(data), "BRIMFUL_PORT": "0", "BRIMFUL_GRACE_S": "1"}
        self.server: subprocess.Popen[str] | None = None
        self.last_words = ""

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
        self.last_words, err = self.server.communicate(timeout=PATIENCE_S)
        code, self.server = self.server.returncode, None
        return code, err

    def run(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BRIMFUL, *words],
            env=self.env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def data_of(self, *words: str) -> Any:
        done = self.run(words[0], "--json", *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["data"]

    def refused(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and error of a command that is not done, which is one answer and no traceback."""
        done = self.run(words[0], "--json", *words[1:])
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)["error"]

    def client(self) -> Client:
        """For what is asked again and again: starting a command costs more than hundreds of answers."""
        return Client(read_settings(env=self.env))

    def phase(self, job: str) -> str:
        return str(self.client().job(job)["phase"])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path / "data")
    yield here
    if here.server is not None:
        client = here.client()
        for job in client.jobs():
            with contextlib.suppress(Refused):  # it is over
                client.cancel(job["job"])
        eventually(lambda: not any(gpu["held"] for node in client.fleet()["nodes"] for gpu in node["gpus"]))
        here.down()


def test_submit_run_and_bill(here: Here) -> None:
    here.up("--usd-per-hour", "3600")
    done = here.run("submit", "--follow", "--", "python", "examples/train_tiny.py", "--steps", "200")
    assert done.returncode == 0, done.stderr
    assert "step  200  loss" in done.stdout
    assert "job-1 finished" in done.stdout

    job = here.data_of("job", "show", "job-1")
    assert job["phase"] == "finished"
    (lease,) = job["leases"]
    assert job["cost_microusd"] == lease["billed_s"] * 1_000_000  # a dollar a second
    assert "loss" in here.run("job", "logs", "job-1").stdout
    assert "job-1" in here.run("jobs").stdout
    assert "lease" in here.run("job", "show", "job-1").stdout


def test_bids_that_decide_instead_of_the_policy_are_said_and_the_last_words_are_in_your_language(
    here: Here,
) -> None:
    assert here.up("--market", "all", "--policy", "fifo", "--lang", "de")["market"] == ["all"]
    assert here.data_of("fleet")["market"] == ["all"]
    assert words("market.decides.all") in " ".join(here.run("fleet").stdout.split())
    _, err = here.down()
    assert language("de").text(say("server.stopped", folder=here.data)) in err


def test_which_policy_runs_is_said_everywhere_and_can_be_another_after_a_restart(here: Here) -> None:
    told = here.up()["policy"]
    assert told == read_policy(DEFAULT, {"grace_s": 1}).text
    assert here.data_of("fleet")["policy"] == here.data_of("admin", "doctor")["policy"] == told
    assert here.run("submit", "--follow", "--", "true").returncode == 0
    here.down()
    assert here.data_of("admin", "doctor")["policy"] is None, "no server runs"

    here.env["BRIMFUL_POLICY"] = "fair?backfill=greedy"
    assert here.up("--min-run-s", "7")["policy"] == "fair?backfill=greedy&grace_s=1&min_run_s=7"
    assert here.phase("job-1") == "finished"
    assert here.run("submit", "--follow", "--", "true").returncode == 0
    assert "policy fair?backfill=greedy&grace_s=1&min_run_s=7" in here.run("fleet").stdout


def test_a_failing_command_is_a_clear_no(here: Here) -> None:
    here.up()
    done = here.run("submit", "--follow", "--", "python", "-c", "import sys; sys.exit(5)")
    assert done.returncode == 1
    assert "job-1 failed" in done.stdout
    assert words("adapters.exit_code", exit_code=5) in done.stdout
    reason = {"code": "adapters.exit_code", "exit_code": 5}
    assert here.data_of("job", "show", "job-1")["why_code"] == reason
    assert here.data_of("job", "why", "job-1")["ended_code"] == reason
    for verb in ("cancel", "hold"):  # a dry run says what would happen: nothing
        dry = here.run("job", verb, "job-1", "--dry-run")
        said = words("server.job_already", name="job-1", verb=words("fleet.verb_failed"))
        assert (dry.returncode, said in dry.stderr) == (1, True), dry


def test_ctrl_c_stops_cleanly_and_a_restart_finds_job_and_money_again(here: Here) -> None:
    here.up()
    here.run("submit", "--follow", "--", "true")
    here.run("submit", "--", "sleep", "600")
    eventually(lambda: here.phase("job-2") == "running")
    code, err = here.down()
    assert code == 0
    assert here.last_words == ""  # one envelope, and it was printed at the start
    assert "Traceback" not in err
    assert str(here.data) in err.splitlines()[-1]

    here.up()
    phases = {job["job"]: job["phase"] for job in here.data_of("jobs")["jobs"]}
    assert phases == {"job-1": "finished", "job-2": "running"}
    assert here.run("job", "cancel", "job-2").returncode == 0
    eventually(lambda: here.phase("job-2") == "cancelled")


def test_a_killed_server_loses_nothing(here: Here) -> None:
    here.up()
    here.run("submit", "--", "sh", "-c", "sleep 1; echo survived")
    eventually(lambda: here.phase("job-1") in ("running", "finished"))
    here.down(signal.SIGKILL)
    del here.env["BRIMFUL_DATA"]
    here.env |= {"XDG_STATE_HOME": str(here.data.parent), "BRIMFUL_PORT": "9"}
    (here.data.parent / "brimful").symlink_to(here.data)
    assert here.refused("jobs")[1]["reason"]["code"] == "client.server_ended"
    here.env |= {"BRIMFUL_DATA": str(here.data), "BRIMFUL_PORT": "0"}
    here.up()
    eventually(lambda: here.phase("job-1") == "finished")
    assert here.run("job", "logs", "job-1").stdout == "survived\n"


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
        status, error = here.refused("up", "--port", str(port))
    assert (status, error["code"]) == (3, "port_taken")
    check_reason(error["reason"], "server.cannot_listen", "127.0.0.1", port)
    assert f"--port {port % 65535 + 1}" in error["hint"], "to be copied: without a thousands separator"


def test_two_servers_do_not_share_a_folder(here: Here) -> None:
    here.up()
    status, error = here.refused("up")
    assert (status, error["code"]) == (3, "already_running")


def test_an_unusable_folder_is_one_clear_error(here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    status, error = here.refused("up", "--data", str(tmp_path / "file" / "data"))
    assert status == 3
    check_reason(error["reason"], "server.cannot_use_folder", tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["up", "--port", "99999"], ("client.bad_setting", "--port", "99999")),
        (["up", "--host", "0.0.0.0"], ("client.host_needs_tls", "0.0.0.0")),
        (["up", "--slots", "-1"], ("client.bad_setting", "--slots", "-1")),
        (["up", "--usd-per-hour", "free"], ("client.bad_setting", "--usd-per-hour", "free")),
        (["up", "--database", "nonsense://"], ("adapters.bad_database_url", "nonsense://")),
        (["up", "--policy", "best"], ("scheduler.policy_unknown", "best")),
        (["up", "--policy", "brim?mvoe=0"], ("scheduler.policy_option_not_valid", "mvoe", "0")),
        (["submit"], ("fleet.no_command",)),
        (["submit", "--budget", "-3", "--", "true"], ("cli.not_a_sum", "--budget", "-3")),
        (["submit", "--env", "oops", "--", "true"], ("fleet.bad_env", "oops")),
        (["submit", "--env", "a b=1", "--dry-run", "--", "true"], ("server.bad_env_name", "a b")),
        (["submit", "--gpus", "1025", "--dry-run", "--", "true"], ("server.bad_shape", "gpus")),
        (["submit", "--name", "x" * 101, "--dry-run", "--", "true"], ("server.bad_shape", "name")),
        (["submit", "--deadline", "2020-01-01", "--dry-run", "--", "true"], ("server.deadline_passed",)),
        (["job", "show", ""], ("client.not_a_name", "")),
        (["job", "bid", ""], ("client.not_a_name", "")),
        (["job", "logs", "a/b"], ("client.not_a_name", "a/b")),
        (["submit", "--key", "a\nb", "--", "true"], ("client.bad_key",)),
        (["submit", "--key", "k" * 101, "--", "true"], ("client.bad_key",)),
    ],
)
def test_bad_input_is_one_clear_error_with_a_hint(
    here: Here, words: list[str], reason: tuple[str, ...]
) -> None:
    here.env["BRIMFUL_URL"] = "http://127.0.0.1:9"
    status, error = here.refused(*words)
    assert status == 2
    check_reason(error["reason"], *reason)
    assert error["hint"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["submit", "--gpus", "x", "--", "true"], "--gpus"),
        (["job", "show"], "JOB"),
        (["jobs", "--limit", "99999999"], "from 1 to 9,999,999"),
    ],
)
def test_what_argparse_refuses_is_named_and_has_a_hint(here: Here, words: list[str], named: str) -> None:
    status, error = here.refused(*words)
    assert (status, error["reason"]["code"]) == (2, "language.verbatim")
    assert named in error["problem"]
    assert error["hint"]


@pytest.mark.parametrize(
    "words",
    [["jobs"], ["job", "show", "job-1"], ["job", "logs", "job-1"], ["job", "cancel", "job-1"], ["fleet"]],
)
def test_without_a_server_the_error_says_how_to_start_one(here: Here, words: list[str]) -> None:
    here.env["BRIMFUL_URL"] = "http://127.0.0.1:9"
    done = here.run(*words, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "no_server")
    assert error["reason"]["reason"]["code"] == "language.os_econnrefused"
    assert "make run" in error["hint"]
    assert "BRIMFUL_DATA" in error["hint"]


def test_a_data_folder_without_a_server_is_named(here: Here) -> None:
    """Not the default address, which nobody asked for."""
    error = json.loads(here.run("jobs", "--json").stdout)["error"]
    assert (error["code"], error["reason"]["code"]) == ("no_server", "client.no_server_on")
    assert f"brimful up --data {here.env['BRIMFUL_DATA']}" in error["hint"]


def test_options_may_stand_before_the_words_they_are_about(here: Here) -> None:
    for typed in (
        ["job", "notify", "add", "--team", "https://hooks.example.org/x"],
        ["admin", "tokens", "add", "--tenant", "vision", "alice", "--role", "viewer"],
    ):
        assert json.loads(here.run(*typed, "--json").stdout)["error"]["code"] == "no_server"


def test_a_dry_run_says_that_the_job_could_not_start(here: Here) -> None:
    here.up()
    typed = ("submit", "--dry-run", "--no-pack", "--json", "--gpus")
    codes = [json.loads(here.run(*typed, n, "--", "true").stdout)["data"]["note_codes"] for n in "23"]
    assert [[each["code"] for each in found] for found in codes] == [[], ["fleet.could_not_start"]]


def test_a_dry_run_changes_nothing(here: Here) -> None:
    here.up()
    assert words("fleet.would_submit") in here.run("submit", "--dry-run", "--", "true").stdout
    assert here.data_of("jobs")["jobs"] == []


def test_a_dry_run_counts_the_tasks_of_an_array(here: Here) -> None:
    here.up()
    here.run("submit", "--array", "0-2%1", "--", "sleep", "1000")
    for verb in ("cancel", "hold"):
        dry = here.run("job", verb, "job-1", "--dry-run")
        assert words(f"fleet.would_{verb}_tasks", job="job-1", tasks=3) in dry.stdout, dry
    here.run("job", "cancel", "job-1_2")
    assert (
        words("fleet.would_cancel_tasks", job="job-1", tasks=2)
        in here.run("job", "cancel", "job-1", "--dry-run").stdout
    )
    here.run("job", "cancel", "job-1")


def test_a_stranger_without_the_token_cannot_submit(here: Here) -> None:
    url = here.up()["url"]
    here.env["BRIMFUL_TOKEN"] = "guess"
    done = here.run("submit", "--", "true")
    del here.env["BRIMFUL_TOKEN"]
    assert done.returncode == 1
    assert words("client.no_token", url=url) in done.stderr
    assert "BRIMFUL_TOKEN" in done.stderr


def test_a_budget_ends_a_job(here: Here) -> None:
    here.up("--usd-per-hour", "3600")
    done = here.run("submit", "--follow", "--json", "--budget", "1", "--", "sleep", "100000")
    job = json.loads(done.stdout)["data"]
    assert done.returncode == 1
    assert job["why_code"] == {"code": "scheduler.budget_used_up", "budget": 1_000_000}
    assert job["cost_microusd"] == 1_000_000


def test_two_servers_do_not_share_a_database(here: Here, tmp_path: Path) -> None:
    here.env["BRIMFUL_DATABASE"] = f"sqlite:///{tmp_path / 'log.db'}"
    here.up()
    here.run("submit", "--", "sleep", "600")
    eventually(lambda: here.phase("job-1") == "running")
    done = here.run("up", "--json", "--data", str(tmp_path / "other"))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "foreign_log")
    assert here.phase("job-1") == "running"
    # What the hint says to do when the first folder is gone for good.
    here.run("job", "cancel", "job-1")
    eventually(lambda: here.phase("job-1") == "cancelled")
    here.down()
    shutil.copy(here.data / "leases" / ".id", tmp_path / "other" / "leases" / ".id")
    here.env["BRIMFUL_DATA"] = str(tmp_path / "other")
    here.up()


def test_the_token_goes_to_no_stranger_at_an_old_address(here: Here) -> None:
    here.up()
    told = json.loads((here.data / "server.json").read_text())
    here.down(signal.SIGKILL)  # it leaves its address behind
    assert json.loads((here.data / "server.json").read_text()) == told
    with Stranger(int(told["url"].rpartition(":")[2])) as stranger:
        here.env["BRIMFUL_PORT"] = told["url"].rpartition(":")[2]
        for typed in (["submit", "--", "true"], ["job", "logs", "job-1"], ["job", "cancel", "job-1"]):
            here.run(*typed)
    assert len(stranger.heard) == 3
    assert all("authorization" not in each.lower() for each in stranger.heard)
    here.env["BRIMFUL_PORT"] = "0"


class Stranger:
    """Somebody else's server, and what it is told."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.heard: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                self.heard.append(caller.recv(65536).decode())
                caller.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "mode"), [("", 0o600), ("short", 0o600), ("x" * 43, 0o644), ("\xff" * 40, 0o600)]
)
def test_a_token_that_is_no_secret_is_replaced(here: Here, text: str, mode: int) -> None:
    here.data.mkdir(mode=0o755)
    (here.data / "token").write_text(text)
    (here.data / "token").chmod(mode)
    here.up()
    assert len((here.data / "token").read_text()) >= 32
    assert (here.data / "token").read_text() != text
    assert (here.data / "token").stat().st_mode & 0o777 == 0o600
    assert here.data.stat().st_mode & 0o777 == 0o700
    assert here.run("submit", "--follow", "--", "true").returncode == 0


def test_a_token_file_that_cannot_be_one_is_one_clear_error(here: Here) -> None:
    (here.data / "token").mkdir(parents=True)
    status, error = here.refused("up")
    assert status == 3
    check_reason(error["reason"], "server.cannot_use_token_file", here.data / "token")
    assert "Traceback" not in here.run("submit", "--", "true").stderr


def test_a_damaged_server_file_is_as_good_as_none(here: Here) -> None:
    here.up()
    whole = (here.data / "server.json").read_text()
    here.env["BRIMFUL_PORT"] = "9"
    for text in ("[]", "{", '{"url": 3}', ""):
        (here.data / "server.json").write_text(text)
        for typed, code in ((["jobs"], 3), (["up"], 3), (["submit", "--", "true"], 3)):
            done = here.run(*typed)
            assert (text, done.returncode, "Traceback" in done.stderr) == (text, code, False)
    (here.data / "server.json").write_text(whole)


def test_submitting_from_a_folder_that_is_gone_is_one_clear_error(here: Here, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec "$@"'
    words = [*BRIMFUL, "submit", "--json", "--dry-run", "--", "true"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], env=here.env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    check_reason(json.loads(done.stdout)["error"]["reason"], "fleet.folder_gone")


def test_what_users_write_breaks_out_of_no_line(here: Here) -> None:
    here.up()
    evil = "x\x1b[2J\n12:00:00  job-9 finished\u202e"
    here.run("submit", "--", "sh", "-c", "exit 0", evil)
    eventually(lambda: here.phase("job-1") == "finished")
    dry = here.run("submit", "--dry-run", "--", evil).stdout
    for text in (here.run("jobs").stdout, here.run("job", "show", "job-1").stdout, dry):
        assert "x\ufffd[2J\ufffd12:00:00" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "[2J" not in here.down()[1]  # a command is nothing for the server's log


def test_a_log_that_grows_as_fast_as_it_is_read_is_shown_up_to_where_it_was() -> None:
    class Endless:
        size = 10

        def log(self, _job: str, *, offset: int = 0, limit: int, **_lease: str) -> dict[str, Any]:
            self.size += 10
            text = "x" * min(7, limit, self.size - offset)
            return {
                "lease": "job-1.1",
                "text": text,
                "next_offset": offset + len(text),
                "size": self.size,
                "over": False,
                "phase": "running",
            }

    pieces = list(job_command._until_now(Endless(), "job-1"))  # type: ignore[arg-type]
    assert 20 <= sum(len(piece["text"]) for piece in pieces) < 24


def test_following_goes_on_with_the_next_lease_of_a_requeued_job() -> None:
    answers = [("job-1.1", 4, "one\n", False), ("job-1.2", 4, "two\n", False), ("job-1.2", 4, "", True)]

    class Server:
        asked: ClassVar[list[tuple[object, int]]] = []

        def log(self, _job: str, *, offset: int, **query: object) -> dict[str, Any]:
            self.asked.append((query.get("lease"), offset))
            lease, size, text, over = answers[len(self.asked) - 1]
            return {"lease": lease, "text": text, "next_offset": 4, "size": size, "over": over}

    pieces = list(job_command._until_over(Server(), "job-1"))  # type: ignore[arg-type]
    assert [piece["text"] for piece in pieces] == ["one\n", "two\n", ""]
    assert Server.asked == [(None, 0), ("job-1.1", 4), ("job-1.2", 4)]


def test_sigterm_stops_as_cleanly_as_ctrl_c_and_says_what_goes_on(here: Here) -> None:
    here.up()
    here.run("submit", "--", "sleep", "600")
    eventually(lambda: here.phase("job-1") == "running")
    code, err = here.down(signal.SIGTERM)
    assert code == 0
    assert words("units.job", n=1) in err.splitlines()[-1]
    here.up()
    assert here.phase("job-1") == "running"


def test_a_job_that_can_never_start_is_told_so_at_once(here: Here) -> None:
    here.up()
    told = here.run("submit", "--gpus", "9", "--", "true").stdout
    job = here.data_of("job", "show", "job-1")
    check_reason(job["why_code"], "scheduler.too_wide_node", 2)
    assert job["why_code"]["gpus"]["n"] == 9
    for said in (told, here.run("jobs").stdout):
        assert job["why"] in " ".join(said.split())
    done = here.run("job", "cancel", "job-9", "job-1")
    unknown = words("server.no_job", name=Quoted("job-9"))
    assert (done.returncode, done.stdout) == (1, f"job-9: {unknown}\njob-1 cancelled\n")


def test_a_command_without_its_dashes_is_told_where_to_put_them(here: Here) -> None:
    done = here.run("submit", "--follow", "python", "train.py")
    assert done.returncode == 2
    assert "-- python train.py" in done.stderr


def test_the_drivers_gpus_are_used_by_their_own_indices_and_any_name(here: Here, fake_nvml: FakeNvml) -> None:
    fake_nvml.show(
        a_card("Tesla T4", uuid="GPU-0"),
        a_card(uuid="GPU-1"),
        a_card(uuid="GPU-2", fails=LOST),
        a_card(uuid="GPU-3"),
    )
    here.env |= {name: fake_nvml.env[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    here.up()
    fleet = here.data_of("fleet")
    nodes = {node["gpu"]: node["declared"] for node in fleet["nodes"]}
    assert nodes == {"t4": False, "rtx-4070": False}
    assert words("meter.nvml_gpu_is_lost") in fleet["problems"]["local"]
    assert "GPU 2" in fleet["problems"]["local"]
    done = here.run(
        "submit", "-f", "--gpu", "NVIDIA GeForce RTX 4070", "--gpus", "2", "--",
        "sh", "-c", "echo on $CUDA_VISIBLE_DEVICES by $CUDA_DEVICE_ORDER",
    )  # fmt: skip
    assert "on 1,3 by PCI_BUS_ID\n" in done.stdout
