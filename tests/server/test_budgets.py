"""Budgets of an organisation with real processes: a month ends where its clocks say so, and life goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.money.accounts import all_events
from brimful.fleet.events import BudgetsRenewed, BudgetWarned, LeaseEnding
from brimful.fleet.state import Node
from brimful.market.ledger import Ledger
from brimful.scheduler.ports import Observation
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.doctor import examine
from brimful.server.service.notify import Notifier, Outbound, new_rule
from brimful.server.service.service import Service
from tests.builders import USD, eventually
from tests.server.builders import an_access, bearer, wind_down
from tests.server.test_market import TRAIN

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp())


class Elsewhen(LocalEngine):
    """Real processes whose clock is ahead of this machine's."""

    ahead_s = 0.0

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        return [replace(each, skew_s=each.skew_s - self.ahead_s) for each in super().observe(leases)]


class Office:
    """A server with one GPU at a dollar a second, on whatever day the test says."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.store = folder, SqlStore(url)
        node = Node(
            site="here", node="n", gpu="slot", gpus=1, microusd_per_gpu_hour=3600 * USD, declared=True
        )
        self.engine = Elsewhen(folder / "leases", [node], site="here")
        clock = lambda: time.time() + self.engine.ahead_s  # noqa: E731
        self.service = Service(self.store, [self.engine], Rules(grace_s=20), clock=clock)
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(bearer(self.access))

    def it_is(self, at_s: float) -> None:
        self.engine.ahead_s = at_s - time.time()
        self.service.driver.tick()

    def budget(self, tenant: str, usd: int | None, **terms: object) -> tuple[int, dict[str, Any]]:
        body = {"microusd": None if usd is None else usd * USD, **terms}
        answer = self.http.post(f"/v1/budgets/{tenant}", json=body)
        return answer.status_code, answer.json()

    def phase(self, job: str) -> str:
        self.service.driver.tick()
        return self.service.reader.job(job).phase

    def of(self, name: str) -> dict[str, Any]:
        found = self.http.get("/v1/budgets").json()["data"]["budgets"]
        return next(each for each in found if each["tenant"] == name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'log.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    office = Office(tmp_path, url)
    yield office
    office.access.close()
    wind_down(office.service)
    office.store.close()


def test_a_monthly_budget_renews_at_midnight_although_the_clocks_went_forward(office: Office) -> None:
    end_s = berlin("2027-04-01T00:00")
    assert end_s == berlin("2027-03-01T00:00") + 31 * 86400 - 3600
    office.it_is(berlin("2027-03-20T12:00"))
    month = {"period": "monthly", "zone": "Europe/Berlin"}
    assert office.budget("acme", 6000, **month)[0] == 200
    assert office.budget("red", 3000, within="acme", **month)[0] == 200
    status, made = office.budget("red", 600, project="vision", **month)
    assert (status, made["data"]["budget"]["within"], made["data"]["left_microusd"]) == (
        200,
        "red",
        600 * USD,
    )
    assert made["data"]["budget"]["until_s"] == end_s

    office.it_is(end_s - 3000)
    body = {"command": [sys.executable, "-c", TRAIN], "folder": str(office.folder)}
    job = office.http.post("/v1/jobs", json={**body, "tenant": "red", "project": "vision"}).json()["data"][
        "job"
    ]
    eventually(lambda: office.phase(job) == "running")
    office.it_is(end_s - 1500)  # a dollar a second: it is used up
    eventually(lambda: office.phase(job) == "waiting")
    first = office.service.reader.job(job).leases[0]
    assert first.reason is not None
    assert first.reason.as_dict() == {"code": "scheduler.tenant_spent", "tenant": "red/vision"}
    why = office.http.get(f"/v1/jobs/{job}").json()["data"]["why_code"]
    assert (why["code"], why["tenant"], why["left"]) == ("scheduler.tenant_lacks.spent", "red/vision", 0)
    assert why["used"] >= why["allowed"] == 600 * USD
    spent = office.of("red/vision")["budget"]["used_microusd"]
    assert spent == 600 * USD  # what ran over it is the operator's
    assert office.of("acme")["budget"]["used_microusd"] == spent

    office.it_is(end_s - 60)
    assert office.phase(job) == "waiting"
    office.it_is(end_s)
    eventually(lambda: office.phase(job) == "running")
    office.it_is(end_s + 200)
    (office.folder / "go").touch()
    eventually(lambda: office.phase(job) == "finished")

    log = list(all_events(office.store))
    (renewed,) = [event for event in log if isinstance(event, BudgetsRenewed)]
    april = berlin("2027-05-01T00:00")
    assert (renewed.since_s, renewed.budgets) == (
        end_s,
        (("acme", april), ("red", april), ("red/vision", april)),
    )
    assert [
        each.reason.as_dict()["code"] for each in log if isinstance(each, LeaseEnding) and each.reason
    ] == ["scheduler.tenant_spent"]
    warned = [(event.budget, event.percent) for event in log if isinstance(event, BudgetWarned)]
    assert ("red/vision", 100) in warned
    assert not {name for name, _ in warned} - {"red/vision"}
    ledger = Ledger()
    for event in log:
        ledger.apply(event)
    assert sum(ledger.balances.values()) == 0
    assert ledger.balances == office.service.reader.ledger.balances
    terms = office.of("red/vision")["budget"]
    assert 0 < terms["used_microusd"] <= 600 * USD
    assert ledger.spent_by_tenant["red"] == spent + terms["used_microusd"]
    assert not [finding.broken for finding in examine(office.store, [office.engine]) if not finding.kept]


def test_children_never_have_more_than_their_parent(tmp_path: Path) -> None:
    office = Office(tmp_path, f"sqlite:///{tmp_path / 'log.db'}")
    assert office.budget("acme", 10, period="quarterly")[0] == 200
    assert office.budget("red", 6, within="acme", period="monthly")[0] == 200
    for tenant, usd, terms, code in (
        ("green", 5, {"within": "acme"}, "above_parent"),
        ("acme", 5, {}, "below_children"),
        ("acme", None, {}, "has_children"),
        ("red", 6, {"within": ""}, "budget_moves"),
        ("green", 1, {"within": "nobody"}, "not_found"),
        ("green", 1, {"project": "one"}, "not_found"),
        ("green", 1, {"period": "monthly", "zone": "Europe/Atlantis"}, "no_zone"),
        ("red", 7, {"project": "one"}, "above_parent"),
    ):
        status, said = office.budget(tenant, usd, **terms)
        assert (status >= 400, said["error"]["code"]) == (True, code), said
    assert office.budget("red", 6, project="one")[0] == 200
    assert office.budget("red", 8)[0] == 200  # its terms stay
    assert office.of("red")["budget"]["period"] == "monthly"
    assert [office.of(name)["left_microusd"] // USD for name in ("acme", "red", "red/one")] == [2, 2, 6]
    assert office.budget("red", None, project="one")[0] == 200
    assert office.of("red")["left_microusd"] == 8 * USD
    office.access.close()
    office.store.close()


def test_a_warning_is_told_to_those_who_hear_of_the_whole_team(office: Office) -> None:
    notes = Notifier(office.service.reader, NotifyStore(office.store), Outbound())
    for owner, tenant in (("", "red"), ("ann", "red"), ("", "green"), ("", "*")):
        target = f"https://hooks.example.org/{owner or 'team'}-{tenant}"
        notes.add(new_rule(owner=owner, tenant=tenant, target=target, kinds=["budget"], now_s=0))
    office.it_is(berlin("2027-10-20T12:00"))
    office.budget("red", 2, hard=False, period="monthly", zone="Europe/Berlin")
    body = {"command": [sys.executable, "-c", TRAIN], "folder": str(office.folder), "tenant": "red"}
    job = office.http.post("/v1/jobs", json=body).json()["data"]["job"]
    eventually(lambda: office.phase(job) == "running")
    time_s = berlin("2027-10-20T12:02")
    office.it_is(time_s)  # two minutes at a dollar a second
    assert office.phase(job) == "running"  # it only warns
    notes.look()
    rules = {each.rule: each.tenant for each in notes.store.rules()}
    due = notes.store.due(time_s + 60, limit=10, each=10)
    assert sorted(rules[note.rule] for note in due) == ["*", "red"]
    assert '"percent": 100' in due[0].body
    (office.folder / "go").touch()
    eventually(lambda: office.phase(job) == "finished")
    assert office.of("red")["budget"]["used_microusd"] > 2 * USD


def test_a_budget_tells_what_its_period_will_cost_and_when_it_is_used_up(office: Office) -> None:
    """A dollar a second since the month began: after ten minutes $400 of $1,000 are left for 400 seconds."""
    since_s, end_s = berlin("2027-03-01T00:00"), berlin("2027-04-01T00:00")
    office.it_is(since_s)
    assert office.budget("red", 1000, period="monthly", zone="Europe/Berlin")[0] == 200
    assert office.of("red")["budget"]["runs_out_s"] is None
    body = {"command": [sys.executable, "-c", TRAIN], "folder": str(office.folder), "tenant": "red"}
    job = office.http.post("/v1/jobs", json=body).json()["data"]["job"]
    eventually(lambda: office.phase(job) == "running")
    office.it_is(since_s + 600)

    found = office.of("red")["budget"]

    assert (found["since_s"], found["until_s"]) == (since_s, end_s)
    assert found["expected_microusd"] == pytest.approx((end_s - since_s) * USD, rel=0.1)
    assert found["runs_out_s"] == pytest.approx(since_s + 1000, abs=100)
