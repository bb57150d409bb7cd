"""The policy you rehearse is the policy you run: the same jobs through a rehearsal and through a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.stores.sql import SqlStore
from brimful.cli.main import main
from brimful.cli.operate import demo
from brimful.client.settings import read_settings
from brimful.fleet.events import Event, LeaseEnding, LeaseGranted
from brimful.fleet.job import Job
from brimful.fleet.metrics import measure
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.language import words
from brimful.scheduler.policies import POLICIES, read_policy
from brimful.scheduler.rules import Rules
from brimful.server.run.main import banner
from brimful.server.service.history import History
from brimful.server.service.service import Service
from brimful.sim.fleets import parse_fleet
from brimful.sim.kernel import Kernel
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, Due, TimedEngine, rehearse
from brimful.units import HOUR_S
from tests.builders import a_node
from tests.server.builders import MemoryHistory

SMALL = Path(__file__).parents[2] / "examples" / "small.csv"
DEFAULT = read_settings({}, env={}).chosen_policy


class LiveServer:
    """A server that looks every second of its clock, on an engine that only keeps time."""

    def __init__(self, store: History, nodes: Sequence[Node], rules: Rules = DEFAULT.rules) -> None:
        self.store, self.now_s = store, 0
        self.work_s: dict[str, float] = {}
        self.kernel: Kernel[Due] = Kernel()
        self.engine = TimedEngine(nodes, self.work_s, self.kernel)
        self.restart(rules)

    def restart(self, rules: Rules) -> None:
        """Another server on the same store and the same engine."""
        self.service = Service(self.store, [self.engine], rules, clock=lambda: self.now_s)
        self.service.reader.refresh()

    def run(
        self, arrivals: Sequence[Arrival], *, until_s: int = -1, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Second by second; within one, look again as long as anything changes, as the loop does."""
        todo = [each for each in arrivals if each.at_s >= self.now_s]
        while todo or self._goes_on():
            self.engine.now_s = self.now_s
            while todo and todo[0].at_s == self.now_s:
                self._submit(todo.pop(0))
            while True:
                for what in self.kernel.due(self.now_s):
                    if isinstance(what, str):
                        self.engine.finish(what)
                self.service.driver.tick()
                if self.kernel.next_s() != self.now_s:
                    break
            watch()
            if self.now_s == until_s:
                return
            self.now_s += 1

    def _goes_on(self) -> bool:
        fleet = self.service.reader.fleet
        could = [state for state in fleet.waiting.values() if fleet.able_pools(state.shape)]
        return bool(could or fleet.open_leases)

    def _submit(self, arrival: Arrival) -> None:
        self.work_s[arrival.job.job] = arrival.work_s
        assert self.service.submissions.submit(arrival.job).job.job == arrival.job.job

    @property
    def log(self) -> list[Event]:
        events: list[Event] = []
        while more := self.store.since(len(events)):
            events += more
        return events


def small(*, known: bool = False, **more: Any) -> list[Arrival]:
    """The jobs of examples/small.csv under the names a server gives them: names break ties."""
    return [
        replace(
            each,
            job=replace(
                each.job,
                job=f"job-{i}",
                predicted_work_s=each.work_s if known else None,
                name=each.job.job,
                **more,
            ),
        )
        for i, each in enumerate(read([str(SMALL)])[0].arrivals, start=1)
    ]


def decisions(log: Sequence[Event]) -> list[LeaseGranted | LeaseEnding]:
    """Who starts when, where and at what price, and who is stopped when and why, in order."""
    return [event for event in log if isinstance(event, LeaseGranted | LeaseEnding)]


@pytest.mark.parametrize("policy", ["", *sorted(POLICIES)], ids=lambda name: name or "the default")
@pytest.mark.parametrize("known", [False, True], ids=["hidden", "known"])
def test_a_server_decides_what_a_rehearsal_decided(policy: str, known: bool) -> None:
    rules = read_policy(policy).rules if policy else DEFAULT.rules
    arrivals, nodes = small(known=known), parse_fleet("2x4")
    outcome = rehearse(arrivals, nodes, rules)

    live = LiveServer(MemoryHistory(), nodes, rules)
    live.run(arrivals)

    assert decisions(live.log) == decisions(outcome.log)
    told = measure(outcome.fleet, now_s=outcome.end_s)
    assert told.mean_delay_s is not None
    assert live.service.reader.fleet.finished.delay_s == pytest.approx(told.mean_delay_s * len(arrivals))


def test_a_server_on_a_database_decides_what_a_rehearsal_decided(tmp_path: Path) -> None:
    """On two GPU types at two prices, so that reviews and moves are in it; for an hour."""
    arrivals, nodes = small(rates=(("new", 2.5), ("old", 1.0))), parse_fleet("1x4:new@2+1x4:old@0.5")
    outcome = rehearse(arrivals, nodes, DEFAULT.rules)
    hour = [event for event in decisions(outcome.log) if event.at_s <= HOUR_S]
    used = {(each.job, each.node) for each in hour if isinstance(each, LeaseGranted)}
    assert len(used) > len({job for job, _ in used}), "some have changed the type"

    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    live = LiveServer(store, nodes)
    live.run(arrivals, until_s=HOUR_S)

    assert decisions(live.log) == hour
    store.close()


def test_the_default_of_simulate_is_what_a_server_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(SMALL), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["data"]["runs"]
    assert run["policy"] == DEFAULT.text
    live = LiveServer(MemoryHistory(), parse_fleet("2x4"))
    live.run(small())
    assert run["mean_delay_h"] == pytest.approx(
        live.service.reader.fleet.finished.delay_s / 3600 / run["jobs"]
    )


def test_the_banner_says_which_policy_runs(tmp_path: Path) -> None:
    settings = read_settings({"data": str(tmp_path), "policy": "fifo?types=cheap", "min_run_s": "7"}, env={})
    assert " fifo?types=cheap&min_run_s=7\n" in banner("http://x", settings, Fleet(), [])


def test_the_banner_says_where_bids_decide_instead_of_the_policy(tmp_path: Path) -> None:
    given = {"data": str(tmp_path), "policy": "fifo"}
    said = words("market.decides.all")
    assert f" {said}\n" in banner("http://x", read_settings({**given, "market": "all"}, env={}), Fleet(), [])
    assert said not in banner("http://x", read_settings(given, env={}), Fleet(), [])


def test_commands_to_try_name_a_data_folder_that_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    elsewhere = str(tmp_path / "a folder")
    for data, prefixed in ((str(tmp_path / "brimful"), 0), (elsewhere, 2)):
        shown = banner("http://x", read_settings({"data": data}, env={}), Fleet(), [])
        assert shown.count(f"BRIMFUL_DATA='{elsewhere}' ") == shown.count("BRIMFUL_DATA=") == prefixed


def test_the_banner_offers_to_declare_gpus_only_where_nobody_did(tmp_path: Path) -> None:
    node = replace(a_node(gpus=4, gpu="slot"), site="local")
    for slots, offered in (("0", True), ("4", False)):
        settings = read_settings({"data": str(tmp_path), "slots": slots}, env={})
        assert ("--slots" in banner("http://x", settings, Fleet(), [node])) == offered


def test_the_banner_says_which_sites_are_only_watched_and_how_to_read_of_them(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text('[hpc]\nengine = "slurm"\nmode = "observe"\n')
    given = {"data": str(tmp_path), "sites": str(tmp_path / "sites.toml"), "engines": "/shared/state"}
    shown = banner("http://x", read_settings(given, env={}), Fleet(), [])
    assert "hpc: only watched" in shown
    assert "BRIMFUL_ENGINES=/shared/state BRIMFUL_DATA=" in shown
    assert "admin observed hpc" in shown


def test_commands_to_try_are_ones_that_work(tmp_path: Path) -> None:
    for users, first in (
        ("", "submit -- "),
        ("default=1001,red=1002", "submit -- "),
        ("red=1002,blue=1003", "admin tokens add alice --tenant blue\n"),
    ):
        settings = read_settings({"data": str(tmp_path), "job_users": users}, env={})
        assert f"brimful {first}" in banner("http://x", settings, Fleet(), [])


def test_a_server_goes_on_under_another_policy(tmp_path: Path) -> None:
    arrivals = small()
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    live = LiveServer(store, parse_fleet("2x4"), read_policy("fifo").rules)
    live.run(arrivals, until_s=1500)
    before = live.log
    held = dict(live.service.reader.fleet.open_leases)
    assert held
    assert len(live.service.reader.fleet.waiting)
    assert not [event for event in before if isinstance(event, LeaseEnding)], "fifo stops nobody"

    live.restart(DEFAULT.rules)
    assert live.service.reader.fleet.open_leases == held
    live.now_s += 1
    live.run(arrivals, until_s=HOUR_S)

    assert live.log[: len(before)] == before
    assert [event for event in live.log if isinstance(event, LeaseEnding)]
    done = {name for name, state in live.service.reader.fleet.jobs.items() if state.phase == "finished"}
    assert done >= {"job-8", "job-11"}, "the urgent ones"
    store.close()


def test_the_demo_leaves_no_gpu_idle_that_a_waiting_job_could_use() -> None:
    """Six of eight GPUs used to stand idle behind a gang of eight."""
    story = [
        Arrival(
            at_s=at_s, job=Job(job=f"job-{i}", gpus=gpus, priority=priority, tenant=tenant), work_s=lasts_s
        )
        for i, (at_s, tenant, _, gpus, priority, lasts_s, _, _) in enumerate(demo.STORY, start=1)
    ]
    rules = read_settings(demo.SETTINGS, env={}).chosen_policy.rules
    live = LiveServer(MemoryHistory(), parse_fleet("1x8"), rules)
    idle: list[tuple[int, int, str]] = []

    def look() -> None:
        fleet = live.service.reader.fleet
        free = 8 - sum(lease.size for lease in fleet.open_leases.values())
        idle.extend(
            (live.now_s, free, name) for name in fleet.waiting if fleet.waiting[name].job.gpus <= free
        )

    live.run(story, watch=look)

    assert not idle
    assert live.service.reader.fleet.finished.jobs == len(story) - 1, "one asks for more GPUs than there are"
    assert any(state.preemptions for state in live.service.reader.fleet.jobs.values()), (
        "the story has urgent jobs"
    )
