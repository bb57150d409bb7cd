"""Elastic gangs in a rehearsal: work is the same at every size, and Sia's profiles are as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.scheduler.policies import POLICIES
from brimful.sim.bound import bound
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse
from tests.builders import a_node, refuses

BRIM = POLICIES["brim"]
LINEAR = (("", ((1, 1.0), (8, 8.0))),)


def elastic(name: str, **more: object) -> Job:
    given = {"checkpoint_interval_s": 0, "checkpoint_cost_s": 10, "curves": LINEAR} | more
    return Job(job=name, gpus=1, min_gpus=1, max_gpus=8, **given)  # type: ignore[arg-type]


def rigid(name: str, gpus: int) -> Job:
    return Job(job=name, gpus=gpus, checkpoint_interval_s=0)


def test_a_gang_alone_runs_at_its_largest_size_and_meets_the_bound() -> None:
    arrivals, nodes = [Arrival(at_s=0, job=elastic("a"), work_s=8000.0)], [a_node(gpus=8)]
    outcome = rehearse(arrivals, nodes, BRIM)
    assert outcome.fleet.jobs["a"].ended_s == 1000
    assert bound(arrivals, nodes).mean_jct_s == pytest.approx(1000.0)


def test_a_gang_shrinks_for_another_and_grows_again_and_no_work_is_lost() -> None:
    arrivals = [
        Arrival(at_s=0, job=elastic("a"), work_s=80_000.0),
        Arrival(at_s=2000, job=rigid("b", 4), work_s=3000.0),
    ]
    fleet = rehearse(arrivals, [a_node(gpus=8)], BRIM).fleet
    assert [lease.size for lease in fleet.jobs["a"].leases] == [8, 4, 8]
    assert fleet.jobs["b"].leases[0].started_s == 2000
    assert fleet.jobs["a"].kept_work_s == pytest.approx(80_000.0)
    # 2,000 s on eight, a restart and 3,000 s on four beside b, and what is left after another restart.
    assert fleet.jobs["a"].ended_s == 2000 + 3000 + 10 + (80_000 - 16_000 - 2990 * 4) // 8


def test_hardly_any_gang_is_sent_about() -> None:
    arrivals = [
        Arrival(at_s=i * 400, job=elastic(f"j{i}", checkpoint_cost_s=60), work_s=2000.0 + 700 * (i % 7))
        for i in range(60)
    ]
    fleet = rehearse(arrivals, [a_node("node-0", gpus=8), a_node("node-1", gpus=8)], BRIM).fleet
    assert all(state.phase == "finished" for state in fleet.jobs.values())
    assert sum(state.preemptions for state in fleet.jobs.values()) / len(fleet.jobs) <= 5


PLACEMENTS = "placement,local_bsz,step_time,sync_time\n" + "".join(
    f"{placement},{bsz},{0.1 * bsz / 8 + sync},{sync}\n"
    for placement, sync in (("1", 0.0), ("2", 0.02), ("4", 0.04), ("44", 0.5))
    for bsz in (4, 8)
)
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n1000,1000,1,1.0,0.0\n2000,2000,1,1.0,0.0\n"
WORKLOAD = "name,time,application,num_replicas,batch_size\nbert-0,0,bert,2,16\n"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    folder = tmp_path / "traces" / "bert"
    folder.mkdir(parents=True)
    for cluster in ("aws", "rtx", "dgx-ext"):
        (folder / f"placements-{cluster}.csv").write_text(PLACEMENTS)
    for batch in (8, 16, 32):
        (folder / f"validation-{batch}.csv").write_text(VALIDATION)
    (tmp_path / "jobs.csv").write_text(WORKLOAD)
    return tmp_path


def test_a_job_of_one_size_takes_the_time_of_its_steps(profiles: Path) -> None:
    trace, _ = read([f"{profiles}/jobs.csv?profiles={profiles}/traces"])
    (arrival,) = trace.arrivals
    # Without noise a larger batch gains nothing: 2,000 steps of 0.12 s, and Sia's slowdown of 1.2.
    assert arrival.work_s == pytest.approx(2000 * 0.12 * 1.2)
    assert (arrival.job.gpus, arrival.job.max_gpus, arrival.job.checkpoint_cost_s) == (2, 0, 120)
    assert arrival.first_s == 120


def test_an_elastic_one_accumulates_on_fewer_gpus_and_scales_as_measured(profiles: Path) -> None:
    trace, _ = read([f"{profiles}/jobs.csv?profiles={profiles}/traces&gpus=1..4"])
    job = trace.arrivals[0].job
    assert (job.min_gpus, job.max_gpus) == (1, 4)
    one, two, four = 0.2, 0.12, 0.09  # one GPU: two micro-batches of 8 a step
    assert dict(dict(job.curves)["t4"]) == pytest.approx({1: 1.0, 2: one / two, 4: one / four})


def test_sizes_need_profiles_and_profiles_an_application(profiles: Path) -> None:
    with refuses(BadInput, "sim.sia_needs_profiles"):
        read([f"{profiles}/jobs.csv?gpus=1..4"])
    with refuses(BadInput, "sim.sia_no_profile"):
        read([f"{profiles}/jobs.csv?profiles={profiles}"])
