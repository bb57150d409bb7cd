"""Small jobs move so that a gang fits: when, who, how many, and what is kept for whom meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fleet.events import CancelRequested, LeaseEnded, LeaseStarted, NodeDrained
from brimful.fleet.job import Job
from brimful.fleet.moves import MOVED
from brimful.fleet.state import Fleet
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Quota, Rules
from tests.builders import AFleet, a_fleet, a_job, a_node, code_of, granted

RULES = replace(POLICIES["backfill"], moves=1.0)
SMALL: dict[str, Any] = {"checkpoint_interval_s": 0, "checkpoint_cost_s": 60}


def scattered(world: AFleet | None = None, *, at_s: int = 0, **small: Any) -> AFleet:
    """Two nodes of eight with one small job each: 14 GPUs are free, and no eight on one node."""
    world = world or a_fleet(nodes=2)
    for job, node in (("a", "node-0"), ("b", "node-1")):
        begins = granted(job, node=node, gpus=(0,), at_s=at_s)
        world.waiting(a_job(job, **{**SMALL, **small}), at_s=at_s)
        world.then(begins, LeaseStarted(at_s=at_s, lease=f"{job}.1"))
    return world


def moves(plan: Plan) -> list[str]:
    return [stop.lease.split(".")[0] for stop in plan.stops if code_of(stop.reason) == MOVED]


def ended(lease: str, at_s: int) -> LeaseEnded:
    return LeaseEnded(at_s=at_s, lease=lease, exit_code=None, kept_work_s=1.0, cause="stopped_by_us")


def gang(**more: Any) -> Job:
    return a_job("gang", **{"gpus": 8, **more})


def test_a_small_job_moves_and_its_reason_has_the_gain_and_the_cost() -> None:
    plan = scattered().waiting(gang()).plan(rules=RULES, now_s=3600)

    assert moves(plan) == ["a"]
    why = plan.stops[0].reason
    assert why is not None
    # Nobody knows when they end: as long again as they have run. 8 GPUs x 1 h against 1 GPU x 1 min.
    assert why.as_dict() == {"code": MOVED, "job": "gang", "sooner": 3600.0, "gains": 8.0, "costs": 60 / 3600}
    told = plan.waits["gang"].as_dict()
    assert (told["code"], told["jobs"]) == ("scheduler.others_will_stop", ["a"])


def test_until_all_are_there_others_get_neither_the_cell_nor_the_gpu_the_job_moves_to() -> None:
    world = scattered().waiting(gang(), *[a_job(f"other-{i}") for i in range(9)], at_s=10)
    plan = world.plan(rules=RULES, now_s=3600)
    assert moves(plan) == ["a"]
    assert sorted(start.job for start in plan.starts) == [f"other-{i}" for i in range(6)]
    assert {start.node for start in plan.starts} == {"node-1"}

    world.carry_out(plan).then(*[LeaseStarted(at_s=3600, lease=start.lease) for start in plan.starts])
    assert world.plan(rules=RULES, now_s=3603).starts == []  # it is still stopping
    assert world.plan(rules=RULES, now_s=3603).stops == []

    plan = world.then(ended("a.1", 3605)).plan(rules=RULES, now_s=3605)
    assert [(start.job, start.node) for start in plan.starts] == [("gang", "node-0"), ("a", "node-1")]
    assert plan.stops == []


def test_a_server_that_is_restarted_goes_on_with_what_it_had_begun() -> None:
    world = scattered().waiting(gang(), at_s=10)
    world.carry_out(world.plan(rules=RULES, now_s=3600)).then(ended("a.1", 3605))
    fleet = Fleet()
    for event in world.events:
        fleet.apply(event)

    plan = decide(fleet, RULES, fleet.posted_prices(), now_s=3605)

    assert [(start.job, start.node) for start in plan.starts] == [("gang", "node-0"), ("a", "node-1")]


def test_a_gang_that_is_cancelled_meanwhile_keeps_nothing() -> None:
    world = scattered().waiting(gang(), at_s=10)
    world.carry_out(world.plan(rules=RULES, now_s=3600))
    world.then(CancelRequested(at_s=3602, job="gang")).waiting(*[a_job(f"w-{i}", gpus=6) for i in range(2)])

    plan = world.plan(rules=RULES, now_s=3603)

    assert {(start.job, start.node) for start in plan.starts} == {("w-0", "node-0"), ("w-1", "node-1")}


def test_nothing_starts_at_a_site_that_does_not_answer_also_after_a_move() -> None:
    world = scattered().waiting(gang(), at_s=10)
    world.carry_out(world.plan(rules=RULES, now_s=3600)).then(ended("a.1", 3605))

    assert world.plan(rules=RULES, now_s=3605, unreachable=["here"]).starts == []


def test_the_cheapest_cell_is_chosen_and_no_more_leave_than_must() -> None:
    world = scattered().waiting(a_job("dear", **{**SMALL, "checkpoint_cost_s": 600}))
    world.then(granted("dear", node="node-0", gpus=(1,)), LeaseStarted(at_s=0, lease="dear.1"))

    assert moves(world.waiting(gang()).plan(rules=RULES, now_s=3600)) == ["b"]
    world = scattered().waiting(gang(gpus=6)).waiting(a_job("wide", gpus=7))
    assert moves(world.plan(rules=RULES, now_s=3600)) == []  # both find a place as it is


@pytest.mark.parametrize(
    ("small", "moved"),
    [
        ({"predicted_work_s": 3640.0}, []),  # they end in 40 s: the wait is shorter than it saves
        ({"predicted_work_s": 7200.0}, ["a"]),
        ({"checkpoint_interval_s": None}, []),  # it would lose the whole hour
        ({"checkpoint_interval_s": 900, "predicted_work_s": 90_000.0}, ["a"]),
        ({"min_run_s": 3601}, []),
        ({"deadline_s": 90_000}, []),
        ({"priority": "urgent"}, []),  # nobody of a higher class moves
        ({"priority": "background"}, ["a"]),
        ({"within": "node", "gpu_types": ("h100",)}, ["a"]),
    ],
)
def test_who_moves_and_who_does_not(small: dict[str, Any], moved: list[str]) -> None:
    assert moves(scattered(**small).waiting(gang()).plan(rules=RULES, now_s=3600)) == moved


def test_only_at_a_review_and_only_where_it_is_switched_on() -> None:
    world = scattered().waiting(gang())

    assert moves(world.plan(rules=RULES, now_s=3590)) == []
    assert world.plan(rules=RULES, now_s=3590).look_again_s == 3600
    assert moves(world.plan(rules=replace(RULES, moves=0.0), now_s=3600)) == []


def test_no_larger_share_of_the_running_jobs_is_moved_in_an_hour_and_nobody_twice() -> None:
    nodes = [a_node(f"node-{i}") for i in range(4)]
    world = scattered(AFleet(nodes)).waiting(gang(), at_s=10)
    for i in (2, 3):
        small = a_job(f"c-{i}", gpus=2, **SMALL)
        world.waiting(small).then(
            granted(small.job, node=f"node-{i}", gpus=(0, 1)), LeaseStarted(at_s=0, lease=f"c-{i}.1")
        )
    assert moves(world.plan(rules=replace(RULES, moves=0.2), now_s=3600)) == []  # of 4 jobs that is none
    rules = replace(RULES, moves=0.3)
    plan = world.plan(rules=rules, now_s=3600)
    assert moves(plan) == ["a"]
    world.carry_out(plan).then(ended("a.1", 3601))
    plan = world.plan(rules=rules, now_s=3601)
    world.carry_out(plan).then(*[LeaseStarted(at_s=3601, lease=start.lease) for start in plan.starts])
    world.waiting(replace(gang(), job="second"), at_s=3602)

    assert moves(world.plan(rules=rules, now_s=6600)) == []
    assert "a" not in moves(world.plan(rules=replace(RULES, moves=1.0), now_s=6600))
    assert len(moves(world.plan(rules=rules, now_s=7200))) == 1


def test_nobody_moves_to_a_drained_node_or_at_another_price() -> None:
    world = scattered(a_fleet(nodes=3)).waiting(gang(gpus=8))
    world.then(NodeDrained(at_s=0, node="node-1"), NodeDrained(at_s=0, node="node-2"))
    assert moves(world.plan(rules=RULES, now_s=3600)) == []

    dearer = AFleet([a_node("node-0", usd=3), a_node("node-1", usd=3)])  # the leases are at 2
    assert moves(scattered(dearer).waiting(gang()).plan(rules=RULES, now_s=3600)) == []


@pytest.mark.parametrize(("own", "moved"), [(8, ["a"]), (1, [])])
def test_who_has_borrowed_its_gpus_is_not_moved_as_it_might_not_get_them_again(
    own: int, moved: list[str]
) -> None:
    rules = replace(
        RULES, quotas=(Quota(queue="small", gpus=own), Quota(queue="wide", gpus=8)), reclaim=False
    )
    world = scattered(queue="small").waiting(gang(queue="wide"))

    assert moves(world.plan(rules=rules, now_s=3600)) == moved


def test_a_rack_is_completed_for_a_gang_that_must_be_in_one() -> None:
    nodes = [replace(a_node(f"node-{i}"), rack=f"rack-{i // 2}") for i in range(4)]
    world = AFleet(nodes)
    for i in range(4):
        small = a_job(f"s-{i}", gpus=1 if i < 2 else 2, **SMALL)
        world.waiting(small).then(
            granted(small.job, node=f"node-{i}", gpus=range(small.gpus)),
            LeaseStarted(at_s=0, lease=f"s-{i}.1"),
        )
    plan = world.waiting(gang(gpus=16, within="rack")).plan(rules=RULES, now_s=3600)
    assert sorted(moves(plan)) == ["s-0", "s-1"]

    world.carry_out(plan).then(ended("s-0.1", 3601), ended("s-1.1", 3601))
    plan = world.plan(rules=RULES, now_s=3601)
    assert {start.job for start in plan.starts} == {"gang", "s-0", "s-1"}
    assert {node for node, _ in ((plan.starts[0].node, ()), *plan.starts[0].rest)} == {"node-0", "node-1"}


def test_a_policy_that_preempts_moves_whom_it_may_not_stop() -> None:
    """Both are nearer to their end than the gang, and stay a victim of nobody; moved, they lose a minute."""
    world = scattered(predicted_work_s=9000.0).waiting(gang(predicted_work_s=90_000.0))
    rules: Rules = replace(POLICIES["brim"], moves=1.0)

    assert moves(world.plan(rules=rules, now_s=3600)) == ["a"]
