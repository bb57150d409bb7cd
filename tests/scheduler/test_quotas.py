"""What a queue is owed, lends and borrows: on one GPU type, and at the reviews of a mixed fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fleet.events import LeaseEnded, LeaseEnding, LeaseGranted, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.node import Pool
from brimful.language import say
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan, Review
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.world import Arrival, rehearse
from tests.builders import AFleet, a_fleet, a_job, a_node, code_of


def stopped(plan: Plan) -> list[str]:
    return sorted(stop.lease.split(".")[0] for stop in plan.stops)


def test_quota_is_borrowed_while_idle_and_the_reason_has_numbers() -> None:
    rules = Rules(
        quotas=(Quota(queue="a", gpus=4, borrow_gpus=2), Quota(queue="b", gpus=4)), backfill="greedy"
    )
    world = a_fleet(gpus_per_node=8)
    world.waiting(*[a_job(f"a{i}", gpus=2, queue="a") for i in range(4)], a_job("b0", gpus=2, queue="b"))

    plan = world.plan(rules=rules)

    assert [start.job for start in plan.starts] == ["a0", "a1", "a2", "b0"]
    counts = {"held": 6, "own": 4, "gpus": 2, "borrows": 4, "most": 2}
    assert plan.waits["a3"] == say("scheduler.may_not_borrow", queue="a", **counts)


def test_what_a_queue_does_not_lend_stays_its_own() -> None:
    rules = Rules(quotas=(Quota(queue="a", gpus=4), Quota(queue="b", gpus=4, lend=False)), backfill="greedy")
    world = a_fleet(gpus_per_node=8).waiting(*[a_job(f"a{i}", gpus=2, queue="a") for i in range(4)])
    assert [start.job for start in world.plan(rules=rules).starts] == ["a0", "a1"]


LENT = Rules(
    quotas=(Quota(queue="lender", gpus=8), Quota(queue="borrower", gpus=8)), backfill="greedy", min_run_s=0
)


def borrowers(*sizes: int, **more: Any) -> list[Job]:
    return [a_job(f"borrowed-{i}", gpus=gpus, queue="borrower", **more) for i, gpus in enumerate(sizes)]


def test_a_lender_gets_its_gpus_back_from_one_cell_and_only_what_was_borrowed() -> None:
    world = a_fleet(nodes=2, gpus_per_node=8).running(*borrowers(4, 4, 4, 4))
    world.waiting(a_job("own", gpus=8, queue="lender"), at_s=50)

    plan = world.plan(rules=LENT, now_s=100)

    victims = stopped(plan)
    assert len(victims) == 2
    assert len({world.fleet.jobs[name].leases[-1].node for name in victims}) == 1
    assert world.plan(rules=replace(LENT, reclaim=False), now_s=100).stops == []


def test_who_stays_within_its_quota_is_not_stopped_for_a_lender() -> None:
    world = a_fleet(nodes=2, gpus_per_node=8).running(*borrowers(4, 4)).running(a_job("other", gpus=8))
    world.waiting(a_job("own", gpus=8, queue="lender"), at_s=50)

    assert stopped(world.plan(rules=LENT, now_s=100)) == ["other"]  # its queue has no quota: all is borrowed


def test_a_job_beyond_its_own_quota_claims_nothing() -> None:
    world = a_fleet(nodes=2, gpus_per_node=8).running(a_job("own-1", gpus=4, queue="lender"))
    world.running(*borrowers(4, 8)).waiting(a_job("own-2", gpus=8, queue="lender"), at_s=50)

    assert world.plan(rules=LENT, now_s=100).stops == []


def test_a_lender_stops_nobody_of_a_higher_class_nor_within_its_least_running_time() -> None:
    urgent = a_fleet(gpus_per_node=8).running(*borrowers(8, priority="urgent"))
    young = a_fleet(gpus_per_node=8).running(*borrowers(8, min_run_s=600))
    for world in (urgent, young):
        world.waiting(a_job("own", gpus=8, queue="lender"), at_s=50)

    rules = replace(LENT, quotas=(Quota(queue="lender", gpus=8),))
    assert urgent.plan(rules=rules, now_s=1000).stops == []
    assert young.plan(rules=rules, now_s=599).stops == []
    assert stopped(young.plan(rules=rules, now_s=600)) == ["borrowed-0"]


def test_a_borrower_does_not_borrow_again_what_a_lender_waits_for() -> None:
    world = a_fleet(gpus_per_node=8).running(a_job("busy", gpus=6, queue="lender"))
    world.waiting(*borrowers(2)).waiting(a_job("own", gpus=2, queue="lender"), at_s=50)
    rules = replace(LENT, order="fifo", quotas=(Quota(queue="lender", gpus=8),))

    plan = world.plan(rules=rules, now_s=100)

    assert [start.job for start in plan.starts] == ["own"]
    counts = {"held": 0, "own": 0, "gpus": 2, "idle": 0}
    assert plan.waits["borrowed-0"] == say("scheduler.too_few_to_lend", queue="borrower", **counts)


def test_who_gave_gpus_back_to_patient_work_does_not_take_them_again() -> None:
    """It claimed what its queue had lent and was not reckoned with: the two took turns without end."""
    patient = a_job("own", gpus=8, queue="lender", deferrable=True)
    world = a_fleet(gpus_per_node=8).waiting(*borrowers(8)).waiting(patient, at_s=50)
    rules = replace(LENT, order="fifo", quotas=(Quota(queue="lender", gpus=8),))

    assert [start.job for start in world.plan(rules=rules, now_s=100).starts] == ["own"]


def test_a_job_that_may_not_start_yet_stops_nobody() -> None:
    rules = replace(POLICIES["brim"], quotas=(Quota(queue="a", gpus=4, borrow_gpus=0),), min_run_s=0)
    world = a_fleet(gpus_per_node=8).running(a_job("a-1", gpus=4, queue="a"), a_job("b-1", gpus=4, queue="b"))
    world.waiting(a_job("a-2", gpus=4, queue="a"), at_s=36_000)

    assert world.plan(rules=rules, now_s=36_000).stops == []


def test_lent_gpus_come_back_and_every_job_ends() -> None:
    """A queue lends all it has; when it wants it back, the borrowers leave once and finish later."""
    jobs = borrowers(*[4] * 6, checkpoint_interval_s=0)
    arrivals = [Arrival(at_s=0, job=job, work_s=7200.0) for job in jobs]
    arrivals.append(Arrival(at_s=1800, job=a_job("own", gpus=8, queue="lender"), work_s=600.0))

    outcome = rehearse(arrivals, [a_node(gpus=8), a_node("node-1", gpus=8)], LENT)

    states = outcome.fleet.jobs
    assert all(state.phase == "finished" for state in states.values())
    assert states["own"].first_start_s == 1800
    assert sum(state.preemptions for state in states.values()) == 2


def test_who_borrows_does_not_take_back_the_node_that_it_left_for_a_lender() -> None:
    """Two GPUs on two nodes counted as idle, so it came first again: every five minutes, for two hours."""
    nodes = [a_node(gpus=2), a_node("node-1", gpus=1), a_node("node-2", gpus=1)]
    guest = Arrival(at_s=0, job=borrowers(2, checkpoint_interval_s=0)[0], work_s=7200.0)
    own = Arrival(at_s=1, job=a_job("own", gpus=2, queue="lender"), work_s=600.0)
    rules = replace(LENT, quotas=(Quota(queue="lender", gpus=2),), min_run_s=300)

    states = rehearse([guest, own], nodes, rules).fleet.jobs

    assert (states["own"].first_start_s, states["own"].ended_s) == (300, 900)
    assert (states["borrowed-0"].preemptions, states["borrowed-0"].ended_s) == (1, 7800)


# A review of a mixed fleet (every 600 s) settles who is on which type: quotas hold there too.
MIXED = replace(POLICIES["brim"], quotas=LENT.quotas, min_run_s=0)


def mixed() -> AFleet:
    return AFleet([a_node("new", gpus=8), a_node("old", gpus=8, gpu="k80")])


def test_a_review_of_a_mixed_fleet_gives_lent_gpus_back() -> None:
    world = mixed().running(*borrowers(4, 4, 4, 4, checkpoint_interval_s=0, predicted_work_s=600.0))
    own = a_job("own", gpus=8, queue="lender", predicted_work_s=90_000.0)  # by work alone it would wait
    world.waiting(own, at_s=50)

    plan = world.plan(rules=MIXED, now_s=600)

    victims = stopped(plan)
    assert len(victims) == 2
    assert len({world.fleet.jobs[name].leases[-1].node for name in victims}) == 1
    gives_back = say("scheduler.gives_back", queue="borrower", held=16, own=8, gives=8)
    assert all(stop.reason == gives_back for stop in plan.stops)
    assert world.plan(rules=replace(MIXED, reclaim=False), now_s=600).stops == []


def test_a_lender_that_needs_one_type_gets_it_back_though_its_borrower_is_spread_over_two() -> None:
    jobs = borrowers(8, 8, checkpoint_interval_s=0, predicted_work_s=600.0)
    world = mixed().running(*jobs)
    own = a_job("own", gpus=8, queue="lender", predicted_work_s=90_000.0, gpu_types=("h100",))

    plan = world.waiting(own, at_s=50).plan(rules=MIXED, now_s=600)

    assert [(stop.lease, stop.reason) for stop in plan.stops] == [
        ("borrowed-0.1", say("scheduler.preempted_by", job="own"))
    ]


def test_a_review_sends_nobody_away_for_what_a_queue_may_not_hold() -> None:
    limited = replace(MIXED, quotas=(Quota(queue="a", gpus=4, borrow_gpus=0), Quota(queue="b", gpus=12)))
    world = mixed().running(a_job("a-1", gpus=4, queue="a", predicted_work_s=60.0))
    world.running(*[a_job(f"b-{i}", gpus=4, queue="b", predicted_work_s=9e4) for i in range(3)])
    world.waiting(a_job("a-2", gpus=4, queue="a", predicted_work_s=120.0), at_s=50)

    assert world.plan(rules=limited, now_s=600).stops == []
    assert stopped(world.plan(rules=replace(limited, quotas=()), now_s=600)) != []


def test_at_its_limit_a_queues_short_job_takes_the_place_of_its_own_long_one() -> None:
    limited = replace(MIXED, quotas=(Quota(queue="a", gpus=4, borrow_gpus=0),))
    world = mixed().running(a_job("long", gpus=4, queue="a", predicted_work_s=9e4, checkpoint_interval_s=0))
    world.running(*[a_job(f"other-{i}", gpus=4, predicted_work_s=9e4) for i in range(3)])
    world.waiting(a_job("short", gpus=4, queue="a", predicted_work_s=120.0), at_s=50)

    plan = world.plan(rules=limited, now_s=600)

    assert [(stop.lease, stop.reason) for stop in plan.stops] == [("long.1", say("scheduler.makes_room"))]


def test_a_review_stops_no_borrower_of_a_higher_class_and_none_without_a_claim() -> None:
    urgent = mixed().running(*borrowers(8, 8, priority="urgent", checkpoint_interval_s=0))
    urgent.waiting(a_job("own", gpus=8, queue="lender"), at_s=50)
    assert urgent.plan(rules=MIXED, now_s=600).stops == []

    short = mixed().running(*borrowers(8, 8, predicted_work_s=9e4, checkpoint_interval_s=0))
    short.waiting(a_job("guest", gpus=8, predicted_work_s=60.0), at_s=50)  # of a queue without a quota
    assert short.plan(rules=MIXED, now_s=600).stops == []


def test_what_a_queue_does_not_lend_is_left_free_by_a_review() -> None:
    kept = replace(MIXED, quotas=(Quota(queue="a", gpus=4), Quota(queue="b", gpus=10, lend=False)))
    world = mixed().waiting(*[a_job(f"a{i}", gpus=2, queue="a") for i in range(8)])
    assert len(world.plan(rules=kept, now_s=600).starts) == 3


def test_a_review_sends_nobody_away_for_patient_work_that_waits_for_a_quiet_hour() -> None:
    world = mixed().running(*borrowers(8, 8, predicted_work_s=9e4, checkpoint_interval_s=0))
    world.waiting(a_job("patient", gpus=8, predicted_work_s=60.0, deferrable=True), at_s=50)

    plan = world.plan(rules=POLICIES["brim"], now_s=600)

    assert (plan.starts, plan.stops) == ([], [])
    assert code_of(plan.waits["patient"]) == "scheduler.quiet_hour"


def test_on_a_mixed_fleet_lent_gpus_come_back_and_every_job_ends() -> None:
    jobs = borrowers(*[4] * 6, checkpoint_interval_s=0, predicted_work_s=7200.0)
    arrivals = [Arrival(at_s=0, job=job, work_s=7200.0) for job in jobs]
    own = a_job("own", gpus=8, queue="lender", predicted_work_s=90_000.0)
    arrivals.append(Arrival(at_s=1800, job=own, work_s=90_000.0))

    outcome = rehearse(arrivals, [a_node("new", gpus=8), a_node("old", gpus=8, gpu="k80")], MIXED)

    states = outcome.fleet.jobs
    assert all(state.phase == "finished" for state in states.values())
    assert states["own"].first_start_s == 1800
    assert states["own"].preemptions == 0
    assert sum(state.preemptions for state in states.values()) == 2


def test_who_lost_its_gpu_during_a_review_does_not_take_turns_with_guests() -> None:
    """A guest left for it, was started again by the review on the GPU it had left, and so on without end."""
    rules = replace(POLICIES["brim"], quotas=(Quota(queue="lender", gpus=1),), min_run_s=0)
    world = AFleet([a_node("new", gpus=1), a_node("old", gpus=1, gpu="k80")])
    own, old = a_job("own", queue="lender"), world.fleet.nodes["old"].pool
    world.waiting(own, a_job("guest-0", checkpoint_interval_s=0), a_job("guest-1", checkpoint_interval_s=0))
    targets: dict[str, Pool | None] = dict.fromkeys(["own", "guest-0", "guest-1"], old)
    review: Review | None = Review(at_s=600, targets=targets, starting=("guest-0", "guest-1"))
    done: list[LeaseGranted | LeaseEnding] = []
    for now_s in (600, 600, 600, 600, 610):
        plan = decide(world.fleet, rules, world.fleet.posted_prices(), now_s=now_s, review=review)
        world.carry_out(plan)
        world.then(*[LeaseEnded(at_s=now_s, lease=each.lease, exit_code=None) for each in plan.stops])
        world.then(*[LeaseStarted(at_s=now_s, lease=each.lease) for each in plan.starts])
        done, review = [*done, *plan.stops, *plan.starts], plan.review

    assert [each.lease for each in done] == ["guest-0.1", "own.1"]
    assert world.fleet.jobs["own"].leases[-1].node == "new"


def test_a_lender_is_told_when_the_first_borrower_may_be_asked_to_leave() -> None:
    world = a_fleet(nodes=2, gpus_per_node=8).running(*borrowers(8, 8))
    world.waiting(a_job("own", gpus=8, queue="lender"), at_s=50)
    rules = replace(LENT, min_run_s=300)

    said = world.plan(rules=rules, now_s=100).waits["own"].as_dict()

    assert (said["code"], said["queue"], said["left"]) == ("scheduler.lent", "lender", 200)
    assert stopped(world.plan(rules=rules, now_s=300))


@pytest.mark.parametrize(
    ("quotas", "most"),
    [
        ((Quota(queue="a", gpus=2, borrow_gpus=3),), 5),
        ((Quota(queue="a", gpus=2), Quota(queue="b", gpus=5, lend=False)), 3),
    ],
)
def test_a_job_above_what_its_queue_can_ever_hold_is_told_so(quotas: tuple[Quota, ...], most: int) -> None:
    world = a_fleet(gpus_per_node=8).waiting(a_job("big", gpus=6, queue="a"))
    said = world.plan(rules=Rules(quotas=quotas)).waits["big"]
    assert said == say("scheduler.above_queue", queue="a", gpus=6, most=most, own=2)
