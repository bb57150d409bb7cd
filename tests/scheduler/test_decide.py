"""Who runs, who waits and why."""

from __future__ import annotations

from brimful.fleet.events import CancelRequested, LeaseEnding
from brimful.scheduler.plan import Plan, Start, Stop
from tests.builders import USD, AFleet, a_fleet, a_job, a_node


def test_an_empty_fleet_decides_nothing() -> None:
    assert a_fleet().plan() == Plan()


def test_a_job_starts_where_it_leaves_the_smallest_hole() -> None:
    world = AFleet([a_node("large", gpus=8), a_node("small", gpus=2)]).waiting(a_job("a", gpus=2))
    start = Start(job="a", lease="a.1", node="small", gpus=(0, 1), microusd_per_gpu_hour=2 * USD)
    assert world.plan() == Plan(starts=[start])


def test_urgent_goes_first_and_fifo_does_not_care() -> None:
    world = a_fleet(gpus_per_node=1).waiting(a_job("patient", priority="background"), at_s=0)
    world.waiting(a_job("urgent", priority="urgent"), at_s=9)
    assert [s.job for s in world.plan().starts] == ["urgent"]
    assert [s.job for s in world.plan(order="fifo").starts] == ["patient"]


def test_small_jobs_do_not_overtake_a_blocked_gang_and_are_told_so() -> None:
    world = a_fleet(gpus_per_node=4).running(a_job("busy", gpus=2))
    plan = world.waiting(a_job("gang", gpus=4)).waiting(a_job("small")).plan(now_s=1)
    assert plan.starts == []
    assert plan.waits["gang"] == "wants 4 GPUs on one node; 2 free on the best node (2 in all)"
    assert plan.waits["small"].startswith("waits behind gang, which needs 4; wants 1 GPU")


def test_a_job_that_can_never_be_placed_blocks_nobody() -> None:
    world = a_fleet(gpus_per_node=2).waiting(
        a_job("giant", gpus=16), a_job("odd", gpu_types=("tpu",)), a_job("ok")
    )
    plan = world.plan()
    assert [s.job for s in plan.starts] == ["ok"]
    assert plan.waits["giant"] == "wants 16 GPUs (any type) on one node; the largest node has 2"
    assert plan.waits["odd"] == "wants GPUs of tpu; the fleet has h100"


def test_a_gang_is_never_split_over_two_nodes() -> None:
    world = (
        a_fleet(nodes=2, gpus_per_node=2).waiting(a_job("a", gpus=2)).running(a_job("x"), a_job("y", gpus=2))
    )
    assert world.plan().starts == []


def test_several_jobs_share_one_plan_without_sharing_a_gpu() -> None:
    plan = a_fleet(gpus_per_node=3).waiting(a_job("a"), a_job("b"), a_job("c"), a_job("d")).plan()
    assert [s.gpus for s in plan.starts] == [(0,), (1,), (2,)]
    assert list(plan.waits) == ["d"]


def test_a_cancelled_job_is_stopped_once() -> None:
    world = a_fleet().running(a_job("a")).then(CancelRequested(at_s=1, job="a"))
    assert world.plan(now_s=1) == Plan(stops=[Stop(lease="a.1", reason="cancelled")])
    world.then(LeaseEnding(at_s=1, lease="a.1", reason="cancelled", requeue=False))
    assert world.plan(now_s=2) == Plan()


def test_a_job_is_stopped_when_its_budget_is_used_up_and_not_before() -> None:
    world = a_fleet().running(a_job("a", budget_microusd=USD))  # half an hour at $2
    assert world.plan(now_s=1799).stops == []
    assert world.plan(now_s=1800).stops == [Stop(lease="a.1", reason="its budget of $1.00 is used up")]


def test_nothing_starts_at_a_site_that_cannot_be_reached() -> None:
    plan = a_fleet().waiting(a_job("a")).plan(unreachable={"here"})
    assert plan.starts == []
    assert "a" in plan.waits
