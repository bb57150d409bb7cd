"""Situations other schedulers get wrong, each named after the report that describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fleet.events import LeaseEnded, LeaseStarted
from brimful.fleet.job import Job
from brimful.language import count, say
from brimful.scheduler.ordering import waiting_in_order
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.world import Arrival, rehearse
from tests.builders import AFleet, a_fleet, a_job, a_node, code_of, granted

BY_CLASS = Rules(order="priority", preempt="priority", backfill="reserve", min_run_s=0)


def stopped(plan: Plan) -> list[str]:
    return sorted(stop.lease.split(".")[0] for stop in plan.stops)


def test_preemption_frees_one_node_and_not_gpus_here_and_there() -> None:
    """kueue 10815 and 5243, volcano 4374: victims were picked by rank alone, and no node had room after."""
    jobs = [a_job(f"low-{i}", gpus=2, priority="background") for i in range(8)]
    world = a_fleet(nodes=2, gpus_per_node=8).running(*jobs).waiting(a_job("gang", gpus=8, priority="urgent"))

    victims = stopped(world.plan(rules=BY_CLASS, now_s=100))

    nodes = {world.fleet.jobs[name].leases[-1].node for name in victims}
    assert len(victims) == 4
    assert len(nodes) == 1


def test_one_whole_job_is_evicted_and_not_a_worker_of_each_of_ten() -> None:
    """volcano 4607: a pod was taken from each of several gangs, and none of them could go on."""
    wide = a_job("wide", gpus=8, priority="background")
    narrow = [a_job(f"narrow-{i}", gpus=1, priority="background", checkpoint_interval_s=0) for i in range(8)]
    world = a_fleet(nodes=2, gpus_per_node=8).running(wide, *narrow)
    world.waiting(a_job("urgent", gpus=8, priority="urgent"))

    plan = world.plan(rules=BY_CLASS, now_s=0)

    assert stopped(plan) == ["wide"]


def test_a_job_without_gpus_beside_the_victims_is_left_alone() -> None:
    """What it would lose per GPU was divided by its GPUs: none, and the loop stopped with an error."""
    low = a_job("low", gpus=8, priority="background")
    world = a_fleet(gpus_per_node=8).running(a_job("cpu-only", gpus=0, priority="background"), low)
    world.waiting(a_job("gang", gpus=8, priority="urgent"))

    assert stopped(world.plan(rules=BY_CLASS, now_s=100)) == ["low"]


def test_the_job_with_the_youngest_checkpoint_is_the_one_stopped() -> None:
    """kueue 477: an hour's unsaved work was thrown away while a job next to it had saved a minute ago."""
    old = a_job("saved-an-hour-ago", gpus=8, priority="background", checkpoint_interval_s=7200)
    young = a_job("saved-a-minute-ago", gpus=8, priority="background", checkpoint_interval_s=3540)
    world = a_fleet(nodes=2).running(old, young).waiting(a_job("urgent", gpus=8, priority="urgent"))

    assert stopped(world.plan(rules=BY_CLASS, now_s=3600)) == ["saved-a-minute-ago"]


def test_a_job_within_its_least_running_time_is_left_alone() -> None:
    low = a_job("low", gpus=8, priority="background", min_run_s=600)
    world = a_fleet().running(low).waiting(a_job("urgent", gpus=8, priority="urgent"))

    assert world.plan(rules=BY_CLASS, now_s=599).stops == []
    assert stopped(world.plan(rules=BY_CLASS, now_s=600)) == ["low"]


def test_quota_does_not_admit_what_topology_cannot_hold() -> None:
    """kueue 4329: quota was there, so the gang was admitted, held it, and hung: no rack had the room."""
    nodes = [replace(a_node(f"node-{i}", gpus=8), rack=f"rack-{i // 2}") for i in range(4)]
    world = AFleet(nodes).running(a_job("a", gpus=8)).waiting(a_job("b", gpus=8), at_s=0)
    world.running(a_job("c", gpus=8))  # one node of the first rack, then the second node
    gang = a_job("gang", gpus=32, within="rack", queue="team")
    small = a_job("small", gpus=8, queue="team")
    rules = Rules(quotas=(Quota(queue="team", gpus=64),), backfill="greedy")

    plan = world.waiting(gang, small).plan(rules=rules)

    assert "gang" not in {start.job for start in plan.starts}
    assert {start.job for start in plan.starts} == {"b", "small"}
    assert plan.waits["gang"].as_dict()["gpus"]["n"] == 32


@pytest.mark.parametrize(
    ("asks", "code", "most"),
    [
        ({"gpus": 16}, "too_wide_node", 8),
        ({"gpus": 8, "within": "nvlink"}, "too_wide_nvlink", 4),
        ({"gpus": 24, "within": "rack"}, "too_wide_rack", 16),
        ({"gpus": 64, "within": "any"}, "too_wide_pool", 32),
        ({"gpus": 2, "cpu_milli": 80_000}, "too_large_for_hosts", 1),
        ({"gpus": 1, "memory_mib": 2 << 20}, "too_large_for_hosts", 0),
        ({"gpus": 0, "cpu_milli": 80_000}, "too_large_for_node", None),
    ],
)
def test_a_job_that_no_fleet_state_can_hold_blocks_nobody_and_is_told_why(
    asks: dict[str, Any], code: str, most: int | None
) -> None:
    """kueue 4329 once more: what can never be placed must not keep the line waiting for ever."""
    nodes = [
        replace(
            a_node(f"node-{i}", gpus=8),
            rack=f"rack-{i // 2}",
            nvlink_gpus=4,
            cpu_milli=64_000,
            memory_mib=1 << 20,
        )
        for i in range(4)
    ]
    plan = AFleet(nodes).waiting(a_job("never", **asks), a_job("small")).plan(order="fifo")

    assert [start.job for start in plan.starts] == ["small"]
    told = plan.waits["never"].as_dict()
    assert (told["code"], told.get("most")) == (f"scheduler.{code}", most)


def test_nobody_leaves_for_a_gang_that_its_type_cannot_hold() -> None:
    """On a mixed fleet a review gives GPUs by type; two and two on different nodes are not a node of four."""
    nodes = [a_node("a", gpus=2), a_node("b", gpus=2), a_node("old", gpus=8, gpu="k80")]
    world = AFleet(nodes)
    world.running(*[a_job(f"j{i}", gpus=2, predicted_work_s=9e4, checkpoint_interval_s=0) for i in range(2)])
    world.waiting(a_job("never", gpus=4, gpu_types=("h100",), predicted_work_s=60.0))

    assert world.plan(rules=POLICIES["brim"], now_s=6000).stops == []


def test_a_gang_for_one_rack_is_not_spread_over_two() -> None:
    nodes = [replace(a_node(f"node-{i}", gpus=8), rack=f"rack-{i % 2}") for i in range(4)]
    world = AFleet(nodes).running(a_job("a", gpus=8)).waiting(a_job("gang", gpus=16, within="rack"))
    (start,) = world.plan().starts
    parts = [start.node, *(node for node, _ in start.rest)]
    assert {world.fleet.nodes[node].rack for node in parts} == {"rack-1"}


def test_a_gang_for_one_nvlink_domain_gets_one_domain() -> None:
    node = replace(a_node(gpus=8), nvlink_gpus=4)
    world = AFleet([node]).running(a_job("a", gpus=2)).waiting(a_job("gang", gpus=4, within="nvlink"))
    (start,) = world.plan().starts
    assert start.gpus == (4, 5, 6, 7)


def test_small_jobs_do_not_starve_a_large_gang() -> None:
    """A stream of one-GPU jobs always fills the hole first, unless somebody keeps the hole."""
    small = [
        Arrival(at_s=60 * i, job=Job(job=f"s{i}", gpus=1, predicted_work_s=600.0), work_s=600.0)
        for i in range(400)
    ]
    gang = Arrival(at_s=600, job=Job(job="gang", gpus=8, predicted_work_s=600.0), work_s=600.0)
    arrivals = sorted([*small, gang], key=lambda arrival: arrival.at_s)

    def waited(rules: Rules) -> int:
        outcome = rehearse(arrivals, [replace(a_node(gpus=8), site="sim")], rules)
        state = outcome.fleet.jobs["gang"]
        assert state.first_start_s is not None
        return state.first_start_s - state.submitted_s

    assert waited(Rules(order="fifo", backfill="greedy")) > 20_000
    assert waited(Rules(order="fifo", backfill="reserve")) <= 1200
    assert waited(POLICIES["brim"]) <= 600 / POLICIES["brim"].ageing  # what ageing promises


def test_backfill_lets_pass_who_will_be_gone_in_time_and_nobody_else() -> None:
    rules = Rules(order="fifo", backfill="reserve")
    world = a_fleet(gpus_per_node=8).running(a_job("busy", gpus=6, predicted_work_s=1000.0))
    world.waiting(a_job("gang", gpus=8), a_job("short", predicted_work_s=900.0))
    world.waiting(a_job("long", predicted_work_s=1100.0), a_job("unknown"))

    plan = world.plan(rules=rules)

    assert [start.job for start in plan.starts] == ["short"]
    assert plan.waits["unknown"].as_dict()["jobs"] == ["gang"]


def test_a_cell_that_is_being_emptied_is_waited_for_and_nobody_else_is_stopped() -> None:
    jobs = [a_job(f"low-{i}", gpus=8, priority="background") for i in range(2)]
    world = a_fleet(nodes=2).running(*jobs).waiting(a_job("urgent", gpus=8, priority="urgent"))
    first = world.plan(rules=BY_CLASS, now_s=0)
    assert stopped(first) == ["low-0"]

    world.carry_out(first)  # told to stop, and still stopping

    second = world.plan(rules=BY_CLASS, now_s=1)
    assert (second.starts, second.stops) == ([], [])


def test_a_job_blocked_in_one_pool_does_not_block_another_pool() -> None:
    nodes = [a_node("new", gpus=1, gpu="h100"), a_node("old", gpus=1, gpu="t4")]
    world = AFleet(nodes).running(a_job("busy", gpu_types=("h100",)))
    world.waiting(a_job("first", gpu_types=("h100",)), a_job("second", gpu_types=("h100",)))
    plan = world.waiting(a_job("other", gpu_types=("t4",))).plan(order="fifo")
    assert [start.job for start in plan.starts] == ["other"]
    behind = plan.waits["second"].as_dict()
    assert (behind["code"], behind["job"]) == ("scheduler.waits_behind", "first")


def test_a_node_is_made_whole_for_a_gang_when_its_pool_has_only_gaps() -> None:
    nodes = [a_node("a", gpus=2), a_node("b", gpus=2), a_node("old", gpus=1, gpu="k80")]
    world = AFleet(nodes)
    for job, node in (("x", "a"), ("y", "b")):
        single = a_job(job, gpu_types=("h100",), predicted_work_s=9000.0, checkpoint_interval_s=0)
        world.waiting(single).then(granted(job, node=node, gpus=(0,)), LeaseStarted(at_s=0, lease=f"{job}.1"))
    world.waiting(a_job("gang", gpus=2, gpu_types=("h100",), predicted_work_s=9000.0))

    plan = world.plan(rules=POLICIES["brim"], now_s=6000)

    assert [(stop.lease, stop.reason) for stop in plan.stops] == [
        ("x.1", say("scheduler.makes_node", job="gang"))
    ]


def test_fair_share_serves_the_queue_that_has_had_least() -> None:
    rules = POLICIES["fair"]
    world = a_fleet(gpus_per_node=8).running(a_job("greedy-1", gpus=7, tenant="greedy"))
    world.waiting(a_job("greedy-2", tenant="greedy"), at_s=10).waiting(
        a_job("modest", tenant="modest"), at_s=20
    )
    assert [start.job for start in world.plan(rules=rules, now_s=3600).starts] == ["modest"]


def test_the_highest_bid_goes_first_and_a_price_above_the_limit_waits() -> None:
    usd = 1_000_000
    world = a_fleet(gpus_per_node=1).waiting(a_job("low", limit_microusd_per_gpu_hour=3 * usd))
    world.waiting(
        a_job("high", limit_microusd_per_gpu_hour=5 * usd), a_job("poor", limit_microusd_per_gpu_hour=1)
    )
    plan = world.plan(rules=POLICIES["bid"])
    assert [start.job for start in plan.starts] == ["high"]
    assert code_of(plan.waits["poor"]) == "scheduler.no_pool_open"


def test_patient_work_waits_for_a_quiet_hour_and_not_beyond_its_deadline() -> None:
    night = a_job("night", deferrable=True, deadline_s=10_000, predicted_work_s=4000.0)
    world = a_fleet(gpus_per_node=8).running(a_job("day", gpus=7)).waiting(night)
    rules = Rules(off_peak=True, backfill="greedy")
    told = world.plan(rules=rules, now_s=100).waits["night"].as_dict()
    assert (told["code"], told["free"], told["gpus"]) == ("scheduler.quiet_hour", 1, 8)
    assert [start.job for start in world.plan(rules=rules, now_s=5000).starts] == ["night"]


def test_an_old_card_takes_what_it_does_nearly_as_well() -> None:
    nodes = [a_node("new", gpus=1, gpu="h100"), a_node("old", gpus=1, gpu="k80")]
    picky = a_job("picky", rates=(("h100", 1.0), ("k80", 0.1)), predicted_work_s=1000.0)
    easy = a_job("easy", rates=(("h100", 1.0), ("k80", 0.9)), predicted_work_s=1000.0)
    plan = AFleet(nodes).waiting(easy, picky).plan(rules=POLICIES["brim"])
    assert {start.job: start.node for start in plan.starts} == {"picky": "new", "easy": "old"}


def test_an_urgent_gang_does_not_wait_for_a_review_to_stop_a_lower_class() -> None:
    """Under `brim` reviews are ten minutes apart, and what it may stop has run its least time long before."""
    brim = POLICIES["brim"]
    world = a_fleet().running(a_job("low", gpus=8, priority="background"), at_s=5)
    world.waiting(a_job("gang", gpus=8, priority="urgent"), at_s=60)

    assert not world.plan(rules=brim, now_s=61).stops, "it has run for less than five minutes"
    assert stopped(world.plan(rules=brim, now_s=5 + brim.min_run_s)) == ["low"]


def test_gpus_kept_for_a_gang_serve_lower_classes_that_can_be_stopped_for_it() -> None:
    """Six of eight GPUs stood idle behind a gang of eight, while background jobs waited that it may stop."""
    world = a_fleet().running(a_job("alone", gpus=2))
    world.waiting(a_job("gang", gpus=8), a_job("equal"), a_job("low", priority="background"))

    plan = world.plan(rules=BY_CLASS, now_s=10)

    assert [start.job for start in plan.starts] == ["low"], "an equal would keep the gang waiting"
    assert plan.waits["equal"].as_dict()["jobs"] == ["gang"]
    world.carry_out(plan).then(LeaseStarted(at_s=10, lease="low.1"))
    world.then(LeaseEnded(at_s=60, lease="alone.1", exit_code=0))
    assert stopped(world.plan(rules=BY_CLASS, now_s=60)) == ["low"]


def test_gpus_kept_for_a_gang_are_kept_from_whoever_cannot_be_stopped_for_it() -> None:
    world = a_fleet().running(a_job("alone", gpus=2)).waiting(a_job("gang", gpus=8))
    world.waiting(a_job("low", priority="background", min_run_s=3600))

    assert not world.plan(rules=BY_CLASS, now_s=10).starts, "it was promised an hour"
    world.waiting(a_job("short", priority="background"))
    assert not world.plan(rules=replace(BY_CLASS, preempt="none"), now_s=10).starts


def test_no_gpu_is_given_twice_beside_a_kept_cell() -> None:
    """GPUs kept for a gang may be lent to who will be gone in time, each of them to one job only."""
    long = a_job("long", gpus=4, predicted_work_s=10_000.0)
    short = [a_job(f"short-{i}", gpus=gpus, predicted_work_s=100.0) for i, gpus in enumerate((2, 2, 1))]
    world = a_fleet().running(long).waiting(a_job("gang", gpus=8)).waiting(*short, at_s=1)

    plan = world.plan(rules=Rules(order="fifo", backfill="reserve"), now_s=10)

    given = [gpu for start in plan.starts for gpu in start.gpus]
    assert {start.job for start in plan.starts} == {"short-0", "short-1"}
    assert sorted(given) == [4, 5, 6, 7]


def test_the_lowest_class_makes_room_first() -> None:
    """A normal job must not be stopped, only to push a background job away in turn."""
    normal = a_job("normal", gpus=1, checkpoint_interval_s=0)
    low = a_job("low", gpus=1, priority="background")  # has never saved: stopping it loses more
    world = a_fleet(gpus_per_node=2).running(normal, low).waiting(a_job("urgent", priority="urgent"))

    assert stopped(world.plan(rules=BY_CLASS, now_s=3600)) == ["low"]


def test_a_wide_gang_that_has_just_begun_is_not_sent_away_by_a_single_gpu() -> None:
    """By GPU-time alone it is eight times as far from its end, whoever comes."""
    gang = a_job("gang", gpus=8, checkpoint_interval_s=0)
    world = a_fleet().running(gang).waiting(a_job("single", checkpoint_interval_s=0), at_s=3000)
    brim = POLICIES["brim"]

    assert world.plan(rules=brim, now_s=3000).stops == []
    later = a_fleet().running(gang).waiting(a_job("single", checkpoint_interval_s=0), at_s=4200)
    assert stopped(later.plan(rules=brim, now_s=4200)) == ["gang"]  # more than twice as far in time too


def test_who_has_waited_long_is_not_sent_back_at_once() -> None:
    """All waiting counts, also before the job was stopped, so that nobody is pushed aside again and again."""
    patient, lucky = a_job("patient", checkpoint_interval_s=0), a_job("lucky", checkpoint_interval_s=0)
    brim = POLICIES["brim"]

    def after(submitted_s: int, job: Job) -> Plan:
        world = a_fleet(gpus_per_node=1).waiting(job, at_s=submitted_s)
        world.then(
            granted(job.job, gpus=(0,), at_s=100_000), LeaseStarted(at_s=100_000, lease=f"{job.job}.1")
        )
        return world.waiting(a_job("new", checkpoint_interval_s=0), at_s=104_400).plan(
            rules=brim, now_s=104_400
        )

    assert stopped(after(100_000, lucky)) == ["lucky"]
    assert after(0, patient).stops == []


def test_a_job_that_must_start_now_to_be_in_time_goes_first_and_pushes_others_aside() -> None:
    """An hour of work due in 75 minutes: a quarter more than the work is just left."""
    due = a_job("due", predicted_work_s=3600.0, deadline_s=4500 + 1000)
    short = a_job("short", predicted_work_s=1800.0)
    long = a_job("long", predicted_work_s=20_000.0, checkpoint_interval_s=0)
    world = a_fleet(gpus_per_node=1).running(long).waiting(short, due, at_s=990)
    brim = POLICIES["brim"]

    plan = world.plan(rules=brim, now_s=1000)

    assert [stop.reason for stop in plan.stops] == [say("scheduler.preempted_by", job="due")]
    off = world.plan(rules=replace(brim, deadlines=False), now_s=1000)
    assert [stop.reason for stop in off.stops] == [say("scheduler.preempted_by", job="short")]


def test_a_job_that_must_go_on_to_be_in_time_is_not_the_victim() -> None:
    due = a_job("due", predicted_work_s=20_000.0, deadline_s=25_100, checkpoint_interval_s=0)
    other = a_job("other", predicted_work_s=20_000.0, checkpoint_interval_s=3600)  # a stop loses its work
    world = (
        a_fleet(gpus_per_node=2).running(due, other).waiting(a_job("new", predicted_work_s=60.0), at_s=3000)
    )
    brim = POLICIES["brim"]

    assert stopped(world.plan(rules=brim, now_s=3000)) == ["other"]
    assert stopped(world.plan(rules=replace(brim, deadlines=False), now_s=3000)) == ["due"]


def test_a_job_that_is_late_already_sends_nobody_away() -> None:
    late = a_job("late", predicted_work_s=3600.0, deadline_s=2000)
    running = a_job("running", predicted_work_s=6000.0, checkpoint_interval_s=0)
    world = a_fleet(gpus_per_node=1).running(running).waiting(late, at_s=990)
    assert world.plan(rules=POLICIES["brim"], now_s=1000).stops == []


def test_deadlines_are_kept_that_shortest_first_would_miss() -> None:
    """Short jobs without end, and one longer job that has to be done within six hours."""
    due = Arrival(at_s=0, job=a_job("due", deadline_s=6 * 3600, checkpoint_interval_s=0), work_s=7200)
    stream = [
        Arrival(at_s=600 * i, job=a_job(f"s{i}", checkpoint_interval_s=0), work_s=590) for i in range(80)
    ]
    arrivals = [
        replace(each, job=replace(each.job, predicted_work_s=float(each.work_s))) for each in [due, *stream]
    ]
    brim = POLICIES["brim"]
    ended = {
        on: rehearse(arrivals, [a_node(gpus=1)], replace(brim, deadlines=on)).fleet.jobs["due"].ended_s
        for on in (True, False)
    }
    assert (ended[True] or 0) <= 6 * 3600 < (ended[False] or 0)


@pytest.mark.parametrize("policy", ["priority", "backfill", "fair"])
def test_by_class_and_age_too_who_must_start_soon_goes_first_in_its_class(policy: str) -> None:
    """An hour of work that came at 0 and must start by 10,000 s goes first from 5,000 s on."""
    due = a_job("due", predicted_work_s=3600.0, deadline_s=14_500)
    later = a_job("later", predicted_work_s=3600.0, deadline_s=15_500)
    world = a_fleet(gpus_per_node=1).running(a_job("busy")).waiting(a_job("first"), later, due)
    world.waiting(a_job("urgent", priority="urgent"), at_s=4000)

    def order(now_s: int, rules: Rules = POLICIES[policy]) -> list[str]:
        return [state.job.job for state in waiting_in_order(world.fleet, rules, now_s=now_s)]

    assert order(4999) == ["urgent", "first", "due", "later"]
    assert order(5000) == ["urgent", "due", "first", "later"]
    assert order(99_000) == ["urgent", "due", "later", "first"], "the late keep their place"
    off = replace(POLICIES[policy], deadlines=False)
    assert order(99_000, off) == ["urgent", "first", "later", "due"]


def test_a_server_that_orders_by_priority_keeps_a_deadline_that_first_come_would_miss() -> None:
    """Two hours of work due within six, behind eight jobs of an hour each."""
    line = [Arrival(at_s=0, job=a_job(f"s{i}"), work_s=3600) for i in range(8)]
    due = a_job("due", deadline_s=6 * 3600, predicted_work_s=7200.0)
    arrivals = [*line, Arrival(at_s=60, job=due, work_s=7200)]
    live = Rules(types="cheap", preempt="priority", deadlines=True)
    ended = {
        on: rehearse(arrivals, [a_node(gpus=1)], replace(live, deadlines=on)).fleet.jobs["due"].ended_s
        for on in (True, False)
    }
    assert (ended[True] or 0) <= 6 * 3600 < (ended[False] or 0)


def test_a_type_without_the_memory_is_refused_with_the_numbers() -> None:
    gib = 1 << 30
    small, large = a_node("small", gpu="a100-sxm-40gb", gpus=2), a_node("large", gpu="a100-sxm-80gb", gpus=1)
    peak = (("a100-sxm-40gb", 60 * gib), ("a100-sxm-80gb", 60 * gib))
    world = AFleet([small, large]).waiting(a_job("big", peak_bytes=peak), a_job("other", peak_bytes=peak))

    plan = world.plan(rules=POLICIES["brim"])

    assert [(start.job, start.node) for start in plan.starts] == [("big", "large")]
    none = say("scheduler.too_few_free_node", gpus=count("gpu", 1), most=0, total=0)
    assert plan.waits["other"] == none
    alone = AFleet([small]).waiting(a_job("big", peak_bytes=peak)).plan(rules=POLICIES["brim"])
    assert alone.starts == []
    (needs,) = alone.waits["big"].as_dict()["needs"]
    assert (needs["code"], needs["needs"]) == ("scheduler.memory_on_gpu", 60 << 30)


def test_a_share_of_a_gpu_has_that_share_of_its_memory() -> None:
    gib = 1 << 30
    fits = a_job("fits", gpu_milli=500, peak_bytes=(("a100-sxm-80gb", 30 * gib),))
    more = a_job("more", gpu_milli=250, peak_bytes=(("a100-sxm-80gb", 30 * gib),))
    plan = AFleet([a_node(gpu="a100-sxm-80gb", gpus=1)]).waiting(fits, more).plan(rules=POLICIES["brim"])

    assert [start.job for start in plan.starts] == ["fits"]
    (needs,) = plan.waits["more"].as_dict()["needs"]
    assert (needs["code"], needs["share"]) == ("scheduler.memory_on_share", 0.25)
