"""Prices, bids, budgets and invoices through the public API: who may, what is refused, and what adds up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.stores.sql import SqlStore
from brimful.cli.money.forecast import _spot_text
from brimful.fleet.events import BudgetSet, Event, JobSubmitted, LeaseEnded, LeaseStarted, PoolPriced
from brimful.language import Usd, say, words
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.ports import Observation
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.console.market_charts import market_cards
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from brimful.server.views.money import thinned
from brimful.units import show_usd
from tests.builders import USD, ScriptedEngine, a_job, a_node, granted, joined
from tests.server.builders import an_access, bearer


class Shop:
    """Four GPUs at two dollars, an engine whose world the test writes, and a clock it moves."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_000_000
        self.store = SqlStore(f"sqlite:///{folder / 'log.db'}")
        self.engine = ScriptedEngine(a_node(gpus=4))
        self.service = Service(
            self.store,
            [self.engine],
            Rules(),
            market=Market(terms=Terms(notice_s=60, period_s=10, max_wait_s=3600)),
            clock=lambda: self.now_s,
        )
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.operator = bearer(self.access)
        self.a = bearer(self.access, "submitter", "a")
        self.b = bearer(self.access, "submitter", "b")

    def ask(self, method: str, path: str, who: dict[str, str], **body: object) -> tuple[int, Any]:
        answer = self.http.request(method, path, headers=who, json=body or None)
        return answer.status_code, answer.json().get("data") or answer.json().get("error")

    def submit(self, who: dict[str, str], **more: object) -> str:
        status, job = self.ask("POST", "/v1/jobs", who, command=["true"], folder="/tmp", **more)
        assert status == 201, job
        name: str = job["job"]
        return name

    def tick(self, seconds: int = 0) -> None:
        self.now_s += seconds
        self.service.driver.tick()
        for lease in self.service.reader.fleet.open_leases.values():
            if lease.phase == "granted":
                seen = Observation(lease=lease.lease, state="running", started_s=self.now_s)
                self.engine.sees[lease.lease] = seen
        self.service.driver.tick()

    def end(self, lease: str, *, exit_code: int = 0) -> None:
        started = self.service.reader.fleet.open_leases[lease].started_s
        self.engine.sees[lease] = Observation(
            lease=lease, state="ended", started_s=started, ended_s=self.now_s, exit_code=exit_code
        )
        self.service.driver.tick()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shop.tick()
    yield shop
    shop.access.close()
    shop.store.close()


def test_prices_are_told_to_all_with_depth_but_without_names(shop: Shop) -> None:
    shop.submit(shop.a, gpus=4)
    shop.tick()
    shop.submit(shop.b, gpus=4, limit_microusd_per_gpu_hour=3 * USD)
    shop.tick(5)
    shop.tick(300)
    status, told = shop.ask("GET", "/v1/prices?since_s=0", shop.b)
    assert status == 200
    (pool,) = told["pools"]
    assert (pool["market"], pool["floor_microusd_per_gpu_hour"], pool["gpus"]) == (True, 2 * USD, 4)
    assert pool["cleared_microusd_per_gpu_hour"] == 3 * USD
    assert 2 * USD < pool["microusd_per_gpu_hour"] < 3 * USD
    assert pool["depth"] == [
        {"limit_microusd_per_gpu_hour": 4 * USD, "held": 4, "wanted": 0},
        {"limit_microusd_per_gpu_hour": 3 * USD, "held": 0, "wanted": 4},
    ]
    billed = [point["microusd_per_gpu_hour"] for point in pool["history"]]
    assert billed == sorted(billed)
    assert billed[-1] == pool["microusd_per_gpu_hour"]
    assert shop.ask("GET", "/v1/prices", shop.a)[1]["pools"][0]["history"] == []


def test_the_chance_of_each_bid_is_told_to_its_team_and_of_each_limit_to_all(shop: Shop) -> None:
    pool = shop.ask("GET", "/v1/prices", shop.a)[1]["pools"][0]
    where: dict[str, Any] = {name: pool[name] for name in ("site", "gpu", "tier")}
    status, told = shop.ask("GET", "/v1/forecast?limit_microusd=2500000", shop.a)
    assert status == 200
    assert told["chances"][0]["known_hours"] < 24
    assert set(told["chances"][0]["limits"][0]["stays"].values()) == {None}  # nothing is made up
    began_s = shop.now_s
    events = [
        PoolPriced(
            at_s=began_s + hour * 3600,
            **where,
            microusd_per_gpu_hour=(price := (3 if 9 <= hour % 24 < 19 else 2) * USD),
            cleared_microusd_per_gpu_hour=price,
            held=0,
            wanted=0,
            gpus=4,
        )
        for hour in range(24 * 20)
    ]
    assert shop.store.append(events, after=shop.service.reader.fleet.seq)
    shop.service.reader.refresh()
    shop.now_s = events[-1].at_s
    mine = shop.submit(shop.a, gpus=4, limit_microusd_per_gpu_hour=4 * USD)
    shop.tick(30)
    theirs = shop.submit(shop.b, gpus=4, limit_microusd_per_gpu_hour=1 * USD)
    shop.tick(30)
    told = shop.ask("GET", "/v1/forecast?limit_microusd=2500000", shop.a)[1]
    (chances,) = told["chances"]
    assert chances["needs_hours"] == {"1": 168, "8": 168, "24": 168, "72": 360}
    assert chances["known_hours"] == 24 * 20 - 1
    limits = {each["limit_microusd_per_gpu_hour"]: each["stays"] for each in chances["limits"]}
    assert list(limits) == [4 * USD, 2_500_000, 1 * USD]
    assert limits[4 * USD]["24"] == 1.0
    assert limits[1 * USD] == {"1": 0.0, "8": 0.0, "24": 0.0, "72": 0.0}  # below the price of now
    assert limits[2_500_000]["1"] > 0.8 > 0.2 > limits[2_500_000]["24"]
    score = chances["score"]["8"]
    assert score["cases"] > 100
    assert score["brier"] < score["brier_climatology"]

    def bids(who: dict[str, str]) -> list[tuple[str, bool, Any]]:
        found = shop.ask("GET", "/v1/forecast", who)[1]["bids"]
        return [(each["job"], each["held"], each["stays"]["24"]) for each in found]

    assert bids(shop.a) == [(mine, True, 1.0)]
    assert bids(shop.b) == [(theirs, False, 0.0)]
    assert bids(shop.operator) == [(theirs, False, 0.0), (mine, True, 1.0)]
    page = shop.http.get("/market", headers={**shop.b, "accept-language": "en"}).text
    assert theirs in page
    assert f"/jobs/{mine}" not in page
    assert "Error of earlier chances" in page
    for code, said in (("de", "Gebote deiner Gruppen"), ("fr", "Enchères de vos équipes")):
        assert said in shop.http.get("/market", headers={**shop.a, "accept-language": code}).text
    assert shop.http.get("/v1/forecast?limit_microusd=0", headers=shop.a).status_code in (400, 422)


def test_depth_counts_a_lease_in_its_own_pool_alone(shop: Shop) -> None:
    shop.engine.has = [*shop.engine.has, replace(a_node("node-1", gpus=4), tier="spot")]
    shop.tick()
    shop.submit(shop.a, gpus=4)
    shop.tick()
    pools = shop.ask("GET", "/v1/prices", shop.a)[1]["pools"]
    assert [(pool["tier"], sum(step["held"] for step in pool["depth"])) for pool in pools] == [
        (pool["tier"], pool["gpus"] - pool["free"]) for pool in pools
    ]
    assert sorted(pool["free"] for pool in pools) == [0, 4]


def test_a_raised_bid_wins_and_a_lowered_one_cannot_go_below_what_it_pays(shop: Shop) -> None:
    first = shop.submit(shop.a, gpus=4)
    shop.tick()
    second = shop.submit(shop.b, gpus=4, limit_microusd_per_gpu_hour=3 * USD)
    shop.tick(5)
    status, job = shop.ask("POST", f"/v1/jobs/{second}/bid", shop.b, limit_microusd_per_gpu_hour=6 * USD)
    assert (status, job["limit_microusd_per_gpu_hour"]) == (200, 6 * USD)
    shop.tick(5)
    assert shop.service.reader.job(first).leases[0].notice_s == shop.now_s + 60
    why = shop.ask("GET", f"/v1/jobs/{first}", shop.a)[1]["why_code"]
    assert (why["code"], why["left"]) == ("server.notice", 60)
    status, error = shop.ask("POST", f"/v1/jobs/{first}/bid", shop.a, limit_microusd_per_gpu_hour=1)
    assert (status, error["code"]) == (409, "below_price")
    assert shop.ask("POST", f"/v1/jobs/{second}/bid", shop.a, limit_microusd_per_gpu_hour=USD)[0] == 404
    status, _ = shop.ask("POST", f"/v1/jobs/{first}/bid", shop.operator, limit_microusd_per_gpu_hour=9 * USD)
    assert status == 200
    shop.tick(5)
    assert shop.service.reader.job(first).leases[0].notice_s is None  # it may stay after all


def test_depth_counts_a_lease_in_its_own_pool_only(shop: Shop) -> None:
    shop.engine.has = [a_node(gpus=4), replace(a_node(gpus=4), node="cloud", tier="spot")]
    shop.tick()
    shop.submit(shop.a, gpus=4)
    shop.tick(5)
    pools = shop.ask("GET", "/v1/prices", shop.a)[1]["pools"]
    held = {
        pool["tier"]: (pool["gpus"] - pool["free"], sum(x["held"] for x in pool["depth"])) for pool in pools
    }
    assert sorted(held.values()) == [(0, 0), (4, 4)]


def test_the_chance_that_spot_stays_is_scored_beside_the_next_one(shop: Shop) -> None:
    firm, spot = a_node(gpus=4), replace(a_node("cloud", gpus=1), tier="spot")

    def told() -> dict[str, Any]:
        (found,) = shop.ask("GET", "/v1/forecast", shop.a)[1]["spot"]
        return dict(found)

    shop.engine.has = [firm, spot]
    shop.tick(1800)
    assert told()["score"] == {"1": None, "6": None, "24": None}
    assert "Error of earlier chances" not in shop.http.get("/market", headers=shop.a).text
    for hours in (3, 5, 2, 4):
        shop.tick(hours * 3600)
        shop.engine.has = [firm]
        shop.tick(60)
        told()
        shop.engine.has = [firm, spot]
        shop.tick(60)

    found = told()
    assert found["spells"] == 5
    # Stated at every full hour of spells of 3, 5, 2 and 4 hours. All but the last of each stayed an hour.
    assert {hours: score["cases"] for hours, score in found["score"].items()} == {"1": 14, "6": 14, "24": 14}
    for ahead, score in found["score"].items():
        assert f"{ahead} h: error {score['brier']:.3f} (Brier score)" in _spot_text([found])
    page = shop.http.get("/market", headers={**shop.a, "accept-language": "en"}).text
    assert f"24&nbsp;h&nbsp;{found['score']['24']['brier']:.2f}&nbsp;/&nbsp;" in page


def test_a_job_whose_node_has_left_can_still_be_bid_for(shop: Shop) -> None:
    first = shop.submit(shop.a, gpus=2)
    shop.tick()
    shop.engine.has = []
    shop.tick(5)
    assert shop.service.reader.job(first).open_lease is not None
    assert not shop.service.reader.fleet.nodes
    status, job = shop.ask("POST", f"/v1/jobs/{first}/bid", shop.a, limit_microusd_per_gpu_hour=9 * USD)
    assert (status, job["limit_microusd_per_gpu_hour"]) == (200, 9 * USD)
    status, error = shop.ask("POST", f"/v1/jobs/{first}/bid", shop.a, limit_microusd_per_gpu_hour=1)
    assert (status, error["code"]) == (409, "below_price")


def test_the_price_told_of_a_lease_is_the_one_it_pays_and_then_what_it_paid(shop: Shop) -> None:
    job = shop.submit(shop.a, gpus=4)
    shop.tick()
    shop.submit(shop.b, gpus=4, limit_microusd_per_gpu_hour=3 * USD)
    for _ in range(4):
        shop.tick(300)
    now = shop.ask("GET", "/v1/prices", shop.a)[1]["pools"][0]["microusd_per_gpu_hour"]
    assert now > 2 * USD
    why = shop.ask("GET", f"/v1/jobs/{job}/why", shop.a)[1]
    assert why["price"].startswith(show_usd(now))
    assert words("server.price_was", price=Usd(2 * USD)) in why["price"]
    assert [pool["verdict"] for pool in why["pools"]] == [words("server.pool_here")]
    shop.end(f"{job}.1")
    (lease,) = shop.ask("GET", f"/v1/jobs/{job}", shop.a)[1]["leases"]
    priced = lease["microusd_per_gpu_hour"] * 4 * lease["billed_s"] / 3600
    assert abs(priced - lease["cost_microusd"]) <= lease["billed_s"]  # to the micro-dollar per GPU-hour
    assert 2 * USD < lease["microusd_per_gpu_hour"] < now


@pytest.mark.parametrize("bad", ["NaN", "-1", "0", "1e30", "1.5", '"7"', "true", "[]", "1e400", "Infinity"])
def test_what_is_no_money_changes_nothing(shop: Shop, bad: str) -> None:
    job = shop.submit(shop.a)
    before = shop.service.reader.fleet.seq
    headers = {**shop.operator, "content-type": "application/json"}
    routes = {
        f"/v1/jobs/{job}/bid": "limit_microusd_per_gpu_hour",
        "/v1/budgets/a": "microusd",
        "/v1/budgets/a/credit": "microusd",
        "/v1/jobs": "limit_microusd_per_gpu_hour",
    }
    for path, field in routes.items():
        if bad == "0" and path == "/v1/budgets/a":
            continue  # may spend nothing more: a budget like any other
        more = ', "command": ["true"], "folder": "/tmp"' if path == "/v1/jobs" else ""
        answer = shop.http.post(path, headers=headers, content=f'{{"{field}": {bad}{more}}}')
        assert answer.status_code == 422, (path, answer.text)
        assert answer.json()["error"]["problem"]
    assert shop.service.reader.fleet.seq == before


def test_a_budget_is_the_operators_to_set_and_binds(shop: Shop) -> None:
    assert shop.ask("POST", "/v1/budgets/a", shop.a, microusd=USD)[0] == 403
    assert shop.ask("POST", "/v1/budgets/no%20name", shop.operator, microusd=USD)[0] == 422
    status, budget = shop.ask("POST", "/v1/budgets/a", shop.operator, microusd=10 * USD)
    assert (status, budget["left_microusd"]) == (200, 10 * USD)
    status, error = shop.ask(
        "POST", "/v1/jobs", shop.a, command=["true"], folder="/tmp", budget_microusd=11 * USD
    )
    assert (status, error["code"]) == (409, "no_money")
    running = shop.submit(shop.a, gpus=2)
    shop.tick()
    shop.now_s += 3600
    (seen,) = shop.ask("GET", "/v1/budgets", shop.a)[1]["budgets"]
    assert (seen["left_microusd"], seen["accruing_microusd"]) == (6 * USD, 4 * USD)
    status, error = shop.ask("POST", "/v1/budgets/a", shop.operator, microusd=USD)
    assert (status, error["code"]) == (409, "below_accrued")
    status, budget = shop.ask("POST", "/v1/budgets/a/credit", shop.operator, microusd=2 * USD)
    assert budget["left_microusd"] == 8 * USD
    shop.tick(2 * 3600)
    assert shop.service.reader.job(running).phase == "stopping"
    shop.end(f"{running}.1", exit_code=143)
    balances = shop.service.reader.ledger.balances
    assert (balances["budget:a"], balances["operator:credits"]) == (0, -2 * USD)
    assert balances["site:here"] == 12 * USD
    assert sum(balances.values()) == 0
    why = shop.ask("GET", f"/v1/jobs/{running}", shop.a)[1]["why_code"]
    assert (why["code"], why["tenant"]) == ("scheduler.tenant_lacks.spent", "a")
    assert shop.ask("GET", "/v1/budgets", shop.b)[1]["budgets"] == []
    shown = shop.http.get("/v1/events", headers=shop.b).json()["data"]["events"]
    assert not [event for event in shown if event["kind"] in ("BudgetSet", "CreditGranted")]


def test_an_invoice_from_the_server_adds_up_and_shows_one_only_what_is_ones_own(shop: Shop) -> None:
    one, two = shop.submit(shop.a, gpus=2), shop.submit(shop.b, gpus=2, name="ours")
    shop.tick()
    shop.tick(3600)
    shop.end(f"{one}.1")
    shop.end(f"{two}.1", exit_code=1)
    all_of_it = shop.ask("GET", "/v1/invoice", shop.operator)[1]
    assert {bill["of"]: bill["microusd"] for bill in all_of_it["bills"]} == {"a": 4 * USD, "b": 4 * USD}
    assert all_of_it["total_microusd"] == 8 * USD
    for who, jobs in ((shop.operator, [one]), (shop.a, [one]), (shop.b, [])):
        of_a = shop.ask("GET", "/v1/invoice?by=job&tenant=a", who)[1]
        assert [bill["of"] for bill in of_a["bills"]] == jobs
        assert of_a["total_microusd"] == 4 * USD * len(jobs)
    (mine,) = shop.ask("GET", "/v1/invoice?by=job", shop.b)[1]["bills"]
    assert mine["name"] == shop.service.reader.job(two).job.name == "ours"
    assert (mine["of"], mine["failed_microusd"], mine["idle_microusd"]) == (two, 4 * USD, None)
    (month,) = all_of_it["months"]
    assert month == "1970-01"
    assert shop.ask("GET", f"/v1/invoice?month={month}", shop.a)[1]["total_microusd"] == 4 * USD
    assert shop.ask("GET", "/v1/invoice?by=job&month=1970-02", shop.a)[1]["bills"] == []
    assert shop.ask("GET", "/v1/invoice?month=1970-13", shop.a)[0] == 422
    assert (
        "brimful-team-1970-01.csv"
        in shop.http.get(f"/v1/invoice.csv?month={month}", headers=shop.a).headers["content-disposition"]
    )
    shop.submit(shop.a)
    shop.tick()
    assert shop.ask("GET", "/v1/invoice", shop.operator)[1]["total_microusd"] == 8 * USD
    assert any(isinstance(event, PoolPriced) for event in shop.store.since(0))


def test_the_console_draws_price_and_depth_of_market_pools(shop: Shop) -> None:
    shop.submit(shop.a, gpus=4)
    shop.tick()
    shop.submit(shop.b, gpus=4, limit_microusd_per_gpu_hour=3 * USD)
    for _ in range(30):
        shop.tick(10)
    page = shop.http.get("/market", headers=shop.b).text
    (card,) = market_cards(shop.service.reader)
    assert f'points="{card["billed_line"]}"' in page
    assert f'points="{card["cleared_line"]}"' in page
    ys = [float(corner.partition(",")[2]) for corner in card["billed_line"].split()]
    assert ys == sorted(ys, reverse=True)  # the price only rose, and up is less
    assert 0 <= ys[-1] < ys[0] <= 100
    assert [(step["held"], step["wanted"]) for step in card["steps"]] == [(4, 0), (0, 4)]
    assert "job-1" not in str(card)  # depth has no names


def test_a_long_history_is_thinned_and_keeps_its_ends() -> None:
    first = PoolPriced(
        at_s=0,
        site="here",
        gpu="h100",
        tier="owned",
        microusd_per_gpu_hour=1,
        cleared_microusd_per_gpu_hour=1,
        held=0,
        wanted=0,
        gpus=1,
    )
    points = [replace(first, at_s=i) for i in range(10_000)]
    few = thinned(points, 100)
    assert len(few) <= 102
    assert (few[0], few[-1]) == (points[0], points[-1])


@pytest.mark.parametrize("cleared_again", [True, False])
def test_two_prices_within_a_second_need_a_clearing_between_them(
    tmp_path: Path, *, cleared_again: bool
) -> None:
    def priced(usd: int) -> PoolPriced:
        return PoolPriced(
            at_s=10,
            site="here",
            gpu="h100",
            tier="owned",
            microusd_per_gpu_hour=usd * USD,
            cleared_microusd_per_gpu_hour=usd * USD,
            held=1,
            wanted=1,
            gpus=8,
        )

    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    first: list[Event] = [joined(a_node()), *(JobSubmitted(at_s=1, job=a_job(name)) for name in "ab")]
    first += [priced(3), granted("a", gpus=(0,), at_s=10, usd=3)]
    first += [priced(2)] if cleared_again else []
    assert store.append([*first, granted("b", gpus=(1,), at_s=10, usd=2)], after=0)
    broken = [each for finding in examine(store) for each in finding.broken]
    other = say("doctor.other_price", lease="b.1", pays=Usd(2 * USD), others=Usd(3 * USD))
    assert broken == ([] if cleared_again else [other])
    store.close()


def test_a_hold_that_empties_the_purse_of_a_running_job_is_nothing_wrong(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    a, b = a_job("a"), replace(a_job("b"), budget_microusd=USD)
    events: list[Event] = [
        joined(a_node()),
        BudgetSet(at_s=0, tenant=a.tenant, microusd=USD),
        JobSubmitted(at_s=1, job=a),
        granted("a", gpus=(0,), at_s=10, usd=3),
        LeaseStarted(at_s=10, lease="a.1"),
        JobSubmitted(at_s=11, job=b),  # all that the tenant has is set aside for it
        LeaseEnded(at_s=3610, lease="a.1", exit_code=0),
    ]
    assert store.append(events, after=0)
    assert not [finding.broken for finding in examine(store) if not finding.kept]
    store.close()
