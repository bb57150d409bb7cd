"""A deadline and a budget where bids decide about spot, with real processes: outbid, and done in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from brimful.adapters.stores.sql import SqlStore
from brimful.cli.money.accounts import all_events
from brimful.fleet.node import Tier
from brimful.fleet.state import Node
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.policies import POLICIES
from brimful.server.app import make_app
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from tests.builders import USD, eventually
from tests.server.builders import an_access, bearer, wind_down
from tests.server.test_budgets import Elsewhen
from tests.server.test_market import TRAIN

SPOT, FIRM = 3_600_000, 10_800_000  # a GPU-hour of each: 1,000 and 3,000 micro-dollars a second
WORK_S = 600


class Yard:
    """A server with one spot GPU, sold by bids, and one firm GPU with a queue."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.store = folder, SqlStore(url)
        self.engine = Elsewhen(
            folder / "leases", [_node("spot", SPOT), _node("on_demand", FIRM)], site="here"
        )
        self.service = Service(
            self.store,
            [self.engine],
            replace(POLICIES["brim"], grace_s=20),
            market=Market(pools=("spot",), terms=Terms(notice_s=2, period_s=1)),
            clock=lambda: time.time() + self.engine.ahead_s,
        )
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(bearer(self.access))

    def submit(self, **more: object) -> str:
        body = {"command": [sys.executable, "-c", TRAIN], "folder": str(self.folder), **more}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["data"]["job"]
        return name

    def phase(self, job: str) -> str:
        self.service.driver.tick()
        return self.service.reader.job(job).phase

    def nodes(self, job: str) -> list[str]:
        return [lease.node for lease in self.service.reader.job(job).leases]


def _node(tier: Tier, microusd: int) -> Node:
    return Node(
        site="here",
        node=f"n-{tier}",
        gpu="slot",
        gpus=1,
        microusd_per_gpu_hour=microusd,
        declared=True,
        tier=tier,
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'log.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    yard = Yard(tmp_path, url)
    yield yard
    yard.access.close()
    wind_down(yard.service)
    yard.store.close()


def test_it_bids_for_spot_is_outbid_and_ends_on_firm_capacity_in_time_and_within_budget(yard: Yard) -> None:
    deadline_s, budget = yard.service.reader.now_s() + 7200, 3 * USD
    job = yard.submit(
        deadline_s=deadline_s,
        budget_microusd=budget,
        steps=WORK_S,
        predicted={"slot": {"peak_bytes": 1, "step_s": 1.0}},
        checkpoint_interval_s=1,
        checkpoint_cost_s=1,
    )
    filler = yard.submit(tiers=["on_demand"], checkpoint_interval_s=1)  # on the GPU that is kept for the job
    eventually(lambda: yard.phase(job) == yard.phase(filler) == "running")
    assert (yard.nodes(job), yard.nodes(filler)) == (["n-spot"], ["n-on_demand"])
    rival = yard.submit(tiers=["spot"], priority="urgent")
    eventually(lambda: yard.phase(rival) == "running")
    assert yard.phase(job) == "waiting"
    why = yard.http.get(f"/v1/jobs/{job}").json()["data"]["why_code"]
    assert (why["code"], why["tier"]) == ("scheduler.waits_for_spot", "on_demand")

    yard.engine.ahead_s = deadline_s - WORK_S - 60 - time.time()  # as long as it may wait, and no longer
    eventually(lambda: yard.phase(job) == "running")
    assert yard.nodes(job) == ["n-spot", "n-on_demand"]
    stopped = yard.service.reader.job(filler).leases[0].reason
    assert stopped is not None
    assert stopped.as_dict() == {"code": "scheduler.preempted_by", "job": job}
    (yard.folder / "go").touch()
    eventually(lambda: {yard.phase(name) for name in (job, filler, rival)} == {"finished"})

    state = yard.service.reader.job(job)
    assert state.ended_s is not None
    assert state.ended_s <= deadline_s
    ledger = Ledger()
    for event in all_events(yard.store):
        ledger.apply(event)
    assert 0 < ledger.spent_microusd[job] <= budget
    assert ledger.balance("operator:overrun") == sum(ledger.balances.values()) == 0
    assert not [finding.broken for finding in examine(yard.store, [yard.engine]) if not finding.kept]
