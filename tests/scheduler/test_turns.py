"""Who has waited longer than nearly all jobs run goes first, on a share of the GPUs, and stays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brimful.fleet.events import BudgetSet, CancelRequested, LeaseEnded, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.learned.lengths import ENOUGH
from brimful.language import say
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.fleets import parse_fleet
from brimful.sim.report import report
from brimful.sim.world import Arrival, rehearse
from tests.builders import AFleet, a_fleet, a_job

HOUR_S = 3600
BRIM = POLICIES["brim"]
LATE_S = 6 * HOUR_S


def where_jobs_take_an_hour(nodes: int = 1) -> AFleet:
    """A fleet that has seen a hundred jobs of an hour."""
    told = [a_job(f"told-{i}", predicted_work_s=float(HOUR_S)) for i in range(ENOUGH)]
    world = a_fleet(nodes=nodes).waiting(*told)
    return world.then(*[CancelRequested(at_s=0, job=job.job) for job in told])


def waits_and_runs(*old: Job, priority: str = "normal") -> AFleet:
    """Eight single GPUs busy with fresh jobs, old ones and fresh ones in line."""
    world = where_jobs_take_an_hour().waiting(*old)
    fresh = [a_job(f"fresh-{i}", priority=priority) for i in range(8)]
    world.running(*fresh, at_s=LATE_S - 400)
    return world.waiting(a_job("new", priority=priority), at_s=LATE_S)


def names(plan: Plan) -> list[str]:
    return [start.job for start in plan.starts]


def test_whose_turn_it_is_gets_a_cell_before_fresher_jobs() -> None:
    world = waits_and_runs(a_job("old", gpus=4))

    plan = world.plan(rules=BRIM, now_s=LATE_S)

    assert len(plan.stops) == 4
    assert all(stop.reason == say("scheduler.preempted_by", job="old") for stop in plan.stops)
    assert not world.plan(rules=replace(BRIM, turns=0.0), now_s=LATE_S).stops


def test_it_starts_first_and_says_so_and_nobody_of_its_class_sends_it_away() -> None:
    world = where_jobs_take_an_hour().waiting(a_job("old", gpus=4))
    world.waiting(*[a_job(f"new-{i}") for i in range(9)], at_s=LATE_S)

    plan = world.plan(rules=BRIM, now_s=LATE_S)
    assert names(plan)[0] == "old"
    assert [start.in_turn for start in plan.starts] == [True] + [False] * 4

    world.carry_out(plan)
    world.then(*[LeaseStarted(at_s=LATE_S, lease=start.lease) for start in plan.starts])
    later_s = LATE_S + 50 * 60  # at a review, and within the hour that its turn lasts
    assert not [stop for stop in world.plan(rules=BRIM, now_s=later_s).stops if stop.lease == "old.1"]
    urgent = world.waiting(a_job("urgent", gpus=8, priority="urgent"), at_s=later_s)
    assert "old.1" in {stop.lease for stop in urgent.plan(rules=BRIM, now_s=later_s).stops}


def test_turns_take_no_more_than_their_share() -> None:
    world = where_jobs_take_an_hour(nodes=2).waiting(*[a_job(f"old-{i}") for i in range(20)])
    world.waiting(*[a_job(f"new-{i}", predicted_work_s=60.0) for i in range(8)], at_s=LATE_S)

    starts = world.plan(rules=BRIM, now_s=LATE_S).starts

    assert sum(start.in_turn for start in starts) == 12  # three quarters of 16
    assert [start.job for start in starts if not start.in_turn] == [f"new-{i}" for i in range(4)]


def test_the_longest_and_the_young_have_no_turn() -> None:
    long_one = waits_and_runs(a_job("long", gpus=4, predicted_work_s=1000.0 * HOUR_S))
    young = waits_and_runs()
    young.waiting(a_job("young", gpus=4), at_s=LATE_S - 600)

    assert not long_one.plan(rules=BRIM, now_s=LATE_S).stops
    assert not young.plan(rules=BRIM, now_s=LATE_S).stops


def test_a_turn_does_not_push_a_higher_class_aside() -> None:
    world = waits_and_runs(a_job("old", gpus=4), priority="urgent")
    plan = world.plan(rules=BRIM, now_s=LATE_S)
    assert not [stop for stop in plan.stops if stop.reason == say("scheduler.preempted_by", job="old")]


def test_a_gang_that_cannot_fit_beside_turns_keeps_nothing_idle() -> None:
    """GPUs that are free while it waits for the others go to whoever can be stopped again."""
    world = where_jobs_take_an_hour(nodes=2).waiting(*[a_job(f"old-{i}", gpus=4) for i in range(2)])
    first = world.plan(rules=BRIM, now_s=LATE_S)
    assert [start.in_turn for start in first.starts] == [True, True]
    world.carry_out(first)
    world.then(*[LeaseStarted(at_s=LATE_S, lease=start.lease) for start in first.starts])
    world.waiting(a_job("wide", gpus=16), a_job("small"), at_s=LATE_S)

    assert names(world.plan(rules=BRIM, now_s=LATE_S + 60)) == ["small"]


@pytest.mark.parametrize("known", [False, True], ids=["hidden", "known"])
def test_on_a_crowded_fleet_the_slowest_of_a_hundred_are_no_slower_than_in_line(known: bool) -> None:
    """Most jobs are short, one in eight takes days, and for weeks there is more to do than GPUs."""
    chance, arrivals, nodes = Random(2), [], parse_fleet("1x8")
    for i in range(800):
        is_long = chance.random() < 0.12
        work_s = float(int(chance.uniform(5, 60) * HOUR_S if is_long else chance.uniform(60, 1200)))
        job = a_job(
            f"job-{i}",
            gpus=chance.choice([1, 1, 2, 4]) if is_long else 1,
            checkpoint_interval_s=0,
            checkpoint_cost_s=60,
            predicted_work_s=work_s if known else None,
        )
        arrivals.append(Arrival(at_s=i * 1800, job=job, work_s=work_s))

    def jct_h(rules: Rules) -> tuple[float, float]:
        outcome = rehearse(arrivals, nodes, rules)
        told = report(outcome, arrivals, nodes, policy="", seed=0, cpu_s=0.0)
        return told["mean_jct_h"], told["p99_jct_h"]

    (in_line, slowest_in_line), (turns, slowest) = jct_h(POLICIES["fifo"]), jct_h(BRIM)
    assert turns < 0.25 * in_line
    assert slowest < slowest_in_line
    assert slowest < 0.9 * jct_h(replace(BRIM, turns=0.0))[1]


def stops_for_old(world: AFleet, rules: Rules = BRIM) -> int:
    """How many leave so that `old` has its turn."""
    stops = world.plan(rules=rules, now_s=LATE_S).stops
    assert all(stop.reason == say("scheduler.preempted_by", job="old") for stop in stops)
    return len(stops)


def busy_behind(*ahead: Job, queue: str = "") -> AFleet:
    """Eight single GPUs busy with fresh jobs, and `old` in line behind others that have waited as long."""
    world = where_jobs_take_an_hour().waiting(*ahead).waiting(a_job("old", gpus=4, queue=queue))
    return world.running(*[a_job(f"fresh-{i}") for i in range(8)], at_s=LATE_S - 400)


def test_who_cannot_start_takes_nobodys_turn() -> None:
    nowhere = [a_job(f"ahead-{i}", gpu_types=("none-such",)) for i in range(12)]
    assert stops_for_old(busy_behind(*nowhere)) == 4

    # Its queue may borrow nothing, or its tenant cannot pay.
    quotas = (Quota(queue="none", gpus=0, borrow_gpus=0), Quota(queue="own", gpus=4))
    over = busy_behind(*[a_job(f"ahead-{i}", queue="none") for i in range(12)], queue="own")
    assert stops_for_old(over, replace(BRIM, quotas=quotas, reclaim=False)) == 4
    poor = busy_behind(*[a_job(f"ahead-{i}", tenant="poor") for i in range(12)])
    assert stops_for_old(poor.then(BudgetSet(at_s=0, tenant="poor", microusd=0))) == 4


def test_turns_count_shares_of_a_gpu_as_shares() -> None:
    world = where_jobs_take_an_hour().waiting(*[a_job(f"share-{i}", gpu_milli=100) for i in range(30)])
    world.waiting(*[a_job(f"new-{i}") for i in range(8)], at_s=LATE_S)

    plan = world.plan(rules=BRIM, now_s=LATE_S)
    assert sum(start.in_turn for start in plan.starts) == 30  # three GPUs, of the six that turns may have
    world.carry_out(plan)
    assert world.fleet.turns.gpus(LATE_S) == pytest.approx(3.0)


def test_who_must_start_now_to_be_in_time_goes_before_turns() -> None:
    world = where_jobs_take_an_hour().waiting(a_job("old", gpus=8))
    due = a_job("due", gpus=8, predicted_work_s=3000.0, deadline_s=LATE_S + 3700)
    world.waiting(due, at_s=LATE_S - 60)

    assert names(world.plan(rules=BRIM, now_s=LATE_S - 3600)) == ["old"]  # it has time
    assert names(world.plan(rules=BRIM, now_s=LATE_S)) == ["due"]
    assert names(world.plan(rules=BRIM, now_s=LATE_S + 1000)) == ["old"]  # it is too late for that one


def test_a_cell_is_kept_for_a_higher_class_while_turns_leave_it() -> None:
    """They stop one after the other, and the first GPUs to come free are not given away meanwhile."""
    world = where_jobs_take_an_hour(nodes=2).waiting(*[a_job(f"old-{i}", gpus=4) for i in range(2)])
    first = world.plan(rules=BRIM, now_s=LATE_S)
    world.carry_out(first)
    world.then(*[LeaseStarted(at_s=LATE_S, lease=start.lease) for start in first.starts])
    world.waiting(a_job("urgent", gpus=16, priority="urgent", within="site"), at_s=LATE_S + 590)
    clears = world.plan(rules=BRIM, now_s=LATE_S + 600)
    assert {stop.lease for stop in clears.stops} == {"old-0.1", "old-1.1"}
    world.carry_out(clears)

    world.then(LeaseEnded(at_s=LATE_S + 611, lease="old-0.1", exit_code=None))
    world.waiting(a_job("small"), at_s=LATE_S + 612)
    assert not world.plan(rules=BRIM, now_s=LATE_S + 615).starts
    world.then(LeaseEnded(at_s=LATE_S + 620, lease="old-1.1", exit_code=None))
    assert names(world.plan(rules=BRIM, now_s=LATE_S + 621)) == ["urgent"]


@pytest.mark.parametrize("known", [False, True], ids=["hidden", "known"])
def test_one_of_the_longest_has_its_turn_once_it_has_waited_out_its_length(known: bool) -> None:
    """Else a gang that does not fit beside turns would wait for as long as others have any."""
    long_s = 10.0 * HOUR_S
    world = where_jobs_take_an_hour(nodes=2)
    if known:
        world.waiting(a_job("wide", gpus=16, within="site", predicted_work_s=long_s))
    else:
        wide = a_job("wide", gpus=8)
        world.running(wide).then(LeaseEnded(at_s=int(long_s), lease="wide.1", exit_code=None, requeue=True))
    waited_s = int(long_s / BRIM.ageing)
    came_s = 0 if known else int(long_s)
    for late_s, has_turn in ((int(0.9 * waited_s), False), (waited_s + 2, True)):
        plan = world.plan(rules=BRIM, now_s=came_s + late_s)
        assert [(start.job, start.in_turn) for start in plan.starts] == [("wide", has_turn)]
    world.carry_out(plan)
    lasts_s = world.fleet.open_leases[plan.starts[0].lease].turn_until_s - came_s - late_s
    assert lasts_s >= 0.9 * HOUR_S
