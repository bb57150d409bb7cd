"""Who is given the next GPU, and who gives one up."""

from __future__ import annotations

import pytest

from brimful.fleet.events import LeaseEnded, LeaseEnding, LeaseGranted, LeaseStarted
from brimful.fleet.job import Job, sizes_of, speedup
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Quota, Rules
from tests.builders import AFleet, a_fleet, a_job, a_node, code_of

BRIM = POLICIES["brim"]
LINEAR = (("", ((1, 1.0), (16, 16.0))),)
FLAT = (("", ((1, 1.0), (16, 1.001))),)


def elastic(name: str, least: int = 1, most: int = 8, *, curves: object = LINEAR, **more: object) -> Job:
    given = {"predicted_work_s": 10_000.0, "checkpoint_interval_s": 0, "checkpoint_cost_s": 30} | more
    return a_job(name, gpus=least, min_gpus=least, max_gpus=most, curves=curves, **given)  # type: ignore[arg-type]


def sizes(plan: Plan) -> dict[str, int]:
    return {s.job: len(s.gpus) + sum(len(gpus) for _, gpus in s.rest) for s in plan.starts}


def running(fleet: AFleet, job: Job, gpus: range, node: str = "node-0") -> AFleet:
    lease = f"{job.job}.1"
    grant = LeaseGranted(
        at_s=0, lease=lease, job=job.job, node=node, gpus=tuple(gpus), microusd_per_gpu_hour=0
    )
    return fleet.waiting(job).then(grant, LeaseStarted(at_s=0, lease=lease))


def test_a_gang_alone_starts_at_its_largest_size() -> None:
    assert sizes(a_fleet().waiting(elastic("a")).plan(rules=BRIM)) == {"a": 8}


def test_a_gang_that_gains_nothing_keeps_its_smallest() -> None:
    plan = a_fleet().waiting(elastic("a", curves=FLAT), elastic("b")).plan(rules=BRIM)
    assert sizes(plan)["a"] == 1
    assert sizes(plan)["b"] > 1


def test_two_alike_share_what_there_is() -> None:
    slower = (("", ((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.0))),)
    plan = a_fleet().waiting(elastic("a", curves=slower), elastic("b", curves=slower)).plan(rules=BRIM)
    assert sizes(plan) == {"a": 4, "b": 4}


def test_sizes_divide_the_largest_so_that_the_effective_batch_stays() -> None:
    assert sizes_of(elastic("a", 2, 12)) == [2, 3, 4, 6, 12]


def test_without_a_curve_a_twentieth_of_a_step_does_not_shrink() -> None:
    job = a_job("a", gpus=16, min_gpus=1, max_gpus=16)
    assert speedup(job, "h100") == pytest.approx(16 / 1.75)


def test_a_running_gang_grows_when_others_have_left_and_the_restart_pays() -> None:
    fleet = running(a_fleet(), elastic("a"), range(2))
    plan = fleet.plan(rules=BRIM, now_s=1200)
    assert [(s.lease, code_of(s.reason), s.requeue) for s in plan.stops] == [
        ("a.1", "scheduler.resized", True)
    ]
    fleet.carry_out(plan).then(LeaseEnded(at_s=1201, lease="a.1", exit_code=None, kept_work_s=2400.0))
    assert fleet.fleet.jobs["a"].job.gpus == 1
    assert sizes(fleet.plan(rules=BRIM, now_s=1201)) == {"a": 8}


def test_a_gang_that_is_nearly_done_is_left_alone() -> None:
    fleet = running(a_fleet(), elastic("a", predicted_work_s=2500.0), range(2))
    assert not fleet.plan(rules=BRIM, now_s=1200).stops


def test_a_gang_that_would_lose_all_it_did_is_left_alone() -> None:
    fleet = running(a_fleet(), elastic("a", checkpoint_interval_s=None), range(4))
    assert not fleet.plan(rules=BRIM, now_s=2000).stops


def test_a_wide_gang_makes_room_for_one_that_waits_and_is_never_below_its_least() -> None:
    fleet = running(a_fleet(), elastic("wide", 4, 8), range(8)).waiting(a_job("rigid", gpus=4), at_s=600)
    plan = fleet.plan(rules=BRIM, now_s=600)
    assert [s.lease for s in plan.stops] == ["wide.1"]
    fleet.carry_out(plan).then(LeaseEnded(at_s=601, lease="wide.1", exit_code=None, kept_work_s=100.0))
    assert sizes(fleet.plan(rules=BRIM, now_s=601)) == {"wide": 4, "rigid": 4}


def test_nobody_starts_while_a_gang_that_is_resized_has_not_left() -> None:
    fleet = running(a_fleet(), elastic("a"), range(2))
    fleet.then(*fleet.plan(rules=BRIM, now_s=1200).stops).waiting(elastic("b"), at_s=1201)
    assert not fleet.plan(rules=BRIM, now_s=1201).starts


def test_a_gang_stopped_for_another_reason_holds_up_nobody() -> None:
    fleet = running(a_fleet(), elastic("a"), range(2))
    fleet.then(LeaseEnding(at_s=5, lease="a.1", reason=None, requeue=True)).waiting(elastic("b"), at_s=6)
    assert sizes(fleet.plan(rules=BRIM, now_s=6)) == {"b": 4}


def test_a_gang_grows_no_further_than_its_queue_may_hold() -> None:
    rules = Rules(
        order="priority", quotas=(Quota(queue="q", gpus=2, borrow_gpus=0), Quota(queue="r", gpus=6))
    )
    assert sizes(a_fleet().waiting(elastic("a", queue="q")).plan(rules=rules)) == {"a": 2}


def test_the_type_that_suits_it_counts_the_restart() -> None:
    nodes = [a_node("node-0", gpu="old", gpus=4), a_node("node-1", gpu="new", gpus=4)]
    job = elastic("a", most=4, rates=(("old", 1.0), ("new", 3.0)))
    fleet = running(AFleet(nodes), job, range(4))
    assert [s.lease for s in fleet.plan(rules=BRIM, now_s=600).stops] == ["a.1"]


def test_a_job_without_a_range_is_never_resized() -> None:
    fleet = running(a_fleet(), elastic("a", 1, 2), range(2)).running(
        a_job("b", gpus=2, predicted_work_s=10**6)
    )
    assert not fleet.plan(rules=BRIM, now_s=7200).stops


def test_two_gangs_of_one_queue_hold_no_more_together_than_it_may() -> None:
    rules = Rules(
        order="priority", quotas=(Quota(queue="q", gpus=3, borrow_gpus=0), Quota(queue="r", gpus=5))
    )
    fleet = a_fleet().waiting(elastic("a", queue="q"), elastic("b", queue="q"))
    found = sizes(fleet.plan(rules=rules))
    assert set(found) == {"a", "b"}
    assert sum(found.values()) <= 3


def test_a_gang_on_scattered_gpus_starts_as_wide_as_one_node_allows() -> None:
    fleet = a_fleet(nodes=2, gpus_per_node=4).running(*(a_job(f"r{i}", gpus=2) for i in range(4)))
    fleet.then(*[LeaseEnded(at_s=1, lease=f"r{i}.1", exit_code=0) for i in (0, 2)])
    assert sizes(fleet.waiting(elastic("a", most=4), at_s=2).plan(rules=BRIM, now_s=2)) == {"a": 2}
