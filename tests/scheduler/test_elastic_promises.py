"""Random fleets and events again, with gangs that have a range of sizes."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from brimful.fleet.events import JobSubmitted
from brimful.fleet.job import Curve, Job, sizes_of
from brimful.fleet.node import Node
from brimful.scheduler.rules import Rules
from tests.scheduler.test_promises import MIXED_RULES, RULES, Promises, jobs, nodes

RANGES = [(1, 2), (1, 8), (2, 4), (2, 12), (3, 6), (4, 16)]
CURVES: list[tuple[Curve, ...]] = [
    (),
    (("", ((1, 1.0), (4, 2.0), (16, 2.1))),),
    (("new", ((2, 1.9), (8, 7.0))),),
]


class ElasticPromises(Promises):
    """No GPU twice, gangs whole, nothing lost: all that holds for one size, and the range besides."""

    @initialize(rules=st.sampled_from([*RULES, *MIXED_RULES]), new=nodes, old=nodes, quick=st.booleans())
    def begin(self, rules: Rules, new: Node, old: Node, quick: bool) -> None:
        rules = replace(rules, min_run_s=0, fresh_s=30.0) if quick else rules
        self._begin(rules, [replace(new, node="n0"), replace(old, node="n1")])

    @rule(
        job=jobs,
        least_most=st.sampled_from(RANGES),
        curves=st.sampled_from(CURVES),
        work_s=st.integers(0, 4000),
    )
    def submit_elastic(
        self, job: Job, least_most: tuple[int, int], curves: tuple[Curve, ...], work_s: int
    ) -> None:
        least, most = least_most
        name = f"j{len(self.work_s)}"
        self.work_s[name] = work_s
        job = replace(job, job=name, gpus=least, min_gpus=least, max_gpus=most, curves=curves)
        self._write(JobSubmitted(at_s=self.engine.now_s, job=job))

    @invariant()
    def every_gang_has_a_size_of_its_range_and_waits_for_its_least(self) -> None:
        for state in self.fleet.elastic.values():
            job, lease = state.job, state.open_lease
            assert job.gpus in sizes_of(job)
            assert job.min_gpus <= job.gpus <= job.max_gpus
            if lease is None:
                assert job.gpus == job.min_gpus
            else:
                assert lease.size == job.gpus


HISTORIES = int(os.environ.get("BRIMFUL_HISTORIES", "25"))
ElasticPromises.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=25, deadline=None)
TestElasticPromises = ElasticPromises.TestCase
