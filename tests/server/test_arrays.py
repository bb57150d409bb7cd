"""Arrays and dependencies through the API, with real processes and a real log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.fleet.events import ArraySubmitted
from brimful.server.doctor import examine
from tests.builders import eventually
from tests.server.builders import bearer, wind_down
from tests.server.test_api import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.access.close()
    wind_down(server.service)
    server.store.close()


def submit(server: Server, *command: str, **more: object) -> dict[str, object]:
    body = {"command": list(command), "folder": server.folder, **more}
    answer = server.http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    data: dict[str, object] = answer.json()["data"]
    return data


def tasks(server: Server, array: str) -> list[str]:
    answer = server.http.get("/v1/jobs", params={"array": array}).json()["data"]["jobs"]
    return [job["phase"] for job in answer]


SAY = "echo $BRIMFUL_ARRAY_INDEX $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SECRET"


def test_an_array_runs_each_task_once_with_its_own_index(server: Server) -> None:
    first = submit(server, "sh", "-c", SAY, array="2-6:2%2", env={"SECRET": "hush"})
    assert (first["job"], first["array"]) == ("job-1_2", "job-1")
    assert sum(isinstance(event, ArraySubmitted) for event in server.store.since(0)) == 1

    def is_over() -> bool:
        server.service.driver.tick()
        return tasks(server, "job-1") == ["finished"] * 3

    eventually(is_over)
    logs = [server.get(f"/v1/jobs/job-1_{i}/log")["text"] for i in (2, 4, 6)]
    assert logs == ["2 2 3 hush\n", "4 4 3 hush\n", "6 6 3 hush\n"]
    kept = [path for path in Path(server.folder).rglob("*.json") if "hush" in path.read_text()]
    assert kept == []  # one environment for all tasks, and gone with the last
    assert submit(server, "true")["job"] == "job-4"


def test_a_list_folds_an_array_to_one_line_whose_sums_are_all_tasks(server: Server) -> None:
    submit(server, "true", gpus=2)
    submit(server, "true", array="0-99%4", gpus=1000)
    listed = server.http.get("/v1/jobs", params={"fold": "true"}).json()["data"]
    assert [job["array"] or job["job"] for job in listed["jobs"]] == ["job-2", "job-1"]
    assert listed["jobs"][0]["array_tasks"]["phases"] == {"waiting": 4, "pending": 96}
    assert len(server.http.get("/v1/jobs").json()["data"]["jobs"]) == 101
    first_page = server.http.get("/v1/jobs", params={"fold": "true", "limit": 1}).json()["data"]
    assert (len(first_page["jobs"]), bool(first_page["next_cursor"])) == (1, True)


def test_a_verb_on_an_array_is_for_every_task_that_is_not_over(server: Server) -> None:
    submit(server, "true", array="0-9%2", gpus=1000)
    assert server.http.post("/v1/jobs/job-1/hold").status_code == 200
    assert tasks(server, "job-1").count("held") == 2
    assert server.http.post("/v1/jobs/job-1/cancel").status_code == 200
    assert tasks(server, "job-1") == ["cancelled"] * 10
    again = server.http.post("/v1/jobs/job-1/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "refused")
    assert server.http.get("/v1/jobs/job-1").json()["error"]["code"] == "is_array"


def test_a_key_that_comes_again_gives_the_same_array_and_no_second(server: Server) -> None:
    body = {"command": ["true"], "folder": server.folder, "gpus": 1000, "array": "0-4"}
    keyed = {"idempotency-key": "k"}
    names = [server.http.post("/v1/jobs", json=body, headers=keyed).json()["data"]["array"] for _ in range(2)]
    assert (names, server.service.reader.fleet.submitted) == (["job-1", "job-1"], 5)
    for other in ({"array": "0-5"}, {"array": "0-4%1"}, {"array": None}):
        answer = server.http.post("/v1/jobs", json=body | other, headers=keyed)
        assert answer.json()["error"]["code"] == "key_reused"


def test_a_job_after_a_failed_one_is_skipped_with_the_reason_and_its_money_is_free(server: Server) -> None:
    server.http.post("/v1/budgets/default", json={"microusd": 1_000_000})
    first = server.submit("false")
    second = server.submit("true", after=[first], budget_microusd=400_000)
    third = server.submit("true", after=[f"{second}:ok", f"{first}:any"])
    last = server.submit("true", after=[f"{third}:any"])
    assert server.get(f"/v1/jobs/{second}")["phase"] == "pending"
    assert server.get(f"/v1/jobs/{second}/why")["waiting_code"]["code"] == "fleet.starts_after"  # type: ignore[index]
    eventually(lambda: server.phase(last) == "finished")
    told = server.get(f"/v1/jobs/{second}")
    assert (told["phase"], told["why_code"]["code"]) == ("skipped", "scheduler.never_starts")  # type: ignore[index]
    why = server.get(f"/v1/jobs/{second}/why")
    assert (why["ended"], why["ended_code"]) == (told["why"], told["why_code"])
    assert server.get(f"/v1/jobs/{last}/why")["waiting"] is None
    assert server.get(f"/v1/jobs/{third}")["phase"] == "skipped"
    ready_s = server.get(f"/v1/jobs/{last}")["ready_s"]
    assert ready_s == server.get(f"/v1/jobs/{third}")["ended_s"]  # what was before is not called waiting
    spend = server.get("/v1/spend")
    assert (spend["held_microusd"], spend["sum_microusd"]) == (0, 0)
    late = server.http.post("/v1/jobs", json={"command": ["x"], "folder": "/", "after": [first]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "never_starts")


def test_nothing_comes_after_an_array_of_which_a_task_failed(server: Server) -> None:
    submit(server, "false", array="0-1")

    def is_over() -> bool:
        server.service.driver.tick()
        return tasks(server, "job-1") == ["failed"] * 2

    eventually(is_over)
    late = {"command": ["true"], "folder": server.folder, "after": ["job-1"]}
    answer = server.http.post("/v1/jobs", json=late)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "never_starts")
    assert submit(server, "true", after=["job-1:any"])["phase"] == "waiting"


def test_nobody_comes_after_a_job_that_is_not_theirs_to_see(server: Server) -> None:
    job = server.submit("true", gpus=1000, tenant="theirs")
    submit(server, "true", array="0-1", gpus=1000, tenant="theirs")
    mine = bearer(server.access, "submitter", "mine")
    for name in (job, "job-2", "job-99"):
        body = {"command": ["true"], "folder": "/", "after": [name]}
        answer = server.http.post("/v1/jobs", json=body, headers=mine)
        assert (answer.status_code, answer.json()["error"]["reason"]["code"]) == (404, "server.no_job")
    assert server.http.post("/v1/jobs/job-2/cancel", headers=mine).status_code == 404


@pytest.mark.parametrize(
    "more",
    [{"array": "5-1"}, {"array": "0-5000"}, {"after": ["a b"]}, {"after": ["x:no"]}, {"tiers": ["free"]}],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(server: Server, more: dict[str, object]) -> None:
    answer = server.http.post("/v1/jobs", json={"command": ["true"], "folder": "/", **more})
    assert answer.status_code in {400, 422}
    assert server.service.reader.fleet.seq == 0


def test_doctor_finds_pending_jobs_in_their_place(server: Server) -> None:
    submit(server, "true", array="0-9%2", gpus=1000)
    server.service.driver.tick()
    broken = [each.promise.code for each in examine(server.store) if not each.kept]
    assert broken == []
