"""What breaks, breaks the same way from the same seed, and nothing is lost by it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from brimful.fleet.job import Job
from brimful.fleet.lease import JobState
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler.policies import POLICIES
from brimful.sim.faults import Faults
from brimful.sim.world import Arrival, Outcome, rehearse
from tests.builders import code_of

NODE = Node(site="sim", node="n0", gpu="g", gpus=4, microusd_per_gpu_hour=0, declared=True)
NODES = [replace(NODE, node=f"n{i}") for i in range(4)]
BAD_DAYS = Faults(
    node_losses_per_day=4.0,
    slow_share=0.25,
    failed_starts=0.1,
    lost_checkpoints=0.1,
    outages_per_day=4.0,
)


def some_jobs(**more: object) -> list[Arrival]:
    job = Job(job="", gpus=1, within="any", retries=1000, checkpoint_interval_s=600, checkpoint_cost_s=30)
    return [
        Arrival(
            at_s=200 * i,
            job=replace(job, job=f"j{i}", gpus=1 + i % 6, **more),  # type: ignore[arg-type]
            work_s=600 + 97 * (i % 13),
        )
        for i in range(120)
    ]


def one_tenant_per_gpu(fleet: Fleet) -> None:
    held: set[tuple[str, int]] = set()
    for lease in fleet.open_leases.values():
        mine = {(node, gpu) for node, gpus in lease.parts for gpu in gpus}
        assert len(mine) == fleet.jobs[lease.job].job.gpus
        assert not mine & held
        held |= mine
    for name in fleet.nodes:
        assert not held & {(name, gpu) for gpu in fleet.free(name)}


def run(faults: Faults, *, policy: str = "brim", seed: int = 7) -> Outcome:
    return rehearse(some_jobs(), NODES, POLICIES[policy], faults=faults, seed=seed, watch=one_tenant_per_gpu)


@pytest.mark.parametrize("policy", ["fifo", "las", "brim", "fair"])
def test_every_job_finishes_its_work_whatever_breaks(policy: str) -> None:
    outcome = run(BAD_DAYS, policy=policy)
    for arrival in some_jobs():
        state = outcome.fleet.jobs[arrival.job.job]
        assert state.phase == "finished"
        assert state.kept_work_s == pytest.approx(arrival.work_s)


def test_a_lost_node_costs_its_gangs_the_work_since_the_last_checkpoint() -> None:
    outcome = run(Faults(node_losses_per_day=6.0))
    lost = [lease for lease in outcome.fleet.leases.values() if code_of(lease.reason) == "sim.node_lost"]
    assert lost
    for lease in lost:
        assert lease.ended_s is not None
        done = lease.speed * max(0, lease.billed_s(lease.ended_s) - lease.setup_s)
        assert lease.kept_work_s == pytest.approx(done - done % 600)


def test_a_silent_site_is_waited_for_and_its_jobs_run_on() -> None:
    outcome = run(Faults(outages_per_day=20.0, outage_s=1800))
    assert all(state.phase == "finished" for state in outcome.fleet.jobs.values())
    assert all(state.failures == 0 for state in outcome.fleet.jobs.values())


def test_a_job_without_tries_left_fails_and_says_why() -> None:
    outcome = rehearse(
        some_jobs(retries=0), NODES, POLICIES["fifo"], faults=Faults(failed_starts=0.2), seed=1
    )
    failed: list[JobState] = [s for s in outcome.fleet.jobs.values() if s.phase == "failed"]
    assert failed
    assert all(code_of(state.reason) == "sim.could_not_start" for state in failed)


def test_another_seed_breaks_other_things() -> None:
    assert run(BAD_DAYS, seed=1).log != run(BAD_DAYS, seed=2).log


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    script = (
        "import hashlib; from tests.sim.test_faults import BAD_DAYS, run;"
        "print(hashlib.sha256(repr(run(BAD_DAYS).log).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
