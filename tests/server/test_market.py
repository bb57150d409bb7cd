"""A market pool with real processes: outbid, warned, saved, back again, and every cent accounted for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.main import main
from brimful.cli.money.accounts import all_events
from brimful.fleet.events import (
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    NoticeGiven,
    PoolPriced,
    to_record,
)
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from tests.builders import USD, eventually
from tests.market.test_invoice import bills, lines
from tests.server.builders import an_access, bearer, wind_down

NOTICE_S = 2
FLOOR = 3_600_000  # a dollar a second would be too easy to add up: 1,000 micro-dollars a second

# Steps until the file `go` is there, one at least; prints each, so that what is done twice or never shows.
TRAIN = """
import pathlib, time
from brimful.job import Run
run, step = Run(), 0
if run.latest:
    step = int((run.latest / "step").read_text())
while True:
    time.sleep(0.05)
    print("step", step, flush=True)
    step += 1
    run.after(step, lambda folder: (folder / "step").write_text(str(step)))
    if pathlib.Path("go").exists():
        break
"""


class Shop:
    """A server with a few slots of one market pool."""

    def __init__(
        self, folder: Path, url: str, notice_s: int = NOTICE_S, *, gpus: int = 2, min_run_s: int = 300
    ) -> None:
        self.folder, self.ahead_s = folder, 0.0  # of the real clock
        self.store = SqlStore(url)
        node = Node(site="here", node="n", gpu="slot", gpus=gpus, microusd_per_gpu_hour=FLOOR, declared=True)
        self.engine = LocalEngine(folder / "leases", [node], site="here")
        self.service = Service(
            self.store,
            [self.engine],
            Rules(grace_s=20, min_run_s=min_run_s),
            market=Market(terms=Terms(notice_s=notice_s, period_s=1, max_wait_s=3600)),
            clock=lambda: time.time() + self.ahead_s,
        )
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(bearer(self.access))

    def submit(self, **more: object) -> str:
        command = [sys.executable, "-c", TRAIN]
        body = {"command": command, "folder": str(self.folder), **more}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["data"]["job"]
        return name

    def phase(self, job: str) -> str:
        self.service.driver.tick()
        return self.service.reader.job(job).phase

    def printed(self, job: str) -> list[str]:
        leases = self.service.reader.job(job).leases
        text = "".join((self.folder / "leases" / each.lease / "log").read_text() for each in leases)
        return [line for line in text.splitlines() if line.startswith("step ")]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'log.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    shop = Shop(tmp_path, url)
    yield shop
    shop.access.close()
    wind_down(shop.service)
    shop.store.close()


def test_an_urgent_bid_evicts_the_cheapest_and_every_cent_is_accounted_for(shop: Shop) -> None:
    cheap = shop.submit(tenant="patient", priority="background")
    dear = shop.submit(tenant="steady", limit_microusd_per_gpu_hour=3 * FLOOR)
    eventually(lambda: shop.phase(cheap) == shop.phase(dear) == "running")
    eventually(lambda: shop.printed(cheap))
    urgent = shop.submit(tenant="hasty", priority="urgent")
    eventually(lambda: shop.phase(urgent) == "running")
    waiting = shop.http.get(f"/v1/jobs/{cheap}").json()["data"]
    assert waiting["phase"] == "waiting"
    why = waiting["why_code"]
    assert why["code"].startswith("scheduler.lost_bid")
    assert (why["limit"], why["gpu"], why["site"]) == (FLOOR * 5 // 4, "slot", "here")
    (shop.folder / "go").touch()
    eventually(lambda: {shop.phase(job) for job in (cheap, dear, urgent)} == {"finished"})

    log = list(all_events(shop.store))
    (given,) = [event for event in log if isinstance(event, NoticeGiven)]
    (ending,) = [event for event in log if isinstance(event, LeaseEnding)]
    assert given.lease == ending.lease == f"{cheap}.1"
    assert ending.at_s >= given.until_s == given.at_s + NOTICE_S
    assert ending.reason is not None
    told = ending.reason.as_dict()
    by = {"code": "scheduler.outbid_by", "jobs": [urgent], "price": 4_500_000}
    assert (told["outbid"], told["limit"]) == (by, 4_500_000)
    # It wrote a checkpoint and went on from there: every step once, in order.
    steps = shop.printed(cheap)
    assert steps == [f"step {n}" for n in range(len(steps))]
    assert len(shop.service.reader.job(cheap).leases) == 2
    assert (shop.service.reader.job(cheap).preemptions, shop.service.reader.job(dear).preemptions) == (1, 0)

    _adds_up(shop, log)


def _adds_up(shop: Shop, log: list[Event]) -> None:
    ledger = Ledger()
    made = {bill.of: bill.microusd for bill in bills(lines(log, ledger), by="team")}
    assert set(made) == {"patient", "steady", "hasty"}
    assert made == {name: -ledger.balance(f"tenant:{name}") for name in made}
    assert made == ledger.spent_by_tenant
    assert sum(made.values()) == ledger.balance("site:here") + ledger.balance("rounding")
    assert sum(ledger.balances.values()) == 0
    assert (
        ledger.balances == shop.service.reader.ledger.balances
    )  # folded as it happened, and again from the log
    # By hand, second by second, from the prices in the log.
    prices = [event for event in log if isinstance(event, PoolPriced)]
    assert len({each.microusd_per_gpu_hour for each in prices}) > 1, "the price moved while they ran"
    for name, billed in made.items():
        owed = 0
        for state in shop.service.reader.fleet.jobs.values():
            for lease in state.leases if state.job.tenant == name else ():
                assert lease.started_s is not None
                assert lease.ended_s is not None
                cost = sum(_price_at(prices, second) for second in range(lease.started_s, lease.ended_s))
                owed += cost // 3600
        assert billed == owed
    path = shop.folder / "log.jsonl"
    with path.open("w") as out:
        for event in log:
            kind, version, body = to_record(event)
            out.write(json.dumps({"kind": kind, "version": version, "body": body}) + "\n")
    assert main(["market", "ledger", str(path)]) == 0
    assert not [finding.broken for finding in examine(shop.store, [shop.engine]) if not finding.kept]


def _price_at(prices: list[PoolPriced], second: int) -> int:
    return [each for each in prices if each.at_s <= second][-1].microusd_per_gpu_hour


def test_a_price_that_moves_twice_in_a_second_is_one_price_at_each_moment(tmp_path: Path) -> None:
    """An urgent job may begin, end and let the price fall within a second, and the next begins at that."""
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    node = Node(site="here", node="n", gpu="slot", gpus=1, microusd_per_gpu_hour=FLOOR, declared=True)
    events: list[Event] = [NodeJoined.of(node, at_s=0)]
    for name, price in (("a", 2 * FLOOR), ("b", FLOOR)):
        priced = PoolPriced(
            at_s=5,
            **node.pool._asdict(),
            microusd_per_gpu_hour=price,
            cleared_microusd_per_gpu_hour=price,
            held=1,
            wanted=1,
            gpus=1,
        )
        lease = LeaseGranted(
            at_s=5, lease=f"{name}.1", job=name, node="n", gpus=(0,), microusd_per_gpu_hour=price
        )
        events += [JobSubmitted(at_s=5, job=Job(job=name, gpus=1)), priced, lease]
        events += [
            LeaseStarted(at_s=5, lease=lease.lease),
            LeaseEnded(at_s=5, lease=lease.lease, exit_code=0),
        ]
    assert store.append(events, after=0)
    assert not [finding.broken for finding in examine(store) if not finding.kept]
    store.close()


def test_a_price_that_falls_back_takes_the_notice_back(tmp_path: Path) -> None:
    notice_s = 600  # longer than the test may take: only the clock of the test gets there
    shop = Shop(tmp_path, f"sqlite:///{tmp_path / 'log.db'}", notice_s)
    try:
        low = [shop.submit(priority="background") for _ in range(2)]
        eventually(lambda: {shop.phase(job) for job in low} == {"running"})
        high = shop.submit(limit_microusd_per_gpu_hour=9 * USD)
        warned = shop.service.reader.fleet.warned
        eventually(lambda: shop.service.driver.tick() and any(each.notice_s for each in warned.values()))
        ((name, until_s),) = [(each.lease, each.notice_s) for each in warned.values() if each.notice_s]
        notice = tmp_path / "leases" / name / "notice.json"
        assert json.loads(notice.read_text()) == {"deadline_s": until_s, "may_stay": True}
        shop.service.submissions.cancel(high)
        eventually(lambda: shop.service.driver.tick() and not notice.exists())
        shop.ahead_s = notice_s + 1
        assert {shop.phase(job) for job in low} == {"running"}
        assert [shop.service.reader.job(job).preemptions for job in low] == [0, 0]
    finally:
        wind_down(shop.service)
        shop.access.close()
        shop.store.close()
