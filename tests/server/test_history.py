"""Jobs long over have left memory, and are answered for all the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.capabilities import SeenJob
from brimful.adapters.engines.worker import close_all
from brimful.adapters.observed import LOOK_S, Observer, WatchWorker
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import NotFound, Said, WorldFailed
from brimful.fleet.state import Node
from brimful.language import verbatim
from brimful.scheduler.ports import Observation
from brimful.scheduler.rules import Rules
from brimful.server.auth import Principal
from brimful.server.service import driver as driver_module
from brimful.server.service.service import Service
from brimful.server.views import events as events_module
from brimful.server.views.events import events_for
from brimful.server.views.fleet import sites_view
from brimful.server.views.jobs import job_view, jobs_page
from tests.builders import ScriptedEngine, a_job, a_node, eventually
from tests.server.builders import OPERATOR


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


def a_service(store: SqlStore, engine: ScriptedEngine) -> Service:
    leadership = Leadership(store)
    leadership.seek()
    return Service(store, [engine], Rules(), leadership=leadership, clock=lambda: 100)


def run_jobs(service: Service, engine: ScriptedEngine, count: int, *, tenant: str = "default") -> None:
    for _ in range(count):
        name = service.submissions.submit(a_job("", tenant=tenant)).job.job
        service.driver.tick()
        engine.sees[f"{name}.1"] = Observation(
            lease=f"{name}.1", state="ended", started_s=10, ended_s=46, exit_code=0
        )
        service.driver.tick()
        service.driver._fleet.leaving.clear()


def test_an_old_job_is_found_in_memory_and_then_in_the_table(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 2)
    monkeypatch.setattr(driver_module, "LEAVING", 1)
    engine = ScriptedEngine(a_node(gpus=1))
    service = a_service(store, engine)
    run_jobs(service, engine, 5)
    assert list(service.reader.fleet.jobs) == ["job-4", "job-5"]

    def all_is_there(service: Service) -> None:
        for number in range(1, 6):
            state = service.reader.job(f"job-{number}")
            assert (state.phase, state.leases[0].billed_s(0)) == ("finished", 36)
            assert service.reader.spent_microusd(f"job-{number}") == 20_000
        with pytest.raises(NotFound):
            service.reader.job("job-6")
        assert [past.state.serial for past in service.reader.past_jobs()] == [2, 1, 0]
        assert [past.state.serial for past in service.reader.past_jobs(before_serial=2, limit=1)] == [1]

    all_is_there(service)
    service.driver.advance(at_least=1)
    assert service.reader.fleet.leaving == {}, "the table has them now"
    all_is_there(service)
    again = a_service(store, engine)
    again.driver.load()
    assert again.reader.fleet.seq == store.end()
    all_is_there(again)


def test_a_tenants_page_of_old_events_asks_the_database_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 2)
    monkeypatch.setattr(driver_module, "LEAVING", 1)
    engine = ScriptedEngine(a_node(gpus=1))
    service = a_service(store, engine)
    for tenant in ("red", "blue", "red", "blue", "red"):
        run_jobs(service, engine, 1, tenant=tenant)
    service.driver.advance(at_least=1)
    asked: list[object] = []
    ask = store.past_tenants

    def counted(names: set[str]) -> dict[str, str]:
        asked.append(names)
        return ask(names)

    monkeypatch.setattr(store, "past_tenants", counted)
    monkeypatch.setattr(store, "past_job", None)
    red = Principal(token="1" * 16, name="ann", roles={"red": "viewer"})
    seen = events_for(service.reader, red, after=0, limit=1000)["events"]
    jobs = {str(event["body"].get("lease", "")).partition(".")[0] for event in seen} - {""}
    assert jobs == {"job-1", "job-3", "job-5"}
    assert "NodeJoined" in {event["kind"] for event in seen}
    assert len(asked) == 1


def test_the_last_events_are_the_last_ones_that_a_tenant_may_see(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "BLOCK", 4)
    service = a_service(store, engine := ScriptedEngine(a_node(gpus=1)))
    run_jobs(service, engine, 2, tenant="red")
    run_jobs(service, engine, 9, tenant="blue")
    red = Principal(token="1" * 16, name="ann", roles={"red": "viewer"})
    seqs = [each["seq"] for each in events_for(service.reader, red, after=0, limit=1000)["events"]]
    assert len(seqs) > 5
    last = events_for(service.reader, red, after=-5, limit=5)
    assert [each["seq"] for each in last["events"]] == seqs[-5:]
    assert last["next_after"] == seqs[-1]
    pages, place = [], 0
    while (page := events_for(service.reader, red, after=place, limit=2))["events"]:
        place = page["next_after"]
        pages += page["events"]
    assert [each["seq"] for each in pages] == seqs
    assert len(events_for(service.reader, red, after=-10_000, limit=1000)["events"]) == len(seqs)


def test_the_table_of_old_jobs_is_read_only_if_it_has_newer_ones_than_memory(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 2)
    engine = ScriptedEngine(a_node(gpus=3))
    service = a_service(store, engine)
    for _ in range(3):
        service.submissions.submit(a_job(""))
    service.driver.tick()
    for name in ("job-3", "job-1", "job-2"):  # the last one ends first, and leaves memory first
        lease = f"{name}.1"
        ended = Observation(lease=lease, state="ended", started_s=10, ended_s=46, exit_code=0)
        engine.sees[lease] = ended
        service.driver.tick()
    service.driver.advance(at_least=1)
    again = a_service(store, engine)
    again.driver.load()
    for reader in (service.reader, again.reader):
        assert list(reader.fleet.jobs) == ["job-1", "job-2"]
        assert [view["job"] for view in jobs_page(reader, job_view, limit=1).views] == ["job-3"]
    run_jobs(again, engine, 2)
    assert [view["job"] for view in jobs_page(again.reader, job_view, limit=5).views][1:4] == [
        "job-4",
        "job-3",
        "job-2",
    ]
    monkeypatch.setattr(store, "past_jobs", None)
    assert [view["job"] for view in jobs_page(again.reader, job_view, limit=1).views] == ["job-5"]


def test_numbers_go_on_where_they_were(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 2)
    engine = ScriptedEngine(a_node(gpus=1))
    service = a_service(store, engine)
    run_jobs(service, engine, 4)
    service.driver.advance(at_least=1)
    again = a_service(store, engine)
    again.driver.load()
    assert again.submissions.submit(a_job("")).job.job == "job-5"


def test_a_job_whose_site_is_silent_is_unknown_and_nothing_of_it_starts_elsewhere(store: SqlStore) -> None:
    engine = ScriptedEngine(a_node(gpus=1))
    service = a_service(store, engine)
    name = service.submissions.submit(a_job("")).job.job
    service.driver.tick()
    engine.sees[f"{name}.1"] = Observation(lease=f"{name}.1", state="running", started_s=10)
    service.driver.tick()
    engine.broken = WorldFailed(verbatim("no route to host"))
    service.driver.tick()
    shown = job_view(service.reader, service.reader.job(name))
    assert shown["phase"] == "unknown"
    assert (shown["why_code"] or {}).get("code") == "server.site_silent"
    assert len(shown["leases"]) == 1
    engine.broken = None
    service.driver.tick()
    assert job_view(service.reader, service.reader.job(name))["phase"] == "running"


def test_a_job_that_waits_and_the_fleet_say_which_site_is_silent_since_when_and_why(store: SqlStore) -> None:
    engine, there = ScriptedEngine(), ScriptedEngine()
    there.site = "there"
    now = [100]
    leadership = Leadership(store)
    leadership.seek()
    service = Service(store, [engine, there], Rules(), leadership=leadership, clock=lambda: now[0])
    name = service.submissions.submit(a_job("")).job.job
    elsewhere = service.submissions.submit(a_job("", sites=("there",))).job.job
    engine.broken = WorldFailed(verbatim("no answer yet"))
    service.driver.tick()
    now[0], engine.broken = 160, WorldFailed(verbatim("no route to host"))
    service.driver.tick()

    def why(job: str) -> dict[str, Any]:
        return job_view(service.reader, service.reader.job(job))["why_code"] or {}

    assert why(name)["code"] == "server.waits_and_silent"
    silent = service.reader.problems()["here"].as_dict()
    assert why(name)["silent"] == silent
    assert (silent["code"], silent["silent"]) == ("server.silent", 60)
    assert "no route to host" in str(silent["reason"])
    assert why(name)["reason"]["code"] == "scheduler.no_such_gpus"
    assert why(elsewhere)["code"] == "scheduler.no_such_gpus", "it may not run at the silent site"


def test_a_site_that_is_only_watched_and_does_not_answer_is_named_in_the_fleet(
    store: SqlStore, tmp_path: Path
) -> None:
    class Watched:
        site, broken = "hpc", True

        def nodes(self) -> list[Node]:
            if self.broken:
                raise WorldFailed(verbatim("no kubeconfig"))
            return []

        def seen_jobs(self) -> list[SeenJob]:
            return []

    leadership, watched = Leadership(store), Watched()
    leadership.seek()
    observer = Observer(watched, tmp_path, lambda: 100.0)
    service = Service(store, [], Rules(), leadership=leadership, observers=[observer], clock=lambda: 100)
    service.driver._watchers = [WatchWorker(observer, clock=itertools.count(step=LOOK_S).__next__)]
    service.driver._watchers[0].begin()

    def problems() -> Mapping[str, Said]:
        service.driver.tick()
        return service.reader.problems()

    eventually(lambda: "hpc" in problems())
    (site,) = sites_view(service.reader, OPERATOR)
    assert (site["site"], site["silent_s"]) == ("hpc", 0)
    assert "no kubeconfig" in site["problem"]
    watched.broken = False
    eventually(lambda: not problems())
    close_all(service.driver._watchers)
