"""A job runs the code that was submitted, whatever becomes of the folder; by the API and `brimful submit`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.local import LocalEngine
from brimful.client.pack import packed
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service.service import Service
from tests.builders import a_node, eventually
from tests.server.builders import bearer, wind_down
from tests.server.live import live, wait_for
from tests.server.test_api import Server


class CodeServer(Server):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.code = CodeStore(folder / "code")
        engine = LocalEngine(folder / "leases", [a_node(gpus=2)], site="here", code=self.code)
        self.service = Service(self.store, [engine], Rules(grace_s=1), code=self.code)
        headers = self.http.headers
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(headers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CodeServer]:
    server = CodeServer(tmp_path)
    yield server
    server.access.close()
    wind_down(server.service)
    server.store.close()


def send(server: CodeServer, folder: Path, **query: str) -> str:
    with packed(folder) as pack:
        answer = server.http.post(f"/v1/code/{pack.code}", content=pack.file.read(), params=query)
    assert answer.status_code == 201, answer.text
    assert answer.json()["data"] == {"code": pack.code, "size": pack.size}
    return pack.code


def test_a_job_runs_what_was_submitted_and_not_what_the_folder_holds_later(
    server: CodeServer, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "say.sh").write_text(
        "echo first; pwd > $BRIMFUL_CHECKPOINT_DIR/where; echo $BRIMFUL_SUBMIT_DIR"
    )
    code = send(server, folder)
    body = {"command": ["sh", "say.sh"], "folder": str(folder), "code": code}
    (folder / "say.sh").write_text("echo second")
    answer = server.http.post("/v1/jobs", json=body).json()["data"]
    assert answer["code"] == code
    eventually(lambda: server.phase(answer["job"]) == "finished")
    assert server.get(f"/v1/jobs/{answer['job']}/log")["text"] == f"first\n{folder}\n"
    where = (tmp_path / "leases" / ".checkpoints" / answer["job"] / "where").read_text().strip()
    assert where == str(tmp_path / "leases" / f"{answer['job']}.1" / "work")


def test_code_is_its_tenants_alone(server: CodeServer, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    code = send(server, folder, tenant="red")
    blue = bearer(server.access, "submitter", "blue")
    assert server.http.get(f"/v1/code/{code}", params={"tenant": "red"}).status_code == 200
    assert server.http.get(f"/v1/code/{code}", headers=blue).status_code == 404
    assert server.http.get(f"/v1/code/{code}", headers=blue, params={"tenant": "red"}).status_code == 403
    body = {"command": ["true"], "folder": "/", "code": code}
    answer = server.http.post("/v1/jobs", json=body, headers=blue)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_code")


def test_what_is_not_what_it_says_is_not_kept(server: CodeServer, tmp_path: Path) -> None:
    name = hashlib.sha256(b"other").hexdigest()
    answer = server.http.post(f"/v1/code/{name}", content=b"this")
    assert (answer.status_code, answer.json()["error"]["reason"]["code"]) == (400, "adapters.code_differs")
    assert not list((tmp_path / "code").rglob("*.*"))
    assert server.http.post("/v1/code/..%2f..%2fx", content=b"this").status_code in {404, 422}


@pytest.mark.parametrize("how", ["damaged", "no archive"])
def test_a_job_whose_code_is_bad_fails_with_the_reason(server: CodeServer, tmp_path: Path, how: str) -> None:
    data = b"no tar" if how == "no archive" else b""
    code = hashlib.sha256(data).hexdigest()
    assert server.http.post(f"/v1/code/{code}", content=data).status_code == 201
    if how == "damaged":
        server.code.path("default", code).write_bytes(b"x")
    job = server.submit("true", code=code)
    eventually(lambda: server.phase(job) == "failed")
    why = server.get(f"/v1/jobs/{job}")["why_code"]["code"]  # type: ignore[index]
    assert why == {"damaged": "adapters.code_damaged", "no archive": "adapters.code_no_archive"}[how]


def test_submit_sends_the_folder_once_and_the_array_of_it_is_one_line(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "run.py").write_text("import os; print('index', os.environ['BRIMFUL_ARRAY_INDEX'])")
    (project / ".env").write_text("SECRET=1")
    with live(tmp_path / "data", "--slots", "2") as server:

        def submit(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(Path(sys.executable).with_name("brimful")), "submit", *words],
                cwd=project, env=server.env, capture_output=True, text=True, check=False,
            )  # fmt: skip

        for _ in range(2):
            done = submit("--array", "0-2%2", "--", "python", "run.py")
            assert done.returncode == 0, done.stderr
        kept = list((tmp_path / "data" / "code").rglob("*.tar"))
        assert len(kept) == 1
        assert b"SECRET" not in kept[0].read_bytes()
        wait_for(lambda: server.show("job-4_2")["phase"] == "finished")
        assert server.read("job", "logs", "job-1_2").endswith("index 2\n")
        table = server.read("jobs", columns=120)
        assert [line.split()[0] for line in table.splitlines() if line.startswith("job-")] == [
            "job-4",
            "job-1",
        ]
        assert "3 finished" in table
        after = submit("--after", "job-1", "--after", "job-4:any", "--no-pack", "--follow", "--", "pwd")
        assert str(project) in after.stdout
        said = submit("--dry-run", "--", "true").stdout
        assert ".env" in said
        assert "1 file" in said
