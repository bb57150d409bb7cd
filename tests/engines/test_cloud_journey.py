"""Three sites with real processes: a Slurm lab, a cloud on spot that dies by notice, and a second cloud.

Prices change, jobs move for money, the server is killed at every turn. Jobs run until they are told to end,
so nothing depends on how fast the machine is.

    BRIMFUL_JOBS=30 BRIMFUL_KILL_EVERY_S=20 pytest -m engines -s tests/engines/test_cloud_journey.py
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.fleet.events import Event, LeaseEnded, NodeGone, NodeOrdered
from brimful.fleet.lease import Lease
from brimful.server.doctor import examine
from tests.builders import USD, code_of
from tests.engines.bought import Depot, providers
from tests.engines.slurm_cluster import Cluster
from tests.engines.sshd import Machines
from tests.server.live import Live, wait_for

pytestmark = pytest.mark.engines
JOBS = int(os.environ.get("BRIMFUL_JOBS", "6"))
KILL_EVERY_S = float(os.environ.get("BRIMFUL_KILL_EVERY_S", "0"))  # besides the kills at every turn; 0: none
MOVERS, DUE = max(3, JOBS // 6), max(1, JOBS // 10)  # who is due stays at the second cloud
AT_LAB = JOBS - MOVERS - DUE
HOSTS = (*(f"a-{i}" for i in range(MOVERS)), *(f"b-{i}" for i in range(MOVERS + DUE)))
HOUR = 3600
BY_CLOUD = "preempted_by_engine"
# One step after the other, each saved and written down, until the file `go` is there.
WORKS = """
import os, pathlib, sys, time
from brimful.job import Run
run, folder = Run(), pathlib.Path(sys.argv[1])
step = int((run.latest / "n").read_text()) if run.latest else 0
while not run.told and not (folder / "go").exists():
    step += 1
    with run.saving(step) as kept:
        (kept / "n").write_text(str(step))
    with (folder / os.environ["BRIMFUL_JOB"]).open("a") as done:
        done.write(f"{step}\\n")
    time.sleep(0.5)
raise SystemExit(75 if run.told else 0)
"""


class World:
    def __init__(self, folder: Path, machines: Machines, cluster: Cluster) -> None:
        self.folder, self.machines = folder, machines
        self.notice = folder / "notice.yml"
        self.alpha = Depot("alpha", folder, machines, HOSTS[:MOVERS], usd=0.36, tier="spot")
        self.beta = Depot("beta", folder, machines, HOSTS[MOVERS:], usd=1.0)
        for depot in (self.alpha, self.beta):
            depot.sell()
        (folder / "sites.toml").write_text(
            f'[hpc]\nengine = "slurm"\npartition = "low"\nusd_per_gpu_hour = 0.1\n'
            f'checkpoints = "{folder}/store"\n\n'
            + providers(usd_per_hour=100, usd_per_month=1000, keep_s=1, rest_s=1)
            + self.alpha.table(notices=f"mithril@{self.notice}")
            + self.beta.table()
        )
        self.server = Live(folder / "data", "--sites", str(folder / "sites.toml"), "--grace-s", "300")
        self.server.env["SLURM_CONF"] = cluster.env["SLURM_CONF"]
        self.jobs: list[str] = []
        self.kills = 0
        self.is_up = threading.Lock()  # whoever holds it asks a server that is not killed meanwhile

    def submit(self, gpu: str, **more: object) -> str:
        body: dict[str, Any] = {
            "gpu_types": [gpu],
            "steps": 10 * HOUR,
            "predicted": {gpu: {"peak_bytes": 1 << 30, "step_s": 1.0}},
            "checkpoint_interval_s": 0,
            "checkpoint_cost_s": 1,
            "budget_microusd": 500 * USD,
            **more,
        }
        command = [sys.executable, "-c", WORKS, str(self.folder)]
        with self.is_up:
            client = Client(read_settings(env=self.server.env))
            self.jobs.append(client.submit(command, folder=str(self.folder), **body)["job"])
        return self.jobs[-1]

    def wait(self, check: Callable[[], bool]) -> None:
        def checked() -> bool:
            with self.is_up:
                return check()

        wait_for(checked)

    def steps(self, job: str) -> list[int]:
        path = self.folder / job
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def all_run_at(self, jobs: list[str], site: str) -> Callable[[], bool]:
        """And each has done something there."""
        before = {job: len(self.steps(job)) for job in jobs}

        def are_there() -> bool:
            shown = [self.server.show(job) for job in jobs]
            return all(
                each["phase"] == "running" and each["site"] == site and len(self.steps(job)) > before[job]
                for job, each in zip(jobs, shown, strict=True)
            )

        return are_there

    def kill(self) -> None:
        with self.is_up:
            self.server.kill()
            self.server.up()
            self.kills += 1

    @contextlib.contextmanager
    def killed_every(self, seconds: float) -> Iterator[None]:
        """Counted from when it is up again."""
        done = threading.Event()

        def go_on() -> None:
            while not done.wait(seconds):
                self.kill()

        killer = threading.Thread(target=go_on)
        if seconds:
            killer.start()
        try:
            yield
        finally:
            done.set()
            if seconds:
                killer.join()

    def fold(self) -> tuple[list[Event], Fold]:
        store, fold = SqlStore(read_settings({"data": str(self.server.data)}).database_url), Fold()
        try:
            events: list[Event] = []
            while more := store.since(len(events)):
                events += more
            for event in events:
                fold.apply(event)
            assert [str(each) for finding in examine(store) for each in finding.broken] == []
        finally:
            store.close()
        return events, fold


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.ExitStack() as labs:
        machines = labs.enter_context(contextlib.closing(Machines(HOSTS)))
        cluster = labs.enter_context(contextlib.closing(Cluster([("n-", 1, "a100", AT_LAB)])))
        made = World(tmp_path, machines, cluster)
        yield made
        made.server.down()


def test_jobs_move_for_money_over_three_sites_while_the_server_is_killed(world: World) -> None:
    world.server.up()
    due_s = int(datetime.now(UTC).timestamp()) + 100 * HOUR
    with world.killed_every(KILL_EVERY_S):
        at_lab = [world.submit("a100", deadline_s=due_s) for _ in range(AT_LAB)]
        movers = [world.submit("t4", limit_microusd_per_gpu_hour=20 * USD) for _ in range(MOVERS)]
        for _ in range(DUE):
            world.submit("t4", deadline_s=due_s, sites=["beta"])
        prices_change(world, at_lab, movers)
        (world.folder / "go").touch()
        world.wait(lambda: {world.server.show(job)["phase"] for job in world.jobs} == {"finished"})
        world.wait(lambda: not world.beta.taken(world.server.data))
        world.wait(lambda: world.server.ask("cloud", "show")["machines"] == [])
    bills = world.server.ask("invoice", "--by", "job")
    world.server.down()
    check(world, movers, bills)


def prices_change(world: World, at_lab: list[str], movers: list[str]) -> None:
    """The movers go from one cloud to the other and back for money, and once more when the first one ends."""
    world.kill()
    world.wait(world.all_run_at(at_lab, "hpc"))
    world.wait(world.all_run_at(movers, "alpha"))
    world.alpha.sell(usd=5.0)
    world.kill()
    world.wait(world.all_run_at(movers, "beta"))
    world.wait(lambda: not world.alpha.taken(world.server.data))
    world.kill()
    world.beta.sell(usd=9.0)
    world.alpha.sell(usd=0.2)
    world.wait(world.all_run_at(movers, "alpha"))
    world.kill()
    end = datetime.now(UTC) + timedelta(minutes=1)
    world.notice.write_text(f"instance_status: STATUS_PREEMPTING\nend_time: {end.isoformat()}\n")
    world.wait(lambda: all(len(world.server.show(job)["leases"]) > 3 for job in movers))
    world.alpha.sell(without=world.alpha.hosts)
    for host in world.alpha.hosts:
        world.machines.cut(host)
    world.wait(world.all_run_at(movers, "beta"))
    world.kill()


def check(world: World, movers: list[str], bills: dict[str, Any]) -> None:
    events, fold = world.fold()
    for job in world.jobs:
        assert world.steps(job) == list(range(1, len(world.steps(job)) + 1)), "each step once, in order"
    moves = [lease for job in movers for lease in fold.fleet.jobs[job].leases if _moved(lease)]
    assert len(moves) >= 3
    for lease in moves:
        sums = lease.reason.as_dict()  # type: ignore[union-attr]
        assert {"here", "there", "egress", "restart"} <= sums.keys()
    taken = [event.lease for event in events if isinstance(event, LeaseEnded) and event.cause == BY_CLOUD]
    assert {lease.rpartition(".")[0] for lease in taken} >= set(movers), "each left in time, by its notice"
    due = [state for state in fold.fleet.jobs.values() if state.job.deadline_s is not None]
    assert len(due) == JOBS - MOVERS
    assert all((state.ended_s or 0) <= (state.job.deadline_s or 0) for state in due)
    leases = [lease for job in world.jobs for lease in fold.fleet.jobs[job].leases]
    owed = {job: sum(each.cost_microusd(0) for each in fold.fleet.jobs[job].leases) for job in world.jobs}
    assert {bill["of"]: bill["microusd"] for bill in bills["bills"]} == owed
    assert all(owed[job] <= 500 * USD for job in world.jobs)
    assert len({lease.lease for lease in leases}) == len(leases)
    ordered = sorted(event.node for event in events if isinstance(event, NodeOrdered))
    assert ordered == sorted(event.node for event in events if isinstance(event, NodeGone))
    for name in ("alpha", "beta"):
        machines = [each for each in fold.fleet.cloud.gone.values() if each.offer.provider == name]
        assert fold.ledger.balance(f"provider:{name}") == sum(each.cost_microusd(0) for each in machines) > 0
    assert sum(fold.ledger.balances.values()) == 0
    print(
        f"{JOBS} jobs, {len(leases)} leases, {len(moves)} moves for money, {world.kills} kills of the server"
    )
    for lease in moves:
        print(f"{lease.lease}: {lease.reason}")
    print(f"billed {sum(owed.values())} micro-dollars in {len(bills['bills'])} bills")


def _moved(lease: Lease) -> bool:
    return code_of(lease.reason) == "scheduler.moves_for_money"
