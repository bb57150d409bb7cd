"""Pages of jobs go on into those that have left memory, without a hole or a double."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.sql import SqlStore
from brimful.scheduler.rules import Rules
from brimful.server.service.service import Service
from brimful.server.views.jobs import Wanted, jobs_page
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
            page = jobs_page(service.reader, before=before, limit=5, wanted=wanted)
            seen += [view["job"] for view in page.views]
            before = page.next_serial
            if before is None:
                break
        assert seen == [f"job-{i}" for i in expected]
    store.close()


def test_the_gpus_of_a_drained_node_are_neither_held_nor_free(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.service.driver.tick()
    total = desk.client.get("/v1/fleet").json()["data"]["gpus"]
    assert f"0 / {total} GPUs held {total} free" in words(desk.html())
    assert desk.client.post("/v1/nodes/local-0/drain", json={"reason": "fans"}).status_code == 200
    assert f"0 / {total} GPUs held 0 free" in words(desk.html())
    desk.store.close()
