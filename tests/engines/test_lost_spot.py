"""A deadline where bids decide about spot, on machines of which one goes: done on the other, in time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.processes import marked
from brimful.adapters.engines.ssh.engine import Reach, SshEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.money.accounts import all_events
from brimful.fleet.events import LeaseEnded
from brimful.fleet.node import Pool, Tier
from brimful.fleet.state import OVER
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.cloud.providers import Host
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Observation
from brimful.server.app import make_app
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from tests.builders import USD, a_node, eventually
from tests.engines.labs import NODES
from tests.engines.sshd import the_machines
from tests.server.builders import an_access, bearer
from tests.server.test_deadlines import FIRM, SPOT, WORK_S
from tests.server.test_market import TRAIN

SITE = "here"
SOLD, KEPT = NODES[:2]
SAVES = TRAIN.replace("Run()", "Run(every_s=0.5)")  # a machine that goes says nothing before


class Elsewhen(SshEngine):
    """Real machines whose clock is ahead of this one's."""

    ahead_s = 0.0

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        return [replace(each, skew_s=each.skew_s - self.ahead_s) for each in super().observe(leases)]


def _host(name: str, tier: Tier, microusd: int) -> Host:
    node = replace(a_node(name, gpus=1, gpu="slot"), microusd_per_gpu_hour=microusd, tier=tier)
    return Host(node, name)


class Yard:
    """A server with a machine of spot, sold by bids, and a firm one with a queue."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.store, self.machines = folder, SqlStore(url), the_machines()
        self.reach = Reach(
            ssh=self.machines.flags, python=sys.executable, folder=str(folder / "nodes"), lost_s=600
        )
        self.engine = Elsewhen(folder / "leases", self.reach, site=SITE, log_bytes=1 << 20)
        hosts = (_host(SOLD, "spot", SPOT), _host(KEPT, "on_demand", FIRM))
        self.engine.take({host.node.node: host for host in hosts})
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
        body = {"command": [sys.executable, "-c", SAVES], "folder": str(self.folder), **more}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["data"]["job"]
        return name

    def phase(self, job: str) -> str:
        self.service.driver.tick()
        return self.service.reader.job(job).phase

    def nodes(self, job: str) -> list[str]:
        return [lease.node for lease in self.service.reader.job(job).leases]

    def steps(self, lease: str) -> list[int]:
        lines = self.engine.log(lease).data.decode().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("step ")]

    def lose(self, node: str, lease: str) -> None:
        """The machine is off: nothing answers there, and what ran on it is gone without a word."""
        self.machines.cut(node)
        for pid in marked({"BRIMFUL_LEASE": lease}):
            if str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
        self.engine._options = replace(self.reach, lost_s=1)

    def close(self) -> None:
        self.access.close()
        self.machines.mend(SOLD)
        reader = self.service.reader
        for name, state in reader.fleet.jobs.items():
            if state.phase not in OVER:
                self.service.submissions.cancel(name)
        eventually(lambda: not self.service.driver.tick().plan.stops and not reader.fleet.open_leases)
        self.engine.close()
        self.store.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'log.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    yard = Yard(tmp_path, url)
    yield yard
    yard.close()


def test_its_spot_machine_goes_and_it_ends_on_a_firm_one_in_time_and_within_budget(yard: Yard) -> None:
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
    assert (yard.nodes(job), yard.nodes(filler)) == ([SOLD], [KEPT])
    kept = Path(yard.engine.checkpoints(job))
    eventually(lambda: any(kept.glob("step-*/brimful.json")))

    yard.lose(SOLD, f"{job}.1")
    eventually(lambda: yard.phase(job) == "waiting")
    ended = [each for each in all_events(yard.store) if isinstance(each, LeaseEnded)]
    assert [(each.lease, each.cause) for each in ended] == [(f"{job}.1", "node_lost")]
    assert yard.nodes(job) == [SOLD]
    why = yard.http.get(f"/v1/jobs/{job}").json()["data"]["why_code"]
    assert (why["code"], why["tier"]) == ("scheduler.waits_for_spot", "on_demand")
    assert len(yard.service.reader.fleet.spot[Pool(SITE, "slot", "spot")].changes) == 2  # learned: one spell

    yard.engine.ahead_s = deadline_s - WORK_S - 60 - time.time()  # as long as it may wait, and no longer
    eventually(lambda: yard.phase(job) == "running")
    assert yard.nodes(job) == [SOLD, KEPT]
    eventually(lambda: len(yard.steps(f"{job}.2")) > 40)  # for two seconds or more: bills are by the second
    assert yard.steps(f"{job}.2")[0] > 0  # it goes on from its checkpoint
    (yard.folder / "go").touch()
    eventually(lambda: {yard.phase(name) for name in (job, filler)} == {"finished"})

    state = yard.service.reader.job(job)
    assert state.ended_s is not None
    assert state.ended_s <= deadline_s
    ledger = Ledger()
    for event in all_events(yard.store):
        ledger.apply(event)
    assert 0 < ledger.spent_microusd[job] <= budget
    assert ledger.balance("operator:overrun") == sum(ledger.balances.values()) == 0
    assert not [finding.broken for finding in examine(yard.store) if not finding.kept]
