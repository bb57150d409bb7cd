"""Jobs that hold GPUs and do no useful work: found by steps, else by the driver; warned, billed, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.errors import BadInput
from brimful.fleet.events import LeaseBusy, LeaseIdle
from brimful.meter.idle import last_useful_s
from brimful.meter.nvml import read_gpus
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service.idle import IdleRule, read_idle
from brimful.server.service.notify import kind_of
from brimful.server.service.service import Service
from tests.builders import a_node, eventually, refuses
from tests.fake_nvml import FakeNvml, a_card
from tests.server.builders import wind_down
from tests.server.test_api import Server
from tests.server.test_samples import a_sample

RULES = "*=600s strict=600s/1200s"


class IdleServer(Server):
    def __init__(self, folder: Path, **engine: Any) -> None:
        super().__init__(folder)
        self.now_s = 1_800_000_000
        self.engine = LocalEngine(folder / "leases", [a_node(gpus=2)], site="here", **engine)
        self.service = Service(
            self.store, [self.engine], Rules(grace_s=1), idle=read_idle(RULES), clock=lambda: self.now_s
        )
        headers = self.http.headers
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(headers)

    def running(self, tenant: str = "default") -> str:
        job = self.submit("sleep", "1000", tenant=tenant)
        eventually(lambda: self.phase(job) == "running")
        # By the engine's clock it began just now; the test's own clock goes from there.
        lease = self.service.reader.fleet.jobs[job].open_lease
        assert lease is not None
        assert lease.started_s is not None
        self.now_s = lease.started_s
        return job

    def later(self, seconds: int) -> None:
        self.now_s += seconds
        reader = self.service.reader
        reader.samples.read(list(reader.fleet.open_leases.values()), now_s=self.now_s)
        self.service.idle.look()

    def steps(self, job: str, at_s: int) -> None:
        text = a_sample(run={"job": job, "at_s": at_s}, step={"at_s": at_s})
        (Path(self.folder) / "leases" / f"{job}.1" / "sample.json").write_text(text)

    def kinds(self) -> list[str]:
        return [type(e).__name__ for e in self.store.since(0) if isinstance(e, LeaseIdle | LeaseBusy)]

    def why(self, job: str) -> str:
        code: Any = self.get(f"/v1/jobs/{job}")["why_code"]
        return "" if code is None else str(code["code"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IdleServer]:
    server = IdleServer(tmp_path)
    yield server
    server.access.close()
    wind_down(server.service)
    server.store.close()


def test_steps_come_first_then_the_driver_and_else_nobody_knows() -> None:
    assert last_useful_s(step_s=5, busy_s=9) == 5
    assert last_useful_s(step_s=None, busy_s=9) == 9
    assert last_useful_s(step_s=None, busy_s=None) is None


def test_rules_are_by_tenant() -> None:
    assert read_idle("*=30m vision=15m/2h") == {"*": IdleRule(1800), "vision": IdleRule(900, 7200)}
    for text in ("30m", "*=30", "*=1s", "a=2h/1h", "a b=3m"):
        with refuses(BadInput, "server.bad_idle"):
            read_idle(text)


def test_a_job_without_steps_or_driver_is_never_called_idle(server: IdleServer) -> None:
    job = server.running()
    server.later(100_000)
    assert (server.kinds(), server.why(job)) == ([], "")


def test_an_idle_job_is_named_warned_and_billed_for_what_it_wasted(server: IdleServer) -> None:
    job = server.running()
    began_s = server.now_s
    server.steps(job, began_s)
    server.later(100)
    assert server.kinds() == ["LeaseBusy"]  # from here on somebody can tell
    server.later(600)
    server.later(100)
    assert (server.kinds(), server.why(job)) == (["LeaseBusy", "LeaseIdle"], "server.is_idle")
    idle = next(e for e in server.store.since(0) if isinstance(e, LeaseIdle))
    assert idle.since_s == began_s
    found = kind_of(idle, server.service.reader)
    assert found is not None
    assert (found[0], found[1].job.job) == ("idle", job)
    server.steps(job, server.now_s)
    server.later(10)
    assert (server.kinds()[-1], server.why(job)) == ("LeaseBusy", "")

    lease = server.service.reader.fleet.jobs[job].leases[0]
    idle_s = server.now_s - began_s
    server.http.post(f"/v1/jobs/{job}/cancel")
    eventually(lambda: server.phase(job) == "cancelled")
    bill: Any = server.get("/v1/invoice")["bills"][0]  # type: ignore[index]
    # It ended by the engine's clock, soon after it began: all that was paid was paid for idle time.
    assert lease.ended_s is not None
    assert idle_s > lease.ended_s - began_s
    assert (bill["idle_microusd"], bill["lost_microusd"]) == (bill["microusd"], 0)


def test_a_job_is_stopped_only_where_its_teams_rule_says_so(server: IdleServer) -> None:
    patient, strict = server.running(), server.running("strict")
    for job in (patient, strict):
        server.steps(job, server.now_s)
    server.later(700)
    server.later(400)
    assert server.phase(strict) == "running"
    server.later(200)
    eventually(lambda: server.phase(strict) == "stopped")
    assert server.why(strict) == "server.idle_stopped"
    assert server.phase(patient) == "running"


def test_where_a_job_reports_no_steps_the_driver_tells(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path)
    with nvml.here():
        nvml.show(a_card(busy=0), a_card(busy=50))
        server = IdleServer(tmp_path, devices={"node-0": ("0", "1")}, look=read_gpus)
        job = server.running()
        server.later(1)
        server.later(700)
        assert (server.kinds(), server.why(job)) == (["LeaseBusy", "LeaseIdle"], "server.is_idle")
        nvml.show(a_card(busy=7), a_card(busy=50))
        server.later(15)
        assert (server.kinds()[-1], server.why(job)) == ("LeaseBusy", "")
        server.access.close()
        wind_down(server.service)
        server.store.close()
