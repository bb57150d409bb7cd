"""Machines through the API: what is for sale, what was bought, and what would be bought for a job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.ssh.engine import Reach, SshEngine
from brimful.adapters.providers.machines import MachinesProvider
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import NodeOrdered
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import read_policy
from brimful.server.app import make_app
from brimful.server.service.service import Service
from brimful.units import show_usd
from tests.builders import USD, ScriptedEngine, a_node
from tests.server.builders import an_access, bearer

LIST = """
[[machine]]
address = "nobody@127.0.0.1"
gpu = "t4"
gpus = 2
usd_per_hour = {usd}
tier = "{tier}"
"""
JOB: dict[str, Any] = {
    "command": ["true"],
    "folder": "/tmp",
    "gpus": 2,
    "steps": 3600,
    "predicted": {"t4": {"peak_bytes": 1 << 30, "step_s": 2.0}},
}


class Shop:
    def __init__(self, folder: Path, buying: Buying) -> None:
        self.now_s = 1_000_000
        self.path = folder / "machines.toml"
        self.sell(0.40, "on_demand")
        (folder / "taken").mkdir()
        # Port 1 of loopback: whoever asks is refused at once.
        reach = Reach(ssh=("-F", "none", "-p", "1"), python="python3")
        self.provider = MachinesProvider("depot", self.path, folder / "taken", reach)
        engine = SshEngine(folder / "leases", reach, site="depot", log_bytes=1 << 20)
        self.own = ScriptedEngine(a_node(gpus=1, gpu="h100"))
        self.store = SqlStore(f"sqlite:///{folder / 'log.db'}")
        self.service = Service(
            self.store,
            [self.own, engine],
            read_policy("brim").rules,
            providers=[self.provider],
            buying=buying,
            clock=lambda: self.now_s,
        )
        access = an_access(self.store)
        self.http = TestClient(make_app(self.service, access), base_url="http://127.0.0.1")
        self.operator, self.user = bearer(access), bearer(access, "submitter", "a")

    def sell(self, usd: float, tier: str) -> None:
        self.path.write_text(LIST.format(usd=usd, tier=tier))

    def get(self, path: str, who: dict[str, str]) -> Any:
        return self.http.get(path, headers=who).json()

    def plan(self, **more: object) -> Any:
        return self.http.post("/v1/cloud/plan", headers=self.user, json={**JOB, **more}).json()["data"]


BUYS = Buying(hourly_microusd=5 * USD, monthly_microusd=100 * USD)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, BUYS)
    made.service.driver.tick()
    yield made
    made.store.close()


def test_offers_are_for_all_and_what_was_spent_is_the_operators(shop: Shop) -> None:
    (offer,) = shop.get("/v1/cloud/offers", shop.user)["data"]["offers"]
    assert (offer["site"], offer["gpus"], offer["microusd_per_hour"]) == ("depot", 2, 400_000)
    assert offer["is_there"]
    assert not shop.get("/v1/cloud", shop.user)["ok"]
    assert not shop.get("/v1/cloud/check", shop.user)["ok"]
    found = shop.get("/v1/cloud", shop.operator)["data"]
    page = shop.http.get("/operate", headers={**shop.operator, "accept-language": "en"}).text
    for kind, cap in (("hourly", "hourly_cap"), ("month", "monthly_cap")):
        spent, most = (show_usd(found[f"{name}_microusd"]) for name in (kind, cap))
        assert f": {spent} of at most {most}</p>" in page
    assert (found["hourly_cap_microusd"], found["hourly_microusd"], found["machines"]) == (5 * USD, 0, [])


def test_what_was_bought_is_shown_with_whom_it_is_for_and_what_it_costs(shop: Shop) -> None:
    body = {**JOB, "limit_microusd_per_gpu_hour": USD}
    name = shop.http.post("/v1/jobs", headers=shop.user, json=body).json()["data"]["job"]
    shop.service.driver.tick()
    shop.service.driver.tick()
    (machine,) = shop.get("/v1/cloud", shop.operator)["data"]["machines"]
    assert (machine["node"], machine["state"], machine["jobs"]) == ("depot-1", "ready", [name])
    assert machine["microusd_per_hour"] == 400_000
    shop.now_s += 1800
    found = shop.get("/v1/cloud", shop.operator)["data"]
    page = shop.http.get("/operate", headers={**shop.operator, "accept-language": "en"}).text
    assert "<bdi>depot-1</bdi>" in page
    assert "This month (UTC): $0.20 of at most $100.00" in page
    assert (found["machines"][0]["cost_microusd"], found["month_microusd"]) == (200_000, 200_000)
    (offer,) = shop.get("/v1/cloud/offers", shop.user)["data"]["offers"]
    assert not offer["is_there"], "the only machine is taken"


def test_a_plan_says_what_would_be_bought_and_the_chance_to_be_in_time(shop: Shop) -> None:
    soon, late = shop.now_s + 3600, shop.now_s + 4 * 3600
    assert shop.plan()["said_code"] == "server.plan_pays_nothing"
    assert shop.plan(limit_microusd_per_gpu_hour=1)["said_code"] == "server.plan_no_offer"
    ordered = shop.plan(deadline_s=late)
    assert ordered["verdict"] == "order"
    (place,) = ordered["places"]
    assert (place["nodes"], place["hours"], place["total_microusd"]) == (1, 2.0, 800_000)
    assert (place["chance"], place["done_s"]) == (1.0, shop.now_s + 7200)
    assert shop.plan(deadline_s=soon)["places"][0]["chance"] == 0.0
    shop.sell(0.10, "spot")
    shop.service.driver.tick()
    kept = {"checkpoint_interval_s": 600, "checkpoint_cost_s": 60}
    chances = [
        next(
            each["chance"] for each in shop.plan(deadline_s=due_s, **kept)["places"] if each["tier"] == "spot"
        )
        for due_s in (shop.now_s + 7500, late)
    ]
    assert 0 < chances[0] < chances[1] <= 1
    assert not any(isinstance(event, NodeOrdered) for event in shop.store.since(0)), "asking buys nothing"


def test_a_plan_names_the_cap_that_forbids_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Buying(hourly_microusd=0, monthly_microusd=0))
    shop.service.driver.tick()
    found = shop.plan(limit_microusd_per_gpu_hour=USD)
    assert (found["verdict"], found["places"][0]["refused_code"]) == ("capped", "scheduler.over_hourly_cap")
    shop.store.close()


def test_a_check_names_the_machine_that_cannot_be_reached(shop: Shop) -> None:
    (found,) = shop.get("/v1/cloud/check", shop.operator)["data"]["providers"]
    assert (found["provider"], found["offers"], found["there"]) == ("depot", 1, 1)
    assert list(found["problems"]) == ["nobody@127.0.0.1"]
    shop.path.write_text("[[machine]]\naddress = 3\n")
    (found,) = shop.get("/v1/cloud/check", shop.operator)["data"]["providers"]
    assert "address" in found["problems"]["depot"]


def test_a_provider_that_hangs_costs_the_loop_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, decided = threading.Event(), list[int]()
    monkeypatch.setattr(shop.provider, "offers", hangs.wait)

    def counted(*given: Any, **more: Any) -> Plan:
        decided.append(1)
        return decide(*given, **more)

    monkeypatch.setattr("brimful.scheduler.loop.decide", counted)
    driver = shop.service.driver
    monkeypatch.setattr("brimful.adapters.engines.worker.FIRST_LOOK_S", 0.1)
    driver._employ()
    try:
        for _ in range(5):
            assert "provider depot" in driver.tick().problems
        assert len(decided) <= 1, "the same trouble is no reason to think again"
    finally:
        hangs.set()
        monkeypatch.setattr("brimful.adapters.engines.worker.CLOSE_S", 5)
        driver.stop()
