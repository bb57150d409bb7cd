"""Cheap hours through the real loop: load, curve, API, a job that waits, and its bill."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from math import cos, pi
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import JobSubmitted, LoadSeen
from brimful.fleet.state import Node
from brimful.scheduler.policies import POLICIES
from brimful.server.app import make_app
from brimful.server.service.service import Service
from brimful.units import HOUR_S
from tests.builders import USD, a_job, eventually
from tests.server.builders import an_access, bearer, wind_down
from tests.server.test_budgets import Elsewhen

DAYS = 8
POSTED = 10 * USD


class Night:
    """A server with ten GPUs, busy by day and quiet by night for a week."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, SqlStore(f"sqlite:///{folder / 'log.db'}")
        node = Node(site="here", node="n", gpu="slot", gpus=10, microusd_per_gpu_hour=POSTED, declared=True)
        self.engine = Elsewhen(folder / "leases", [node], site="here")
        rules = replace(POLICIES["brim"], grace_s=20, tariff=True)
        clock = lambda: time.time() + self.engine.ahead_s  # noqa: E731
        self.service = Service(self.store, [self.engine], rules, clock=clock)
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(bearer(self.access))

    def was_busy_until(self, hour: int) -> None:
        """A week in the log: full at the hour that it is now, quiet twelve hours later."""
        seen = [
            LoadSeen(
                at_s=(hour - ago) * HOUR_S,
                site="here",
                gpu="slot",
                tier="owned",
                held=round(7 + 3 * cos(2 * pi * ago / 24)),
                wanted=0,
                gpus=10,
            )
            for ago in range(DAYS * 24, 0, -1)
        ]
        first = JobSubmitted(seen[0].at_s, replace(a_job("past"), submitter="x"))
        assert self.store.append([first, *seen], after=len(self.store.since(0)))

    def it_is(self, at_s: float) -> None:
        self.engine.ahead_s = at_s - time.time()
        self.service.driver.tick()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    night = Night(tmp_path)
    yield night
    night.access.close()
    wind_down(night.service)
    night.store.close()


def test_a_cheap_hour_is_published_waited_for_and_billed(night: Night) -> None:
    hour = int(time.time()) // HOUR_S + 1 + DAYS * 24
    night.was_busy_until(hour)
    night.it_is(hour * HOUR_S + 5)
    (pool,) = night.http.get("/v1/prices").json()["data"]["pools"]
    ahead = [each["microusd_per_gpu_hour"] for each in pool["ahead"]]
    assert len(ahead) == 48
    assert min(ahead[:24]) < 0.9 * ahead[0]

    body = {"command": [sys.executable, "-c", "pass"], "folder": str(night.folder), "deferrable": True}
    job = night.http.post("/v1/jobs", json=body).json()["data"]["job"]
    night.service.driver.tick()
    assert night.http.get(f"/v1/jobs/{job}").json()["data"]["why_code"]["code"] == "scheduler.cheaper_hour"

    low = min(range(24), key=lambda i: ahead[i])
    night.it_is((hour + low) * HOUR_S + 5)
    eventually(lambda: bool(night.service.driver.tick()) or night.service.reader.job(job).phase == "finished")
    (lease,) = night.service.reader.job(job).leases
    assert lease.microusd_per_gpu_hour <= ahead[low]
