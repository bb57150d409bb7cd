"""Pages of jobs go on into those that have left memory, without a hole or a double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.sql import SqlStore
from brimful.client.answers import JobAnswer
from brimful.fleet.state import JobState
from brimful.scheduler.rules import Rules
from brimful.server.service.reader import Reader
from brimful.server.service.service import Service
from brimful.server.views import jobs as module
from brimful.server.views.jobs import Wanted, job_text, job_view, jobs_page
from tests.builders import a_job, a_node
from tests.server.test_console import Desk, words


def test_pages_go_on_into_jobs_that_have_left_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 3)
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    service = Service(store, [LocalEngine(tmp_path / "leases", [a_node(gpus=2)], site="here")], Rules())
    for i in range(12):
        name = service.submissions.submit(a_job("", gpus=9, tenant="ab"[i % 2])).job.job
        if i:  # the first one still waits: old, and in memory
            service.submissions.cancel(name)
    assert service.reader.fleet.submitted - len(service.reader.fleet.jobs) == 8

    for tenant, phases, expected in (
        (None, None, list(range(12, 0, -1))),
        (None, ["cancelled"], list(range(12, 1, -1))),
        (None, ["waiting"], [1]),
        ("a", None, [11, 9, 7, 5, 3, 1]),
    ):
        seen: list[str] = []
        before: int | None = None
        while True:
            wanted = Wanted(phases=phases, tenants=tenant and {tenant})
            page = jobs_page(service.reader, job_view, before=before, limit=5, wanted=wanted)
            seen += [view["job"] for view in page.views]
            before = page.next_serial
            if before is None:
                break
        assert seen == [f"job-{i}" for i in expected]
    store.close()


def test_a_list_asks_the_store_for_a_page_of_past_jobs_not_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 1)
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    service = Service(store, [LocalEngine(tmp_path / "leases", [a_node(gpus=2)], site="here")], Rules())
    for _ in range(6):
        service.submissions.cancel(service.submissions.submit(a_job("", gpus=9)).job.job)
    service.driver.advance(at_least=1)
    past = service.reader.past_jobs()
    assert len(past) == 5
    monkeypatch.setattr(store, "past_job", None)
    monkeypatch.setattr(type(service.reader), "spent_microusd", lambda _self, name: {"job-6": 0}[name])
    for show in (job_view, job_text):
        assert len(jobs_page(service.reader, show, limit=6).views) == 6
    store.close()


def test_a_list_makes_each_job_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, made = Desk(tmp_path), list[str]()
    whole = module.job_view

    def counted(reader: Reader, state: JobState, **how: Any) -> JobAnswer:
        made.append(state.job.job)
        return whole(reader, state, **how)

    monkeypatch.setattr(module, "job_view", counted)

    def listed(**headers: str) -> list[dict[str, Any]]:
        made.clear()
        answer = desk.client.get("/v1/jobs", headers=headers)
        assert answer.headers["content-type"] == "application/json"
        jobs: list[dict[str, Any]] = answer.json()["data"]["jobs"]
        return jobs

    for _ in range(3):
        desk.service.submissions.submit(a_job("", gpus=9))
    desk.service.driver.tick()
    first = listed()
    assert made == ["job-3", "job-2", "job-1"]
    assert first[0] == desk.client.get("/v1/jobs/job-3").json()["data"] | {"array_tasks": None}
    assert (listed(), made) == (first, [])
    german = listed(**{"accept-language": "de"})
    assert german[0]["why"] != first[0]["why"]
    assert german[0]["why_code"] == first[0]["why_code"]
    desk.service.submissions.cancel("job-2")
    assert [each["phase"] for each in listed()] == ["waiting", "cancelled", "waiting"]
    desk.now_s += 7
    assert listed()[0]["delay_s"] == first[0]["delay_s"] + 7
    desk.store.close()


def test_the_gpus_of_a_drained_node_are_neither_held_nor_free(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.service.driver.tick()
    total = desk.client.get("/v1/fleet").json()["data"]["gpus"]
    assert f"0 / {total} GPUs held {total} free" in words(desk.html())
    assert desk.client.post("/v1/nodes/local-0/drain", json={"reason": "fans"}).status_code == 200
    assert f"0 / {total} GPUs held 0 free" in words(desk.html())
    desk.store.close()
