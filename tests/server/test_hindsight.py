"""The audit of a server's own log: by its API, and once a month by message."""

from __future__ import annotations

import csv
import io
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.stores.notices import NotifyRule, NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import WorldFailed
from brimful.fleet.job import Job
from brimful.language import words
from brimful.scheduler.policies import read_policy
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service import hindsight, log_reader
from brimful.server.service.hindsight import last_month, month_said
from brimful.server.service.notify import Outbound
from brimful.server.service.service import Service
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse
from tests.patience import PATIENCE_S
from tests.server.builders import an_access, bearer
from tests.server.live import wait_for

HOUR = 3600
MAY, JUNE, JULY = (int(datetime(2026, month, 1, tzinfo=UTC).timestamp()) for month in (5, 6, 7))


class Server:
    """A node of 8 GPUs that two teams used for some hours of May."""

    def __init__(self, folder: Path) -> None:
        self.now_s = JUNE - 1
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        jobs = [("vision", "ann", 3 * HOUR), ("speech", "bob", HOUR)]
        arrivals = [
            Arrival(at_s=MAY, job=Job(job=f"of-{user}", gpus=4, tenant=tenant, user=user), work_s=work_s)
            for tenant, user, work_s in jobs
        ]
        log = rehearse(arrivals, parse_fleet("1x8:a100-sxm-80gb@2"), read_policy("fifo").rules).log
        assert self.store.append(log, after=0)
        self.notices = NotifyStore(self.store)
        self.service = Service(
            self.store, [], Rules(), notify=(self.notices, Outbound()), clock=lambda: float(self.now_s)
        )
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")

    def get(self, path: str, *, tenant: str = "*") -> str:
        role = "operator" if tenant == "*" else "viewer"
        answer = self.http.get(path, headers=bearer(self.access, role, tenant))
        assert answer.status_code == 200, answer.text
        return answer.text

    def asks(self, rule: str, *, tenant: str = "*", owner: str = "", created_s: int = MAY) -> None:
        self.notices.add(
            NotifyRule(
                rule=rule, owner=owner, tenant=tenant, target="mailto:a@example.org", kinds="failed,audit",
                secret="", created_s=created_s,
            )
        )  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.access.close()
    server.store.close()


WINDOW = f"from_s={MAY}&to_s={MAY + 4 * HOUR}"


def test_the_api_tells_where_paid_gpu_time_went(server: Server) -> None:
    data = json.loads(server.get(f"/v1/audit/usage?{WINDOW}"))["data"]

    assert (data["paid_gpu_h"], data["paid_usd"]) == (32, 64)
    shares = {leaf["path"]: leaf["gpu_h"] for leaf in data["leaves"]}
    assert (shares["allocated"], shares["allocated.kept"]) == (16, 16)
    assert {team["team"] for team in data["teams"]} == {"vision", "speech"}
    rows = list(csv.DictReader(io.StringIO(server.get(f"/v1/audit/usage.csv?{WINDOW}"))))
    assert sum(int(row["gpu_seconds"]) for row in rows) == 32 * HOUR
    assert sum(int(row["microusd"]) for row in rows) == 64_000_000


def test_a_team_sees_what_it_held_and_nothing_of_others(server: Server) -> None:
    text = server.get(f"/v1/audit/usage?{WINDOW}", tenant="speech")
    data = json.loads(text)["data"]

    assert (data["paid_gpu_h"], data["paid_usd"]) == (4, 8)
    assert "vision" not in text
    assert "ann" not in text
    assert "vision" not in server.get(f"/v1/audit/usage.csv?{WINDOW}", tenant="speech")


@pytest.mark.parametrize("query", ["from_s=10&to_s=10", "from_s=20&to_s=10", f"from_s=0&to_s={JUNE}"])
def test_a_window_that_is_empty_or_longer_than_a_year_is_refused(server: Server, query: str) -> None:
    answer = server.http.get(f"/v1/audit/usage?{query}", headers=bearer(server.access))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_input"


def test_a_window_in_no_calendar_is_refused(server: Server) -> None:
    query = f"from_s={2**40 - 10}&to_s={2**40}"

    assert server.http.get(f"/v1/audit/usage?{query}", headers=bearer(server.access)).status_code == 422


def test_once_a_month_whoever_asked_is_told_and_nobody_twice(server: Server) -> None:
    assert server.service.notifier is not None
    server.asks("all")
    server.asks("team", tenant="vision")
    server.asks("own", tenant="speech", owner="bob")
    server.asks("late", created_s=JUNE + 5)
    server.service.monthly.round()  # a server that never told anybody begins with the month under way
    assert server.notices.due(JULY, limit=10) == []
    server.now_s = JUNE + 10
    server.service.monthly.round()
    server.service.monthly.round()
    told = {note.rule: json.loads(note.body) for note in server.notices.due(JUNE + 10, limit=10)}

    assert {rule: facts["gpu_h"] for rule, facts in told.items()} == {
        "all": 31 * 24 * 8,
        "team": 12,
        "own": 4,
    }
    subject, text = month_said(told["own"])
    assert subject == "brimful: GPU time of bob in 2026-05"
    assert "4.0 GPU-hours in 2026-05: 100.0 % kept" in text
    again = Service(server.store, [], Rules(), notify=(server.notices, Outbound()), clock=lambda: JUNE + 20.0)
    again.monthly.round()  # after a restart neither
    assert len(server.notices.due(JULY, limit=10)) == 3


def test_a_month_is_a_calendar_month() -> None:
    assert last_month(JUNE) == (MAY, JUNE)
    assert last_month(JULY - 1) == (MAY, JUNE)
    assert last_month(int(datetime(2026, 1, 15, tzinfo=UTC).timestamp()))[0] == int(
        datetime(2025, 12, 1, tzinfo=UTC).timestamp()
    )


def test_a_long_log_is_read_in_another_process_and_pages_do_not_wait_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    window: Any = {"start_s": MAY, "end_s": MAY + 4 * HOUR}
    here = server.service.hindsight.report(**window, tenants=None)
    monkeypatch.setattr(hindsight, "SMALL", -1)
    first = server.service.hindsight.so_far(**window, tenants=None)
    apart = wait_for(lambda: server.service.hindsight.so_far(**window, tenants=None)[0])

    assert first == (None, True)
    assert apart == here
    assert server.service.hindsight.so_far(**window, tenants=None)[1] is False
    assert server.service.hindsight.report(**window, tenants={"speech"})["paid_gpu_h"] == 4
    process = server.service.hindsight.log_reader.process
    assert process is not None
    process.kill()
    process.wait()
    assert server.service.hindsight.report(**window, tenants=None) == here, "a process that ended is replaced"
    server.service.hindsight.close()


def test_the_page_says_how_far_the_log_is_read_while_it_is_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindsight, "SMALL", -1)
    ready = threading.Event()
    asked = server.service.hindsight._ask

    def later(*which: Any, **how: Any) -> Any:
        assert ready.wait(PATIENCE_S)
        return asked(*which, **how)

    monkeypatch.setattr(server.service.hindsight, "_ask", later)
    first = server.get("/audit?live=1")
    ready.set()

    assert 'data-every="2"' in first
    assert words("console.audit_counting") in first
    wait_for(lambda: 'data-every="3600"' in server.get("/audit"))
    server.service.hindsight.close()


def test_audits_that_wait_keep_no_thread_from_those_who_work(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a long log takes seconds, one after the other, and a team has as many tokens as it likes."""
    ready, asked = threading.Event(), threading.Semaphore(0)

    def later(*_which: Any, as_csv: bool = False, **_how: Any) -> Any:
        asked.release()
        assert ready.wait(PATIENCE_S)
        return "" if as_csv else {}

    monkeypatch.setattr(server.service.hindsight, "_ask", later)
    kinds = ("usage", "usage.csv")
    with server.http as http, ThreadPoolExecutor(81) as people:
        tokens = [bearer(server.access, "viewer", "vision") for _ in range(4)]
        crowd = [
            people.submit(http.get, f"/v1/audit/{kind}?{WINDOW}", headers=token)
            for token in tokens
            for kind in kinds
            for _ in range(10)
        ]
        assert asked.acquire(timeout=PATIENCE_S)
        try:
            works = people.submit(http.get, "/v1/jobs", headers=bearer(server.access, "viewer", "speech"))
            assert works.result(PATIENCE_S).status_code == 200
        finally:
            ready.set()
        assert len([each.result(PATIENCE_S) for each in crowd]) == 80


def test_a_process_that_says_nothing_is_ended_and_the_next_question_asks_another(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    window: Any = {"start_s": MAY, "end_s": MAY + 4 * HOUR, "tenants": None}
    monkeypatch.setattr(hindsight, "SMALL", -1)
    here = server.service.hindsight.report(**window)
    process = server.service.hindsight.log_reader.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(log_reader, "SILENT_S", 0.2)
    with pytest.raises(WorldFailed):
        server.service.hindsight.report(**window)
    monkeypatch.undo()
    monkeypatch.setattr(hindsight, "SMALL", -1)
    assert server.service.hindsight.report(**window) == here
    server.service.hindsight.close()
