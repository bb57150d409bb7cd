"""A live server buys machines, uses them and gives them back, whoever is killed in between."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import read_settings
from brimful.fleet.events import Event, NodeGone, NodeOrdered
from brimful.server.doctor import examine
from tests.builders import USD
from tests.engines.bought import Depot, providers
from tests.engines.sshd import the_machines
from tests.server.live import Live, wait_for

HOSTS = ("n-0", "n-1")
CAPS = {"usd_per_hour": 5, "usd_per_month": 100, "keep_s": 1}
KILLS = int(os.environ.get("BRIMFUL_KILLS", "4"))


class World:
    def __init__(self, folder: Path, **given: object) -> None:
        self.folder, self.data = folder, folder / "data"
        self.depot = Depot("depot", folder, the_machines(), HOSTS, usd=0.36)
        self.depot.sell()
        (folder / "sites.toml").write_text(providers(**given) + self.depot.table())
        self.server = Live(self.data, "--sites", str(folder / "sites.toml"), "--slots", "1")

    def submit(self, script: str, *words: str) -> str:
        return self.server.submit("--limit", "1", "--gpu", "t4", *words, command=("sh", "-c", script))

    def phase(self, job: str) -> str:
        return str(self.server.show(job)["phase"])

    def are_over(self, jobs: Sequence[str]) -> bool:
        """Whether all of them ended as they should. A job that can no longer do so fails the test at once."""
        phases = {job: self.phase(job) for job in jobs}
        assert not set(phases.values()) & {"failed", "stopped", "skipped"}, phases
        return set(phases.values()) <= {"finished", "cancelled"}

    @contextlib.contextmanager
    def explained(self, jobs: Sequence[str]) -> Iterator[None]:
        """A failure says what each unfinished job waits for, and what the server said last."""
        try:
            yield
        except AssertionError as error:
            shown = [self.server.show(job) for job in jobs]
            told = ("job", "phase", "why", "reason", "leases")
            facts = [{key: each.get(key) for key in told} for each in shown if each["phase"] != "finished"]
            nodes = self.server.read("fleet", "nodes", columns=200)
            pytest.fail(f"{error}\n{json.dumps(facts, indent=1)}\n{nodes}\n{self.server.said()[-6000:]}")

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


MakeWorld = Callable[..., World]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def a_world(**given: object) -> World:
        made.append(World(tmp_path, **given))
        return made[-1]

    yield a_world
    for world in made:
        world.server.down()


def test_a_machine_is_bought_used_and_given_back_and_what_it_printed_is_kept(worlds: MakeWorld) -> None:
    world = worlds(**CAPS)
    world.server.up()
    job = world.submit("echo hello; sleep 2; echo bye")
    wait_for(lambda: world.phase(job) == "finished")
    wait_for(lambda: not world.depot.taken(world.data))
    assert world.server.read("job", "logs", job).split() == ["hello", "bye"]
    shown = world.server.show(job)
    assert [(lease["site"], lease["microusd_per_gpu_hour"]) for lease in shown["leases"]] == [
        ("depot", 0.36 * USD)
    ]
    wait_for(lambda: "depot-1 gone" in world.server.said())
    world.server.down()
    events, fold = world.log()
    (order,) = [event for event in events if isinstance(event, NodeOrdered)]
    (gone,) = [event for event in events if isinstance(event, NodeGone)]
    assert (gone.node, gone.cause) == (order.node, "returned")
    machine = fold.fleet.cloud.gone[order.node]
    assert machine.ready_s is not None
    assert fold.ledger.balance("provider:depot") == machine.cost_microusd(0) > 0
    assert sum(fold.ledger.balances.values()) == 0


@pytest.mark.parametrize("given", [{}, {"usd_per_hour": 5}, {**CAPS, "dry_run": True}])
def test_without_consent_nothing_is_bought_and_the_job_is_told_why(
    worlds: MakeWorld, given: dict[str, object]
) -> None:
    world = worlds(**given)
    world.server.up()
    job = world.submit("true")
    code = "scheduler.over_hourly_cap"
    if given:
        code = "scheduler.would_buy" if "dry_run" in given else "scheduler.over_monthly_cap"
    wait_for(lambda: (world.server.show(job)["why_code"] or {}).get("code") == code)
    world.server.down()
    events, _ = world.log()
    assert not any(isinstance(event, NodeOrdered) for event in events)


def test_kills_of_the_server_leave_no_machine_behind_and_run_nothing_twice(worlds: MakeWorld) -> None:
    world = worlds(**CAPS)
    world.server.up()
    rng, jobs = random.Random(5), list[str]()
    for i in range(KILLS):
        jobs.append(world.submit(f"echo x >> {world.folder}/ran-{i}; sleep 1"))
        if i % 2:
            with contextlib.suppress(AssertionError):  # it may be over by now
                world.server.ask("job", "cancel", jobs[-1])
        time.sleep(rng.uniform(0, 3))  # before, while or after a machine is made or removed
        world.server.kill()
        world.server.up()
    with world.explained(jobs):
        wait_for(lambda: world.are_over(jobs))
    stray = world.data / "sites" / "depot" / ".machines" / "depot-99.json"
    stray.write_text('{"address": "n-1", "at_s": 1}')  # made for a log that is lost
    wait_for(lambda: not world.depot.taken(world.data))
    wait_for(lambda: not _machines(world))
    world.server.down()
    events, fold = world.log()
    ordered = [event.node for event in events if isinstance(event, NodeOrdered)]
    assert sorted(ordered) == sorted(event.node for event in events if isinstance(event, NodeGone))
    assert not fold.fleet.cloud.machines
    costs = sum(machine.cost_microusd(0) for machine in fold.fleet.cloud.gone.values())
    assert fold.ledger.balance("provider:depot") == costs
    assert sum(fold.ledger.balances.values()) == 0
    assert {file.read_text() for file in world.folder.glob("ran-*")} <= {"x\n"}
    finished = [i for i, job in enumerate(jobs) if fold.fleet.jobs[job].phase == "finished"]
    assert all((world.folder / f"ran-{i}").exists() for i in finished)


def _machines(world: World) -> list[str]:
    _, fold = world.log()
    return list(fold.fleet.cloud.machines)
