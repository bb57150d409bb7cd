"""Moves between GPU types: nobody moves for nothing, and nobody is moved so often that it never gets on."""

from __future__ import annotations

from brimful.fleet.events import LeaseEnded, LeaseEnding, LeaseGranted, LeaseStarted
from brimful.language import verbatim
from brimful.scheduler.placing.assign import may_move
from brimful.scheduler.policies import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse
from tests.builders import AFleet, a_job, a_node


def arrivals(count: int, *, work_s: int, every_s: int, checkpoint_interval_s: int) -> list[Arrival]:
    return [
        Arrival(
            at_s=i * every_s,
            job=a_job(f"j{i}", gpus=1, checkpoint_interval_s=checkpoint_interval_s, checkpoint_cost_s=60),
            work_s=work_s,
        )
        for i in range(count)
    ]


def test_types_of_one_speed_are_no_reason_to_move() -> None:
    """Ties once went to the pool whose name comes first: every job moved there as soon as it had room."""
    some = arrivals(8, work_s=7200, every_s=600, checkpoint_interval_s=0)
    done = rehearse(some, parse_fleet("2x4:b@0.40+2x4:a@1.60"), POLICIES["las-aware"], seed=0)
    states = done.fleet.jobs.values()
    assert all(state.phase == "finished" for state in states)
    assert sum(state.preemptions for state in states) == 0


def test_reviews_closer_than_checkpoints_do_not_keep_jobs_from_getting_on() -> None:
    """`las` deals anew every six minutes; who saves every thirty lost all of it each time, for ever."""
    some = arrivals(8, work_s=7200, every_s=0, checkpoint_interval_s=1800)
    done = rehearse(some, parse_fleet("1x1:a+1x1:b"), POLICIES["las"], seed=0)
    assert all(state.phase == "finished" for state in done.fleet.jobs.values())
    # Four jobs a GPU, two hours each; a quarter more for restarts and what was lost between two saves.
    assert done.end_s <= 4 * 7200 * 5 // 4


def stopped_once(checkpoint_interval_s: int | None) -> AFleet:
    """A job that ran for 5,000 s and was stopped has been at it again for 400 s; a fresh one waits."""
    world = AFleet([a_node("node-0", gpus=1)])
    world.running(a_job("long", checkpoint_interval_s=checkpoint_interval_s))
    world.then(
        LeaseEnding(at_s=5000, lease="long.1", reason=verbatim("preempted"), requeue=True),
        LeaseEnded(at_s=5000, lease="long.1", exit_code=None, requeue=True),
        LeaseGranted(
            at_s=7400, lease="long.2", job="long", node="node-0", gpus=(0,), microusd_per_gpu_hour=0
        ),
        LeaseStarted(at_s=7400, lease="long.2"),
    )
    return world.waiting(a_job("fresh"), at_s=7800)


def test_who_loses_all_of_a_run_is_let_run_longer_than_before() -> None:
    """Who never saves began anew, and was sent away as the one with most behind it, for ever."""
    rules = POLICIES["brim"]
    saves, never = stopped_once(0), stopped_once(None)
    assert [stop.lease for stop in saves.plan(rules=rules, now_s=7800).stops] == ["long.2"]
    assert never.plan(rules=rules, now_s=7800).stops == []
    assert [stop.lease for stop in never.plan(rules=rules, now_s=7400 + 12_000).stops] == ["long.2"]
    assert not may_move(never.fleet.jobs["long"], rules, now_s=7800)
    assert may_move(saves.fleet.jobs["long"], rules, now_s=7800)
