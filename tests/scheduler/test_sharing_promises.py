"""Random fleets and events again, with jobs that share a GPU."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from brimful.fleet.job import WHOLE_GPU, Job, Pairs
from brimful.fleet.lease import Lease
from brimful.fleet.memory import usable_bytes
from brimful.fleet.node import Node
from brimful.scheduler.rules import Rules
from tests.scheduler.test_promises import MIXED_RULES, RULES, Promises, jobs, nodes

TYPES = ("rtx-4070", "t4")
GIB = 1 << 30
PAIRS: list[tuple[Pairs, ...]] = [
    (),
    (("rtx-4070", (("a", 0.9), ("b", 0.7))), ("t4", (("b", 0.6),))),
    (("rtx-4070", (("a", 0.5), ("b", 0.3))),),
]
sharers = st.builds(
    Job,
    job=st.just(""),
    gpus=st.just(1),
    name=st.sampled_from("ab"),
    priority=st.sampled_from(["normal", "background"]),
    queue=st.sampled_from("ab"),
    pairs=st.sampled_from(PAIRS),
    compute_milli=st.sampled_from([1, 300, 700, WHOLE_GPU]),
    gpu_memory_bytes=st.sampled_from([0, GIB, 5 * GIB, 10 * GIB]),
    predicted_work_s=st.none() | st.floats(1, 1000),
    checkpoint_interval_s=st.sampled_from([None, 0, 10]),
    checkpoint_cost_s=st.integers(0, 20),
    max_run_s=st.none() | st.integers(1, 500),
)


class SharingPromises(Promises):
    """Two tenants at most, whose memory fits, each as fast as the other lets it be; and nothing is lost."""

    @initialize(rules=st.sampled_from([*RULES, *MIXED_RULES]), one=nodes, other=nodes, quick=st.booleans())
    def begin(self, rules: Rules, one: Node, other: Node, quick: bool) -> None:
        rules = replace(rules, share=True)
        # By makespan the longest go first and the shortest may stop others: with a least run of 0 s two of
        # known and unknown length take turns, whether or not GPUs are shared.
        if quick and rules.objective == "jct":
            rules = replace(rules, min_run_s=0, fresh_s=30.0, rerank_s=60)
        few = [replace(one, node="n0", gpu=TYPES[0]), replace(other, node="n1", gpu=TYPES[1])]
        self._begin(rules, [replace(node, gpus=min(node.gpus, 3)) for node in few])

    @rule(node=nodes, gpu=st.sampled_from(TYPES))
    def node_comes_or_changes(self, node: Node, gpu: str) -> None:
        self.engine.change(replace(node, gpu=gpu, gpus=min(node.gpus, 3)))

    @rule(crowd=st.lists(sharers, min_size=4, max_size=8), work_s=st.integers(0, 4000))
    def a_crowd_comes(self, crowd: list[Job], work_s: int) -> None:
        """More than there are GPUs, so that some find one only beside another."""
        for job in crowd:
            super().submit(job, work_s)
        self.time_passes(1)

    @rule(job=jobs, work_s=st.integers(0, 400))
    def submit(self, job: Job, work_s: int) -> None:
        super().submit(replace(job, gpu_types=(), rates=()), work_s)

    def _tenants(self) -> dict[tuple[str, int], list[Lease]]:
        held: defaultdict[tuple[str, int], list[Lease]] = defaultdict(list)
        for lease in self.fleet.open_leases.values():
            for node, gpus in lease.parts:
                for gpu in gpus:
                    held[node, gpu].append(lease)
        return held

    @invariant()
    def no_gpu_has_two_tenants_and_gangs_are_whole(self) -> None:
        """A GPU has a second tenant only where both hold half of it."""
        held = self._tenants()
        for tenants in held.values():
            assert sum(lease.gpu_milli for lease in tenants) <= WHOLE_GPU
        for name in self.fleet.nodes:
            assert not {(name, gpu) for gpu in self.fleet.free(name)} & set(held)
        for lease in self.fleet.open_leases.values():
            assert sum(len(gpus) for _, gpus in lease.parts) == self.fleet.jobs[lease.job].job.gpus

    @invariant()
    def memory_is_never_oversubscribed(self) -> None:
        for tenants in self._tenants().values():
            usable = usable_bytes(tenants[0].gpu)
            assert usable is not None
            assert sum(self.fleet.jobs[lease.job].job.gpu_memory_bytes for lease in tenants) <= usable

    @invariant()
    def the_fleet_knows_how_fast_everybody_is(self) -> None:
        """By the log alone, as the world runs them."""
        if self.engine._news or self.fleet.seq < len(self.store.log):
            return
        for name, run in self.engine._running.items():
            lease = self.fleet.open_leases[name]
            assert lease.speed == pytest.approx(run.speed)
            done_s = run.done_s(self.engine.now_s)
            assert lease.done_s(self.engine.now_s) == pytest.approx(done_s, abs=1e-6)

    @invariant()
    def turns_are_counted(self) -> None:
        now_s = self.engine.now_s
        turns = [lease for lease in self.fleet.open_leases.values() if lease.turn_until_s > now_s]
        assert self.fleet.turns.gpus(now_s) == sum(each.size * each.gpu_milli / WHOLE_GPU for each in turns)


HISTORIES = int(os.environ.get("BRIMFUL_HISTORIES", "25"))
SharingPromises.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=25, deadline=None)
TestSharingPromises = SharingPromises.TestCase
