"""Who runs, who waits and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.fleet.events import (
    BudgetSet,
    CancelRequested,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
)
from brimful.fleet.job import Job
from brimful.language import Usd, count, say, verbatim
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from tests.builders import USD, AFleet, a_fleet, a_job, a_node, granted


def test_an_empty_fleet_decides_nothing() -> None:
    assert a_fleet().plan() == Plan()


def test_a_job_starts_where_it_leaves_the_smallest_hole() -> None:
    world = AFleet([a_node("large", gpus=8), a_node("small", gpus=2)]).waiting(a_job("a", gpus=2))
    start = LeaseGranted(
        at_s=0, job="a", lease="a.1", node="small", gpus=(0, 1), microusd_per_gpu_hour=2 * USD
    )
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
    too_few = say("scheduler.too_few_free_node", gpus=count("gpu", 4), most=2, total=2)
    assert plan.waits["gang"] == too_few
    behind = plan.waits["small"].as_dict()
    assert (behind["code"], behind["job"], behind["gpus"]["n"]) == ("scheduler.waits_behind", "gang", 4)


def test_a_job_that_can_never_be_placed_blocks_nobody() -> None:
    world = a_fleet(gpus_per_node=2).waiting(
        a_job("giant", gpus=16), a_job("odd", gpu_types=("tpu",)), a_job("ok")
    )
    plan = world.plan()
    assert [s.job for s in plan.starts] == ["ok"]
    giant, odd = plan.waits["giant"].as_dict(), plan.waits["odd"].as_dict()
    assert (giant["code"], giant["gpus"]["n"], giant["most"]) == ("scheduler.too_wide_node", 16, 2)
    assert (odd["code"], odd["kind"], odd["has"]) == ("scheduler.no_such_gpus", "tpu", ["h100"])


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
    stop = LeaseEnding(at_s=1, lease="a.1", reason=say("scheduler.cancelled"), requeue=False)
    assert world.plan(now_s=1) == Plan(stops=[stop])
    world.then(LeaseEnding(at_s=1, lease="a.1", reason=verbatim("cancelled"), requeue=False))
    assert world.plan(now_s=2) == Plan()


def test_a_job_is_stopped_when_its_budget_is_used_up_and_not_before() -> None:
    world = a_fleet().running(a_job("a", budget_microusd=USD))  # half an hour at $2
    assert world.plan(now_s=1799).stops == []
    used_up = say("scheduler.budget_used_up", budget=Usd(USD))
    stop = LeaseEnding(at_s=1800, lease="a.1", reason=used_up, requeue=False)
    assert world.plan(now_s=1800).stops == [stop]


def test_nothing_starts_at_a_site_that_cannot_be_reached() -> None:
    plan = a_fleet().waiting(a_job("a")).plan(unreachable={"here"})
    assert plan.starts == []
    assert "a" in plan.waits


@pytest.mark.parametrize("policy", POLICIES)
def test_who_cannot_pay_is_passed_by_others_of_its_shape(policy: str) -> None:
    world = a_fleet().then(BudgetSet(at_s=0, tenant="poor", microusd=0))
    world.waiting(a_job("broke", tenant="poor")).waiting(a_job("rich", tenant="rich"), at_s=1)
    plan = world.plan(rules=POLICIES[policy], now_s=2)
    assert [start.job for start in plan.starts] == ["rich"]
    said = plan.waits["broke"]
    nothing = {"left": Usd(0), "used": Usd(0), "allowed": Usd(0)}
    assert said == say("scheduler.tenant_lacks.spent", tenant="poor", **nothing)

    spent = a_fleet().running(a_job("spent", budget_microusd=1000))
    spent.then(LeaseEnded(at_s=3600, lease="spent.1", exit_code=None, requeue=True))
    spent.waiting(a_job("next"), at_s=3600)
    assert [start.job for start in spent.plan(rules=POLICIES[policy], now_s=3601).starts] == ["next"]


def test_who_uses_gpus_kept_for_a_gang_fits_there_in_every_way() -> None:
    """By NVLink domain, CPU and memory too, and not by GPUs alone."""
    node = replace(a_node(gpus=8), nvlink_gpus=4, cpu_milli=8000, memory_mib=64)
    world = AFleet([node])
    for name, gpus, work_s in (("a", 3, 9000.0), ("b", 3, 9000.0)):
        world.running(a_job(name, gpus=gpus, predicted_work_s=work_s))  # free: 6 and 7
    world.then(LeaseEnded(at_s=1, lease="a.1", exit_code=0)).running(a_job("c", gpus=2), at_s=1)
    assert world.fleet.free("node-0") == (2, 6, 7)
    world.waiting(a_job("gang", gpus=8), at_s=2)

    def brief(name: str, **more: object) -> Job:
        return replace(a_job(name, gpus=2, predicted_work_s=10.0), **more)  # type: ignore[arg-type]

    world.waiting(brief("hungry", cpu_milli=9000), brief("greedy", memory_mib=65), at_s=3)
    world.waiting(brief("close", within="nvlink"), at_s=3)

    starts = world.plan(rules=POLICIES["backfill"], now_s=4).starts
    assert [(start.job, start.gpus) for start in starts] == [("close", (6, 7))]


def sharing_one_gpu(*priorities: str) -> AFleet:
    world = a_fleet(gpus_per_node=1)
    for i, priority in enumerate(priorities):
        world.waiting(a_job(f"share-{i}", gpu_milli=300, priority=priority))
        world.then(granted(f"share-{i}", gpus=(0,)), LeaseStarted(at_s=0, lease=f"share-{i}.1"))
    return world.waiting(a_job("whole", priority="urgent"), at_s=900)


def test_a_shared_gpu_is_cleared_of_all_who_share_it_or_of_nobody() -> None:
    """One of them alone would leave nothing to be had, and come back into the gap."""
    plan = sharing_one_gpu("background", "normal").plan(rules=POLICIES["brim"], now_s=900)
    assert {stop.lease for stop in plan.stops} == {"share-0.1", "share-1.1"}
    assert not sharing_one_gpu("background", "urgent").plan(rules=POLICIES["brim"], now_s=900).stops


def test_a_share_does_not_slip_onto_a_node_that_is_kept_for_a_gang() -> None:
    world = a_fleet(gpus_per_node=4).waiting(a_job("first", gpu_milli=300))
    world.then(granted("first", gpus=(0,)), LeaseStarted(at_s=0, lease="first.1"))
    world.waiting(a_job("gang", gpus=4), at_s=1).waiting(a_job("second", gpu_milli=300), at_s=2)
    plan = world.plan(rules=POLICIES["backfill"], now_s=3)
    assert not plan.starts
    assert plan.waits["second"]
