"""Moves between GPU types: nobody moves for nothing, and nobody is moved so often that it never gets on."""

from __future__ import annotations

from brimful.scheduler.rules import POLICIES
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse
from tests.builders import a_job


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
