"""Random fleets of one GPU type and events again, with small jobs that are moved for gangs."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from brimful.fleet.events import LeaseEnding
from brimful.fleet.job import Job
from brimful.fleet.moves import MOVED
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Failures, Observation
from brimful.scheduler.rules import Rules
from brimful.sim.world import SITE
from brimful.units import HOUR_S
from tests.builders import code_of
from tests.scheduler.test_promises import QUOTA, ChangingEngine, Promises

FAST = {"rerank_s": 30, "min_run_s": 0, "fresh_s": 200.0}
RULES = [
    replace(rules, moves=moves, **FAST)  # type: ignore[arg-type]
    for rules in (*POLICIES.values(), replace(POLICIES["brim"], quotas=QUOTA))
    for moves in (0.3, 1.0)
]
NAMES = ("n0", "n1", "n2", "n3")
small = st.builds(
    Job,
    job=st.just(""),
    gpus=st.integers(1, 2),
    within=st.just("node"),
    priority=st.sampled_from(["normal", "normal", "background"]),
    queue=st.sampled_from(["a", "b"]),
    predicted_work_s=st.none() | st.floats(1, 4000),
    checkpoint_interval_s=st.sampled_from([0, 0, 10, None]),
    checkpoint_cost_s=st.integers(0, 20),
    min_run_s=st.sampled_from([0, 0, 100]),
)
gangs = st.builds(
    Job,
    job=st.just(""),
    gpus=st.integers(3, 6),
    within=st.sampled_from(["node", "node", "nvlink", "rack"]),
    queue=st.sampled_from(["a", "b"]),
    checkpoint_interval_s=st.just(0),
)


class SlowEngine(ChangingEngine):
    """Its stops take a few seconds, in which others look for a place."""

    slow_s = 0

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        if not self.slow_s:
            return super().stop(leases, grace_s=grace_s)
        self.stopping = {**getattr(self, "stopping", {}), **dict.fromkeys(leases, self.now_s + self.slow_s)}
        self._kernel.at(self.now_s + self.slow_s, None)
        return {}

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        due = [lease for lease, at_s in getattr(self, "stopping", {}).items() if at_s <= self.now_s]
        super().stop(due, grace_s=0)
        return super().observe(leases)


class MovePromises(Promises):
    """No GPU twice, gangs whole, nothing lost: all that held before, and moves are few and paid for."""

    @initialize(
        rules=st.sampled_from(RULES),
        sizes=st.lists(st.sampled_from([4, 6, 6]), min_size=2, max_size=4),
        slow_s=st.sampled_from([0, 0, 3, 40]),
    )
    def begin(self, rules: Rules, sizes: list[int], slow_s: int) -> None:
        nodes = [self._node(name, gpus) for name, gpus in zip(NAMES, sizes, strict=False)]
        self._begin(rules, nodes)
        self.engine = SlowEngine(nodes, self.work_s, self.kernel)
        self.engine.slow_s = slow_s
        self.ports = replace(self.ports, engines={SITE: self.engine})
        self.told, self.running = Fleet(), 0
        self.moved: list[tuple[int, str]] = []

    def _node(self, name: str, gpus: int) -> Node:
        rack = "r0" if name < "n2" else "r1"
        node = Node(site=SITE, node=name, gpu="new", gpus=gpus, microusd_per_gpu_hour=1, declared=True)
        return replace(node, rack=rack, nvlink_gpus=2 * (gpus == 4))

    @rule(
        job=small,
        works_s=st.lists(st.integers(50, 6000), min_size=4, max_size=20),
        gang=gangs,
        seconds=st.integers(50, 3000),
    )
    def small_jobs_leave_gaps_and_a_gang_comes(
        self, job: Job, works_s: list[int], gang: Job, seconds: int
    ) -> None:
        for work_s in works_s:
            self.submit(job, work_s)
        self.time_passes(seconds)
        self.submit(gang, 500)
        self.time_passes(200)

    @rule(name=st.sampled_from(NAMES), gpus=st.sampled_from([4, 6]))
    def node_comes_or_changes(self, name: str, gpus: int) -> None:
        self.engine.change(self._node(name, gpus))

    @invariant()
    def few_move_and_nobody_twice_in_an_hour(self) -> None:
        for event in self.store.log[self.told.seq :]:
            if not isinstance(event, LeaseEnding):
                self.told.apply(event)
                self.running = len(self.told.running)  # when the next stops are decided
                continue
            self.moved = [(at_s, job) for at_s, job in self.moved if at_s > event.at_s - HOUR_S]
            self.told.apply(event)
            if code_of(event.reason) == MOVED:
                job = self.told.leases[event.lease].job
                assert job not in [each for _, each in self.moved]
                self.moved.append((event.at_s, job))
                assert len(self.moved) <= self.policy.moves * self.running


HISTORIES = int(os.environ.get("BRIMFUL_HISTORIES", "40"))
MovePromises.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=15, deadline=None)
TestMovePromises = MovePromises.TestCase
