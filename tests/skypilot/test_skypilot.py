"""A live server buys machines through SkyPilot's own API server, whoever is killed in between."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brimful.adapters.files import identity
from brimful.adapters.providers.sky_api import SkyApi
from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import read_settings
from brimful.fleet.events import Event, NodeGone, NodeOrdered
from brimful.server.doctor import examine
from tests.builders import USD, code_of
from tests.engines.bought import providers, table
from tests.server.live import Live, wait_for
from tests.skypilot.lab import REGIONS, Lab

pytestmark = pytest.mark.skypilot
CAPS = {"usd_per_hour": 5, "usd_per_month": 100, "keep_s": 1}
OVER = ("finished", "cancelled")
CYCLES = int(os.environ.get("BRIMFUL_KILLS", "20"))


class World:
    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder, self.lab, self.data = folder, lab, folder / "data"
        (folder / "store").mkdir()
        given = {
            "kind": "skypilot",
            "address": lab.address,
            "infra": [f"do/{region}" for region in REGIONS],
            "catalog": str(lab.catalog),
            "checkpoints": str(folder / "store"),
            "python": sys.executable,
            "folder": str(folder / "nodes"),
            "lead_s": 10,
        }
        (folder / "sites.toml").write_text(providers(**CAPS) + table("providers.sky", given))
        self.server = Live(self.data, "--sites", str(folder / "sites.toml"), "--slots", "1")

    def submit(self, script: str) -> str:
        return self.server.submit("--limit", "1", "--gpu", "t4", command=("sh", "-c", script))

    def phase(self, job: str) -> str:
        return str(self.server.show(job)["phase"])

    def api(self) -> tuple[SkyApi, str]:
        """As our server speaks to it, and how the names of its clusters begin."""
        deployment = identity(self.data / "sites" / "sky" / ".machines")[:8]
        return SkyApi(self.lab.address, user=deployment), f"brimful-{deployment}-"

    def asked(self) -> bool:
        """Whether SkyPilot has a request of ours under way."""
        api, prefix = self.api()
        return bool(api.requests(prefix))

    def is_settled(self) -> bool:
        """Nothing of ours is anywhere: not in the cloud, not at SkyPilot, not in the log."""
        if self.lab.machines():
            return False
        api, prefix = self.api()
        return not (api.requests(prefix) or api.clusters(prefix) or self.log()[1].fleet.cloud.machines)

    def log(self) -> tuple[list[Event], Fold]:
        store, fold = SqlStore(read_settings({"data": str(self.data)}).database_url), Fold()
        try:
            events: list[Event] = []
            while more := store.since(len(events)):
                events += more
            for event in events:
                fold.apply(event)
            broken = [str(each) for finding in examine(store) for each in finding.broken]
        finally:
            store.close()
        assert broken == []
        return events, fold

    def check_bills(self) -> list[Event]:
        """Every machine was made and removed once, and the ledger owes for it what the log says."""
        noted = Counter((each["event"], each["machine"]) for each in self.lab.bill())
        assert set(noted.values()) <= {1}
        made, removed = ({name for what, name in noted if what == each} for each in ("made", "removed"))
        assert made == removed
        events, fold = self.log()
        ordered = sorted(event.node for event in events if isinstance(event, NodeOrdered))
        assert ordered == sorted(event.node for event in events if isinstance(event, NodeGone))
        costs = sum(machine.cost_microusd(0) for machine in fold.fleet.cloud.gone.values())
        assert fold.ledger.balance("provider:sky") == costs
        assert sum(fold.ledger.balances.values()) == 0
        return events


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with contextlib.closing(Lab()) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, lab: Lab) -> Iterator[World]:
    lab.refuse()
    lab.slow(0.0)
    (lab.cloud / "bill").unlink(missing_ok=True)
    made = World(tmp_path, lab)
    yield made
    made.server.down()


def test_the_first_region_refuses_and_the_second_serves(world: World) -> None:
    world.lab.refuse("tor1")
    world.server.up()
    job = world.submit("echo hello; sleep 1; echo bye")
    wait_for(lambda: world.phase(job) == "finished")
    wait_for(world.is_settled)
    assert world.server.read("job", "logs", job).split() == ["hello", "bye"]
    leases = [(each["site"], each["microusd_per_gpu_hour"]) for each in world.server.show(job)["leases"]]
    assert leases == [("sky-do-ams3", REGIONS["ams3"] * USD)]
    world.server.down()
    gone = [event for event in world.check_bills() if isinstance(event, NodeGone)]
    assert [event.cause for event in gone] == ["refused", "returned"]
    assert code_of(gone[0].reason) == "adapters.sky_refused"
    assert "tor1" in str(gone[0].reason)


def test_what_its_cloud_takes_back_is_gone_and_the_job_goes_on_elsewhere(world: World) -> None:
    world.server.up()
    ran, go = world.folder / "ran", world.folder / "go"
    job = world.submit(f"echo x >> {ran}; while [ ! -e {go} ]; do sleep 1; done")
    wait_for(ran.exists)
    world.lab.evict()
    wait_for(lambda: ran.read_text() == "x\nx\n")
    go.touch()
    wait_for(lambda: world.phase(job) == "finished")
    wait_for(world.is_settled)
    world.server.down()
    gone = [event.cause for event in world.check_bills() if isinstance(event, NodeGone)]
    assert gone == ["evicted", "returned"]


# When the server is killed, in turn; a random while later each time.
MOMENTS: dict[str, Callable[[World, str], bool]] = {
    "the job has been submitted": lambda _world, _job: True,
    "SkyPilot has a request": lambda world, _job: bool(world.asked() or world.lab.machines()),
    "the cloud has a machine": lambda world, _job: bool(world.lab.machines()),
    "the job runs": lambda world, job: world.phase(job) not in ("waiting", "starting"),
    "the job is over": lambda world, job: world.phase(job) in OVER,
}


def test_kills_of_the_server_leave_no_cluster_and_no_double_bill(world: World) -> None:
    world.lab.slow(1.0)
    world.server.up()
    rng, jobs, moments = random.Random(22), list[str](), list(MOMENTS.values())
    for i in range(CYCLES):
        job = world.submit(f"echo x >> {world.folder}/ran-{i}; sleep 3")
        jobs.append(job)
        is_reached = moments[i % len(moments)]
        wait_for(lambda job=job, is_reached=is_reached: is_reached(world, job))
        time.sleep(rng.uniform(0, 4))
        world.server.kill()
        world.server.up()
        if i % 3 == 2:
            with contextlib.suppress(AssertionError):  # it may be over by now
                world.server.ask("job", "cancel", job)
        wait_for(lambda job=job: world.phase(job) in OVER)
        wait_for(world.is_settled)
    api, prefix = world.api()
    stray = {"resources": {"infra": "do/tor1", "instance_type": "gpu-t4x1"}}
    before = len(world.lab.bill())
    api.launch(f"{prefix}sky-999", stray)  # for a log that is lost
    wait_for(lambda: len(world.lab.bill()) > before or not api.requests(prefix))
    wait_for(world.is_settled)
    world.server.down()
    world.check_bills()
    assert {file.read_text() for file in world.folder.glob("ran-*")} <= {"x\n"}
    _, fold = world.log()
    finished = [i for i, job in enumerate(jobs) if fold.fleet.jobs[job].phase == "finished"]
    assert all((world.folder / f"ran-{i}").exists() for i in finished)
    assert len(finished) >= CYCLES * 2 // 3
