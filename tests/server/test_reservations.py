"""Reservations through the API: who may, what is refused, what adds up; and with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.main import main
from brimful.cli.money.accounts import all_events
from brimful.errors import Refused
from brimful.fleet.events import (
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NoticeGiven,
    ReservationEnded,
    ReservedLent,
    from_record,
)
from brimful.language import say, words
from brimful.market.ledger import Ledger
from brimful.server.doctor import examine
from brimful.units import HOUR_S
from tests.builders import a_node, code_of, eventually
from tests.market.books import USD
from tests.server.builders import bearer, wind_down
from tests.server.test_market import Shop as RealShop
from tests.server.test_market_api import Shop

UNIT = 2_400_000  # two dollars and the premium
WINDOW: dict[str, object] = {"gpu": "h100", "gpus": 2, "hours": 10}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shop.tick()
    yield shop
    shop.access.close()
    shop.store.close()


def buy(shop: Shop, who: dict[str, str], **more: object) -> dict[str, Any]:
    status, found = shop.ask("POST", "/v1/reservations", who, **{**WINDOW, **more})
    assert status == 201, found
    assert isinstance(found, dict)
    return found


def test_a_window_is_quoted_bought_and_reported(shop: Shop) -> None:
    status, offered = shop.ask("POST", "/v1/reservations/quote", shop.a, **WINDOW)
    assert (status, offered["total_microusd"], offered["free_gpus"]) == (200, 20 * UNIT, 4)
    assert shop.ask("GET", "/v1/reservations", shop.a)[1]["reservations"] == []
    bought = buy(shop, shop.a, at_most_microusd_per_gpu_hour=UNIT)
    assert (bought["reservation"], bought["tenant"], bought["state"]) == ("r1", "a", "open")
    shop.tick(HOUR_S)
    job = shop.submit(shop.a, gpus=1, tenant="a")
    shop.tick()
    shop.tick(HOUR_S)
    lease = shop.service.reader.job(job).open_lease
    assert lease is not None
    assert (lease.reservation, lease.cost_microusd(shop.now_s)) == ("r1", 0)
    why = shop.ask("GET", f"/v1/jobs/{job}/why", shop.a)[1]
    assert why["price"] == words("server.price_reserved", reservation="r1")
    (report,) = shop.ask("GET", "/v1/reservations", shop.a)[1]["reservations"]
    assert (report["used"], report["idle"], report["gpus"]) == (1, 1, 2)
    assert report["used_gpu_s"] == HOUR_S
    assert report["idle_gpu_s"] == 3 * HOUR_S
    assert report["net_microusd"] == report["paid_microusd"] == 20 * UNIT


def test_a_tenant_can_neither_see_nor_touch_what_another_has_reserved(shop: Shop) -> None:
    buy(shop, shop.a)
    assert shop.ask("GET", "/v1/reservations", shop.b)[1] == {"reservations": [], "credits": []}
    for verb in ("pause", "resume", "return"):
        status, error = shop.ask("POST", f"/v1/reservations/r1/{verb}", shop.b, gpus=1)
        assert (status, error["code"]) == (404, "not_found")
    status, _ = shop.ask("POST", "/v1/reservations/r1/extend", shop.b, hours=1)
    assert status == 404
    status, _ = shop.ask("POST", "/v1/reservations", shop.b, **WINDOW, tenant="a")
    assert status == 403
    viewer = bearer(shop.access, "viewer", "a")
    assert shop.ask("POST", "/v1/reservations/r1/pause", viewer, gpus=1)[0] == 403
    assert shop.service.reader.fleet.reservations.by_name["r1"].paused.gpus == 0
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=1)
    shop.tick()
    told = shop.ask("GET", "/v1/events?limit=100", shop.b)[1]["events"]
    assert not {each["kind"] for each in told} & {
        "ReservationBought",
        "ReservationChanged",
        "ReservedLent",
    }
    assert shop.ask("GET", "/v1/spend", shop.b)[1]["balances"] == {}


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": 0}, {"gpus": -1}, {"hours": 0}, {"hours": 1.5}, {"gpus": "2"}, {"start_s": -5}, {"gpu": ""}],
)
def test_a_malformed_window_is_refused(shop: Shop, wrong: dict[str, object]) -> None:
    assert shop.ask("POST", "/v1/reservations", shop.a, **{**WINDOW, **wrong})[0] == 422
    assert not shop.service.reader.fleet.reservations.by_name


def test_a_budget_that_is_too_small_buys_nothing(shop: Shop) -> None:
    shop.ask("POST", "/v1/budgets/a", shop.operator, microusd=20 * UNIT - 1)
    status, error = shop.ask("POST", "/v1/reservations", shop.a, **WINDOW)
    assert (status, error["code"]) == (409, "budget_too_small")
    shop.ask("POST", "/v1/budgets/a", shop.operator, microusd=20 * UNIT)
    buy(shop, shop.a)
    job = shop.submit(shop.a, gpus=1, tenant="a")
    shop.tick()
    assert shop.service.reader.job(job).phase == "running", "what is reserved is paid"
    other = shop.submit(shop.a, gpus=2, tenant="a")
    shop.tick()
    _, why = shop.ask("GET", f"/v1/jobs/{other}/why", shop.a)
    assert why["phase"] == "waiting"
    assert why["waiting_code"]["reason"]["code"] == "scheduler.tenant_lacks.spent"


def test_idle_gpus_are_lent_and_come_back_with_notice(shop: Shop) -> None:
    buy(shop, shop.a, gpus=4)
    borrower = shop.submit(shop.b, gpus=4, tenant="b")
    shop.tick()
    why = shop.ask("GET", f"/v1/jobs/{borrower}/why", shop.b)[1]["waiting_code"]["reason"]
    assert why["loss"]["code"] == "scheduler.beside_reserved"
    shop.tick(900)  # unused for that long
    assert shop.service.reader.job(borrower).phase == "running"
    shop.tick(HOUR_S)
    owner = shop.submit(shop.a, gpus=2, tenant="a")
    shop.tick()
    why = shop.ask("GET", f"/v1/jobs/{owner}/why", shop.a)[1]["waiting_code"]["reason"]
    assert (why["code"], why["reservation"]) == ("scheduler.reserved_waits_until", "r1")
    lease = shop.service.reader.job(borrower).open_lease
    assert lease is not None
    assert lease.notice_s == shop.now_s + 60
    shop.tick(60)
    shop.end(lease.lease, exit_code=0)
    shop.tick()
    assert shop.service.reader.job(owner).phase == "running"
    (report,) = shop.ask("GET", "/v1/reservations", shop.a)[1]["reservations"]
    paid = shop.service.reader.job(borrower).cost_microusd(shop.now_s)
    # All supply was lent, until the owner claimed half of it for the last minute.
    assert 0.74 * paid < report["earned_microusd"] <= 0.75 * paid + 1
    assert shop.service.reader.ledger.balance("seller:a") == report["earned_microusd"]


def test_an_operator_grants_a_quota_and_what_it_earns_is_in_the_budget_of_the_team(shop: Shop) -> None:
    quota = {**WINDOW, "gpus": 4, "hours": 2000, "tenant": "a", "granted": True}
    status, error = shop.ask("POST", "/v1/reservations", shop.a, **quota)
    assert (status, error["code"]) == (403, "forbidden"), "no team gives itself a quota"
    for team in "ab":
        shop.ask("POST", f"/v1/budgets/{team}", shop.operator, microusd=100 * USD)
    made = buy(shop, shop.operator, **quota)
    assert (made["granted"], made["paid_microusd"], made["gpus"]) == (True, 0, 4)
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=4)
    borrower = shop.submit(shop.b, gpus=2, tenant="b")
    shop.tick()
    shop.tick(1)
    shop.tick(HOUR_S)
    owner = shop.submit(shop.a, gpus=4, tenant="a")
    shop.ask("POST", "/v1/reservations/r1/resume", shop.a, gpus=4)
    shop.tick()
    lease = shop.service.reader.job(borrower).open_lease
    assert lease is not None
    assert lease.notice_s == shop.now_s + 60
    shop.tick(60)
    shop.end(lease.lease, exit_code=0)
    shop.tick()
    assert shop.service.reader.job(owner).phase == "running"
    paid = shop.service.reader.job(borrower).cost_microusd(shop.now_s)
    (report,) = shop.ask("GET", "/v1/reservations", shop.a)[1]["reservations"]
    earned = report["earned_microusd"]
    assert 0.7 * paid < earned <= 0.75 * paid + 1
    assert report["net_microusd"] == -earned
    budgets = shop.service.reader.fleet.purses.budgets
    assert budgets["a"].left_microusd == 100 * USD + earned
    assert budgets["b"].left_microusd == 100 * USD - paid
    assert shop.service.reader.ledger.balance("seller:a") == 0
    status, error = shop.ask("POST", "/v1/reservations/r1/extend", shop.a, hours=1)
    assert (status, error["code"]) == (403, "forbidden"), "nor does it make one longer"
    assert shop.ask("POST", "/v1/reservations/r1/extend", shop.operator, hours=1)[0] == 200
    assert shop.ask("POST", "/v1/reservations/r1/return", shop.b, gpus=1)[0] == 404


def test_who_lends_may_bid_for_a_job_larger_than_its_reservation_and_earns_nothing_meanwhile(
    shop: Shop,
) -> None:
    buy(shop, shop.a)
    shop.tick(900)
    job = shop.submit(shop.a, gpus=3, tenant="a")
    shop.tick()
    assert shop.service.reader.job(job).phase == "running"
    (lending,) = shop.service.reader.fleet.reservations.lending.values()
    assert dict(lending.lent) == {"r1": 0}


def test_a_bid_of_who_lends_never_sets_the_price(shop: Shop) -> None:
    """Else it could bid just below what its borrowers offer, lose, and earn by it."""
    buy(shop, shop.a, gpus=4)
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=4)
    for _ in range(2):
        shop.submit(shop.b, gpus=2, tenant="b", limit_microusd_per_gpu_hour=9 * USD)
    shop.submit(shop.a, gpus=2, tenant="a", limit_microusd_per_gpu_hour=8 * USD)
    shop.tick()
    (line,) = shop.service.reader.fleet.prices.values()
    assert line.last.cleared_microusd_per_gpu_hour == 2 * USD  # the floor
    shop.submit(shop.b, gpus=2, tenant="b", limit_microusd_per_gpu_hour=7 * USD)
    shop.tick()
    assert line.last.cleared_microusd_per_gpu_hour == 7 * USD


def test_who_holds_borrowed_gpus_earns_nothing_by_those_it_lends(shop: Shop) -> None:
    """Else it could keep up the price that its borrowers pay."""
    held = shop.submit(shop.a, gpus=2, tenant="a")
    shop.tick()
    assert shop.service.reader.job(held).phase == "running"
    buy(shop, shop.a)
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=2)
    borrower = shop.submit(shop.b, gpus=2, tenant="b")
    shop.tick()
    lease = shop.service.reader.job(borrower).open_lease
    assert lease is not None
    shop.tick(HOUR_S)
    shop.end(lease.lease)
    assert shop.service.reader.ledger.balance("seller:a") == 0


def test_a_purchase_that_is_sent_again_under_its_key_is_the_first(shop: Shop) -> None:
    who = {**shop.a, "idempotency-key": "x1"}
    first, again = buy(shop, who), buy(shop, who)
    assert (first["reservation"], again["reservation"]) == ("r1", "r1")
    assert buy(shop, {**shop.a, "idempotency-key": "x2"})["reservation"] == "r2"
    status, error = shop.ask("POST", "/v1/reservations", who, **{**WINDOW, "hours": 9})
    assert (status, error["code"]) == (409, "key_reused")
    assert str(error["problem"]).endswith("different: hours")
    more = {**shop.a, "idempotency-key": "more"}
    ends = {shop.ask("POST", "/v1/reservations/r1/extend", more, hours=2)[1]["end_s"] for _ in range(2)}
    assert ends == {first["end_s"] + 2 * HOUR_S}
    status, error = shop.ask("POST", "/v1/reservations/r2/extend", more, hours=2)
    assert (status, error["code"]) == (409, "key_reused")
    assert shop.service.reader.ledger.balance("reservation:r1") == 24 * UNIT


def test_a_pool_is_found_by_any_name_of_its_gpu(shop: Shop) -> None:
    shop.engine.has = [*shop.engine.has, a_node("n9", gpu="rtx-4070", gpus=2)]
    shop.tick()
    status, offered = shop.ask("POST", "/v1/reservations/quote", shop.a, **{**WINDOW, "gpu": "4070"})
    assert (status, offered.get("gpu")) == (200, "rtx-4070")


def test_what_is_lent_can_be_returned_and_its_borrower_stays(shop: Shop) -> None:
    buy(shop, shop.a, gpus=4)
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=4)
    borrower = shop.submit(shop.b, gpus=4, tenant="b")
    shop.tick()
    assert shop.service.reader.job(borrower).phase == "running"
    status, left = shop.ask("POST", "/v1/reservations/r1/return", shop.a, gpus=4)
    assert (status, left["state"]) == (200, "ended")
    shop.tick(600)
    lease = shop.service.reader.job(borrower).open_lease
    assert lease is not None
    assert lease.notice_s is None
    shop.end(lease.lease)
    assert shop.service.reader.ledger.balance("seller:a") == 0, "it was lent for no time at all"


def test_a_job_leaves_with_notice_when_the_window_ends_and_an_extension_takes_that_back(shop: Shop) -> None:
    buy(shop, shop.a, hours=1)
    job = shop.submit(shop.a, gpus=2, tenant="a")
    shop.tick()
    shop.tick(HOUR_S - 60)
    lease = shop.service.reader.job(job).open_lease
    assert lease is not None
    assert (lease.notice_s, code_of(lease.notice)) == (shop.now_s + 60, "scheduler.reservation_ends")
    assert shop.ask("POST", "/v1/reservations/r1/extend", shop.a, hours=1)[0] == 200
    shop.tick()
    assert lease.notice_s is None
    shop.tick(HOUR_S)
    shop.tick(60)
    assert (lease.phase, code_of(lease.reason)) == ("ending", "scheduler.reservation_over")
    ended = [event for event in all_events(shop.store) if isinstance(event, ReservationEnded)]
    assert [event.reservation for event in ended] == ["r1"]


def test_gpus_are_free_when_the_window_begins_and_are_not_lent_before(shop: Shop) -> None:
    begins_s = shop.now_s + HOUR_S
    buy(shop, shop.a, gpus=4, start_s=begins_s)
    shop.ask("POST", "/v1/reservations/r1/pause", shop.a, gpus=1)
    (booked,) = shop.ask("GET", "/v1/reservations", shop.a)[1]["reservations"]
    assert (booked["state"], booked["idle"]) == ("booked", 0), "nobody's hours run yet"
    borrower = shop.submit(shop.b, gpus=4, tenant="b")
    shop.tick()
    lease = shop.service.reader.job(borrower).open_lease
    assert lease is not None
    shop.tick(HOUR_S - 60)
    assert lease.notice_s == begins_s
    shop.tick(60)
    assert lease.phase == "ending"
    shop.end(lease.lease)
    assert shop.service.reader.ledger.balance("seller:a") == 0, "before the window it is the operator's"
    owner = shop.submit(shop.a, gpus=3, tenant="a")
    shop.tick()
    assert shop.service.reader.job(owner).phase == "running"


def test_a_log_of_before_there_were_reservations_still_opens() -> None:
    body = {"at_s": 1, "lease": "j.1", "job": "j", "node": "n", "gpus": [0], "microusd_per_gpu_hour": 5}
    old = from_record("LeaseGranted", 4, body)
    assert isinstance(old, LeaseGranted)
    assert old.reservation == ""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealShop]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'log.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    shop = RealShop(tmp_path, url)
    yield shop
    shop.access.close()
    wind_down(shop.service)
    shop.store.close()


def test_a_lent_reservation_is_reclaimed_with_notice_from_real_processes(real: RealShop) -> None:
    window = {"gpu": "slot", "gpus": 2, "hours": 5, "tenant": "owner"}
    real.service.driver.tick()
    assert real.http.post("/v1/reservations", json=window).status_code == 201
    assert real.http.post("/v1/reservations/r1/pause", json={"gpus": 2}).status_code == 200
    borrower = real.submit(tenant="borrower", gpus=2)
    eventually(lambda: real.phase(borrower) == "running" and real.printed(borrower))
    reader = real.service.reader
    eventually(lambda: reader.job(borrower).cost_microusd(reader.now_s()) > 0)
    assert real.http.post("/v1/reservations/r1/resume", json={}).status_code == 200
    owner = real.submit(tenant="owner", gpus=2)
    eventually(lambda: real.phase(owner) == "running")
    assert real.phase(borrower) == "waiting"
    (real.folder / "go").touch()
    eventually(lambda: real.phase(owner) == "finished")
    real.ahead_s += 6 * HOUR_S  # the window is over: the borrower goes on as anybody
    eventually(lambda: real.phase(borrower) == "finished")

    log = list(all_events(real.store))
    given = next(e for e in log if isinstance(e, NoticeGiven) and e.lease == f"{borrower}.1")
    ending = next(e for e in log if isinstance(e, LeaseEnding) and e.lease == f"{borrower}.1")
    granted = next(e for e in log if isinstance(e, LeaseGranted) and e.job == owner)
    assert granted.reservation == "r1"
    assert granted.at_s >= ending.at_s >= given.until_s
    assert any(isinstance(e, LeaseStarted) and e.lease == f"{owner}.1" for e in log)
    assert next(e.lent for e in log if isinstance(e, ReservedLent)) == (("r1", 2),)
    steps = real.printed(borrower)
    assert steps == [f"step {n}" for n in range(len(steps))], "it saved, and went on from there"
    ledger = Ledger()
    for event in log:
        ledger.apply(event)
    assert sum(ledger.balances.values()) == 0
    assert ledger.balances == real.service.reader.ledger.balances
    assert ledger.reservations.ended["r1"].earned_microusd == ledger.balance("seller:owner") > 0
    assert not [finding.broken for finding in examine(real.store, [real.engine]) if not finding.kept]
    assert ledger.spent_by_tenant["owner"] == 10 * 3_600_000 * 12 // 10


def test_the_command_asks_before_it_spends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reserve", "return", "r1", "--dry-run", "--json"]) == 0
    assert '"gpus": null' in capsys.readouterr().out
    assert main(["reserve", "return", "r1", "--json"]) == 1
    assert "needs_consent" in capsys.readouterr().out


class Through:
    """The client's calls, answered by the shop."""

    def __init__(self, shop: Shop, who: dict[str, str] | None = None) -> None:
        self._shop, self._who = shop, who or shop.a

    def quote_reservation(self, **window: object) -> Any:
        return self._ask("/quote", self._who, **window)

    def buy_reservation(self, *, key: str = "", **window: object) -> Any:
        return self._ask("", {**self._who, "idempotency-key": key}, **window)

    def quote_extension(self, name: str, hours: int) -> Any:
        return self._ask(f"/{name}/quote", self._who, hours=hours)

    def extend_reservation(self, name: str, hours: int, at_most: int, *, key: str = "") -> Any:
        who, limit = {**self._who, "idempotency-key": key}, {"at_most_microusd_per_gpu_hour": at_most}
        return self._ask(f"/{name}/extend", who, hours=hours, **limit)

    def _ask(self, path: str, who: dict[str, str], **body: object) -> Any:
        status, found = self._shop.ask("POST", f"/v1/reservations{path}", who, **body)
        if status >= 400:
            raise Refused(say("market.reserve_counts", gpus=0, hours=0), code=found["code"])
        return found


def test_a_command_that_bought_the_last_gpus_can_be_sent_again_under_its_key(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("brimful.cli.money.reserve.Client", lambda: Through(shop))
    bought = ["reserve", "buy", "--gpu", "h100", "--gpus", "4", "--hours", "300", "--yes", "--key"]
    more = ["reserve", "extend", "r1", "--hours", "36", "--yes", "--key", "more"]
    for command in ([*bought, "x"], [*bought, "x"], more, more):
        assert main(command) == 0
        assert "r1" in capsys.readouterr().out
    assert shop.service.reader.fleet.reservations.bought == 1
    assert shop.service.reader.ledger.balance("reservation:r1") == 4 * 336 * UNIT
    assert main([*bought, "y", "--json"]) == 1
    assert "not_enough_gpus" in capsys.readouterr().out
    assert shop.service.reader.fleet.reservations.bought == 1


def test_the_command_grants_a_quota_for_operators_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reserve", "grant", "--tenant", "a", "--gpu", "h100", "--gpus", "2", "--hours", "2000"]
    command += ["--key", "x"]
    monkeypatch.setattr("brimful.cli.money.reserve.Client", lambda: Through(shop))
    assert main([*command, "--json"]) == 1
    assert "forbidden" in capsys.readouterr().out
    monkeypatch.setattr("brimful.cli.money.reserve.Client", lambda: Through(shop, shop.operator))
    for _ in range(2):
        assert main(command) == 0
        assert words("money.reserve_granted", reservation="r1", tenant="a") in capsys.readouterr().out
    assert shop.service.reader.fleet.reservations.bought == 1
