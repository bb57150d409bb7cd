"""The API without a network: what it takes, what it refuses, and that nothing leaks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import LeaseEnding
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.language import verbatim
from brimful.scheduler.rules import Rules
from brimful.server.app import MAX_BODY_BYTES, make_app
from brimful.server.service.service import Service
from tests.builders import a_node, eventually
from tests.server.builders import an_access, bearer, wind_down


class Server:
    def __init__(self, folder: Path, *nodes: Node) -> None:
        self.store = SqlStore(f"sqlite:///{folder / 'log.db'}")
        engine = LocalEngine(folder / "leases", nodes or [a_node(gpus=2)], site="here")
        self.service = Service(self.store, [engine], Rules(grace_s=1))
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(bearer(self.access))
        self.folder = str(folder)

    def submit(self, *command: str, **more: object) -> str:
        body = {"command": list(command), "folder": self.folder, **more}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["data"]["job"]
        return name

    def get(self, path: str) -> dict[str, object]:
        answer = self.http.get(path).json()
        assert answer["ok"], answer
        data: dict[str, object] = answer["data"]
        return data

    def requeue(self, lease: str) -> None:
        """Stop it as a preemption does: its job waits for another lease."""
        event = LeaseEnding(
            at_s=self.service.reader.now_s(), lease=lease, reason=verbatim("preempted"), requeue=True
        )
        assert self.store.append([event], after=self.service.reader.fleet.seq)

    def phase(self, job: str) -> object:
        self.service.driver.tick()
        return self.get(f"/v1/jobs/{job}")["phase"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.access.close()
    wind_down(server.service)
    server.store.close()


def test_a_job_is_run_and_billed(server: Server) -> None:
    job = server.submit("sh", "-c", "echo working; sleep 1", budget_microusd=1_000_000)
    eventually(lambda: server.phase(job) == "finished")
    shown = server.get(f"/v1/jobs/{job}")
    spend = server.get("/v1/spend")
    assert server.get(f"/v1/jobs/{job}/log")["text"] == "working\n"
    assert shown["cost_microusd"] == shown["posted_microusd"] == spend["posted_microusd"]
    # At least one second of one GPU at $2 an hour, rounded down.
    assert spend["posted_microusd"] >= 555  # type: ignore[operator]
    assert (spend["held_microusd"], spend["sum_microusd"]) == (0, 0)


def test_a_waiting_job_says_why_and_can_be_cancelled(server: Server) -> None:
    job = server.submit("true", gpus=9)
    assert server.phase(job) == "waiting"
    why: Any = server.get(f"/v1/jobs/{job}")["why_code"]
    assert (why["code"], why["gpus"]["n"], why["most"]) == ("scheduler.too_wide_node", 9, 2)
    assert server.http.post(f"/v1/jobs/{job}/cancel").json()["data"]["phase"] == "cancelled"
    again = server.http.post(f"/v1/jobs/{job}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "refused")


def test_a_running_job_is_stopped_when_cancelled(server: Server) -> None:
    job = server.submit("sleep", "600")
    eventually(lambda: server.phase(job) == "running")
    server.http.post(f"/v1/jobs/{job}/cancel")
    eventually(lambda: server.phase(job) == "cancelled")


def test_what_is_not_measured_is_null(server: Server) -> None:
    server.service.driver.tick()
    gpu = server.get("/v1/fleet")["nodes"][0]["gpus"][0]  # type: ignore[index]
    assert (gpu["memory_used_bytes"], gpu["busy_frac"], gpu["mfu"]) == (None, None, None)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_a_page_under_another_name_is_turned_away(server: Server, host: str) -> None:
    assert server.http.get("/v1/jobs", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost", "[::1]:8642", "[::1]"])
def test_loopback_is_let_in_by_each_of_its_names(server: Server, host: str) -> None:
    assert server.http.get("/v1/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 0},
        {"gpus": -1},
        {"gpus": 10**30},
        {"gpus": "many"},
        {"command": []},
        {"command": [" "]},
        {"command": ["a\x00b"]},
        {"command": "true"},
        {"folder": "relative"},
        {"folder": "/\x00"},
        {"priority": "now"},
        {"tenant": "../x"},
        {"name": "<b>"},
        {"budget_microusd": 0},
        {"budget_microusd": 10**20},
        {"env": {"A=B": "1"}},
        {"env": {"A": "\x00"}},
        {"surprise": 1},
    ],
)
def test_a_bad_submission_is_refused_in_one_shape_and_changes_nothing(
    server: Server, change: dict[str, object]
) -> None:
    body = {"command": ["true"], "folder": "/", **change}
    answer = server.http.post("/v1/jobs", json=body)
    assert answer.status_code in (400, 422)
    assert set(answer.json()["error"]) == {"code", "problem", "hint", "reason"}
    assert answer.json()["error"]["problem"]
    assert server.store.since(0) == []


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"\ud800": "1"}},
        {"env": {"A": "\ud800"}},
        {"predicted": {"\ud800": {"peak_bytes": 1, "step_s": 1.0}}},
        {"\ud800": 1},
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(server: Server, change: dict[str, object]) -> None:
    body = json.dumps({"command": ["true"], "folder": "/", **change})
    answer = server.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["reason"]["code"]) == (422, "server.bad_shape")
    assert server.store.since(0) == []


@pytest.mark.parametrize(
    ("change", "where", "why", "limit"),
    [
        ({"max_run_s": 10**10}, "max_run_s", "server.shape_at_most", 316_224_000),
        ({"retries": -1}, "retries", "server.shape_at_least", 0),
        ({"gpus": 0}, "gpus", "server.shape_at_least", 1),
        ({"name": "x" * 101}, "name", "server.shape_characters", 100),
        ({"sites": ["x"] * 51}, "sites", "server.shape_entries", 50),
        ({"tenant": "x y"}, "tenant", "server.shape_name", None),
        ({"colour": "red"}, "colour", "server.shape_unknown", None),
    ],
)
def test_a_value_out_of_shape_is_refused_by_field_limit_and_option(
    server: Server, change: dict[str, object], where: str, why: str, limit: int | None
) -> None:
    answer = server.http.post("/v1/jobs", json={"command": ["true"], "folder": "/", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["reason"]["code"]) == (422, "server.bad_shape")
    assert (error["reason"]["where"], error["reason"]["why"]["code"]) == (where, why)
    assert error["reason"]["why"].get("limit") == limit
    assert ("--" in error["hint"]) == (where != "colour")
    if where == "max_run_s":
        assert "3660 d" in error["problem"]


def test_a_queue_out_of_shape_is_called_by_its_name(server: Server) -> None:
    answer = server.http.put(
        "/v1/queues", json={"queues": [{"queue": "nlp"}, {"queue": "vision", "gpus": -1}]}
    )
    error = answer.json()["error"]
    assert (error["reason"]["where"], "--gpus" in error["hint"]) == ("[vision] gpus", False)


def test_a_huge_body_is_cut_off(server: Server) -> None:
    stated = server.http.post("/v1/jobs", content=b"x" * (MAX_BODY_BYTES + 1))
    assert stated.status_code == 413

    def unstated() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * (MAX_BODY_BYTES // 2)

    assert server.http.post("/v1/jobs", content=unstated()).status_code in (400, 413)
    assert server.store.since(0) == []


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/jobs/job-7", "/v1/jobs/..%2Fx/log", "/nothing"])
def test_what_is_not_there_is_a_404_in_the_same_shape(server: Server, path: str) -> None:
    answer = server.http.get(path)
    assert (answer.status_code, answer.json()["ok"]) == (404, False)
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("fr-CH, en;q=0.5", "le job 'job-9' n'existe pas"),
        ("ja, de-AT;q=0.8", "es gibt keinen Job 'job-9'"),
        ("ja", "there is no job 'job-9'"),
    ],
)
def test_an_answer_is_in_the_first_language_asked_for_that_we_speak(
    server: Server, asked: str, problem: str
) -> None:
    answer = server.http.get("/v1/jobs/job-9", headers={"accept-language": asked})
    assert answer.json()["error"]["problem"] == problem
    assert answer.json()["error"]["reason"]["code"] == "server.no_job"


def test_every_answer_carries_the_security_headers(server: Server) -> None:
    for path in ("/", "/v1/jobs", "/nothing"):
        headers = server.http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_a_log_is_cut_between_characters(server: Server) -> None:
    job = server.submit("printf", "aé€z")
    eventually(lambda: server.phase(job) == "finished")
    text, offset = "", 0
    for _ in range(10):
        piece = server.get(f"/v1/jobs/{job}/log?offset={offset}&limit=4")
        text += str(piece["text"])
        offset = int(str(piece["next_offset"]))
    assert text == "aé€z"


def test_each_rank_of_a_gang_has_its_log_and_its_exit_code(tmp_path: Path) -> None:
    server = Server(tmp_path, a_node("n-0", gpus=1), a_node("n-1", gpus=1))
    job = server.submit("sh", "-c", "echo rank $BRIMFUL_RANK of $BRIMFUL_WORLD_SIZE", gpus=2, within="site")
    eventually(lambda: server.phase(job) == "finished")
    for rank in range(2):
        piece = server.get(f"/v1/jobs/{job}/log?rank={rank}")
        assert piece["text"] == f"rank {rank} of 2\n"
    assert server.get(f"/v1/jobs/{job}/log?rank=2")["text"] == ""
    leases: Any = server.get(f"/v1/jobs/{job}")["leases"]
    assert [(lease["exit_code"], lease["exit_codes"]) for lease in leases] == [(0, [0, 0])]
    wind_down(server.service)
    server.store.close()


def test_the_openapi_schema_describes_the_api(server: Server) -> None:
    assert "/v1/jobs" in server.http.get("/v1/openapi.json").json()["paths"]


def test_what_a_job_is_told_in_its_environment_is_not_in_the_log_nor_left_behind(server: Server) -> None:
    job = server.submit("sh", "-c", "echo $KEY $EMPTY $OTHER; read line < go", env=KEYS)
    os.mkfifo(Path(server.folder) / "go")
    assert {path.stat().st_mode & 0o777 for path in _holding("hush", server)} == {0o600}
    eventually(lambda: server.phase(job) == "running" and server.get(f"/v1/jobs/{job}/log")["size"])
    (Path(server.folder) / "go").write_text("\n")
    eventually(lambda: server.phase(job) == "finished")
    assert server.get(f"/v1/jobs/{job}/log")["text"] == "hush me\n"
    assert [path.name for path in _holding("hush", server)] == ["log"]
    assert [path.name for path in _holding("OTHER", server)] != []  # the names are


def test_what_submit_takes_of_a_shell_by_itself_needs_no_file_beside_the_log(server: Server) -> None:
    """So that a job whose submitter named no variable starts from a restored log alone."""
    plain = {"VIRTUAL_ENV": "/my/venv", "LANG": "C"}
    job = server.submit("sh", "-c", "echo $VIRTUAL_ENV $SLURM_ARRAY_TASK_MAX", env=plain, array="7")
    assert not list(Path(server.folder).rglob(".env/*"))
    eventually(lambda: server.phase(job) == "finished")
    assert server.get(f"/v1/jobs/{job}/log")["text"] == "/my/venv 7\n"


@pytest.mark.parametrize("env", [{"LANG": "C", "LC_ALL": ""}, {"MINE": ""}])
def test_an_empty_value_is_not_taken_for_a_lost_one(server: Server, env: dict[str, str]) -> None:
    job = server.submit("sh", "-c", "echo [$LC_ALL$MINE]", env=env)
    eventually(lambda: server.phase(job) in ("finished", "failed"))
    assert server.phase(job) == "finished", server.get(f"/v1/jobs/{job}")["why_code"]


def test_a_spreadsheet_runs_no_name_of_a_bill(server: Server) -> None:
    job = server.submit("true", name="+1")
    eventually(lambda: server.phase(job) == "finished")
    (_, bill) = server.http.get("/v1/invoice.csv?by=job").text.splitlines()
    assert bill.startswith(f"{job},'+1,")


def test_many_submits_at_once_keep_their_environments_apart(server: Server) -> None:
    def submit(i: int) -> None:
        job = Job(job="", gpus=1, command=("sh", "-c", "test $MINE = $0", str(i)), env=(("MINE", str(i)),))
        server.service.submissions.submit(job)

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: all(server.phase(f"job-{i}") == "finished" for i in range(1, 9)))


def test_a_cancelled_job_leaves_no_environment_behind(server: Server) -> None:
    job = server.submit("true", gpus=2000 // 2, env=KEYS)
    assert _holding("hush", server)
    server.http.post(f"/v1/jobs/{job}/cancel")
    assert not _holding("hush", server)


def test_a_job_whose_environment_is_lost_is_not_run_without_it(server: Server) -> None:
    job = server.submit("true", env=KEYS)
    for path in _holding("hush", server):
        path.unlink()
    eventually(lambda: server.phase(job) == "failed")
    assert server.get(f"/v1/jobs/{job}")["why_code"] == {"code": "adapters.environment_lost", "job": job}


KEYS = {"KEY": "hush", "EMPTY": "", "OTHER": "me"}


def _holding(word: str, server: Server) -> list[Path]:
    """Files of the data folder that hold the word."""
    files = [path for path in Path(server.folder).rglob("*") if path.is_file()]
    return [path for path in files if word.encode() in path.read_bytes()]


def test_an_offset_belongs_to_a_lease_and_the_next_lease_begins_anew(server: Server) -> None:
    job = server.submit("sh", "-c", "echo run $BRIMFUL_LEASE; test $BRIMFUL_LEASE = job-1.2 || sleep 600")
    eventually(lambda: server.phase(job) == "running" and server.get(f"/v1/jobs/{job}/log")["size"])
    first = server.get(f"/v1/jobs/{job}/log")
    assert (first["lease"], first["text"], first["over"]) == ("job-1.1", "run job-1.1\n", False)
    server.requeue("job-1.1")
    eventually(lambda: server.phase(job) == "finished")
    offset = first["next_offset"]
    again = server.get(f"/v1/jobs/{job}/log?lease=job-1.1&offset={offset}")
    assert (again["lease"], again["text"], again["over"]) == ("job-1.2", "run job-1.2\n", True)
    whole = server.get(f"/v1/jobs/{job}/log?lease=job-1.1")
    assert (whole["lease"], whole["text"], whole["over"]) == ("job-1.1", "run job-1.1\n", False)
    answer = server.http.get(f"/v1/jobs/{job}/log?lease=job-1.7")
    reason = {"code": "server.no_lease", "name": "job-1", "lease": "job-1.7"}
    assert (answer.status_code, answer.json()["error"]["reason"]) == (404, reason)


def test_a_piece_too_small_for_a_character_is_refused(server: Server) -> None:
    job = server.submit("true")
    assert server.http.get(f"/v1/jobs/{job}/log?limit=3").status_code == 422


def test_a_wrong_method_has_the_same_shape(server: Server) -> None:
    answer = server.http.delete("/v1/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_bug_of_ours_has_the_same_shape_and_tells_a_stranger_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug() -> None:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(server.service.reader, "now_s", bug)
    app = make_app(server.service, server.access)
    http = TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)
    answer = http.get("/v1/fleet", headers=server.http.headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_request_with_two_hosts_is_refused_whichever_is_ours(server: Server) -> None:
    for hosts in (("127.0.0.1", "evil.example"), ("127.0.0.1", "127.0.0.1")):
        answer = server.http.get("/v1/jobs", headers=[("host", each) for each in hosts])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "two_hosts")


@pytest.mark.parametrize(
    "code",
    [
        "unauthorized",
        "forbidden",
        "too_many",
        "wrong_host",
        "two_hosts",
        "too_large",
        "method_not_allowed",
        "bad_request",
        "internal_error",
    ],
)
def test_every_code_of_an_answer_is_in_the_reference(code: str) -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
    assert f"| `{code}` |" in reference.read_text()
