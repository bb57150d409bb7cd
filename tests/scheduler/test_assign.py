"""Settling GPU types: what is skipped at a review must change nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.fleet.events import LeaseEnded, LeaseEnding, LeaseStarted
from brimful.fleet.lease import JobState
from brimful.language import verbatim
from brimful.scheduler.decide import decide
from brimful.scheduler.ordering import first_waiting
from brimful.scheduler.placing.assign import (
    ROOM_FOR_ALL,
    ROUNDS,
    _go_elsewhere,
    _Hopes,
    _swap,
    _trade,
    _Want,
)
from brimful.scheduler.policies import POLICIES
from tests.builders import AFleet, a_fleet, a_job, a_node, granted

NOBODY = JobState(
    job=a_job("nobody"), serial=0, shape=0, phase="waiting", submitted_s=0, leases=[]
)  # the swap never asks whose want it is
PLACES = 3


@st.composite
def reviews(draw: st.DrawFn) -> tuple[list[_Want], list[int]]:
    """Jobs that hold GPUs of three pools, or wait, and what room the pools have left."""
    worth = st.sampled_from([-inf, 0.25, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0])
    wants = []
    for _ in range(draw(st.integers(1, 12))):
        values = [draw(worth) for _ in range(PLACES)] + [0.0]
        at = draw(st.sampled_from([i for i, each in enumerate(values) if each != -inf]))
        wants.append(_Want(NOBODY, draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(0, 1)), values, at))
    return wants, [*[draw(st.integers(0, 2)) for _ in range(PLACES)], ROOM_FOR_ALL]


def _swap_plainly(wants: list[_Want], room: list[int]) -> None:
    """Everybody asks everybody, in every round."""
    hopes = _Hopes(wants, len(room))
    for _ in range(ROUNDS):
        for i, one in enumerate(wants):
            _go_elsewhere(one, room)
            _trade(one, wants[:i], room, hopes)


@given(reviews())
@settings(max_examples=150, deadline=None)
def test_jobs_change_places_as_if_each_had_asked_all_others(review: tuple[list[_Want], list[int]]) -> None:
    wants, room = review
    plain_wants, plain_room = deepcopy(wants), list(room)

    _swap(wants, room)
    _swap_plainly(plain_wants, plain_room)

    assert [want.at for want in wants] == [want.at for want in plain_wants]
    assert room == plain_room


def test_what_a_job_has_had_of_each_type_is_what_its_leases_say() -> None:
    fleet = a_fleet(nodes=1, gpus_per_node=8).running(a_job("moved", gpus=8)).fleet
    state = fleet.jobs["moved"]
    lease = state.leases[-1]
    assert lease.started_s is not None
    at_s = lease.started_s + 500

    fleet.apply(LeaseEnding(at_s=at_s, lease=lease.lease, reason=verbatim("moves"), requeue=True))
    fleet.apply(LeaseEnded(at_s=at_s, lease=lease.lease, exit_code=None))

    assert state.run_s_on == {lease.gpu: 500}
    assert sum(state.run_s_on.values()) == state.run_s


RATES = (("new", 1.0), ("old", 0.25))
REVIEW_S = 6000  # on the grid of reviews


def _mixed() -> AFleet:
    return AFleet([a_node("node-new", gpus=2, gpu="new"), a_node("node-old", gpus=2, gpu="old")])


def test_a_review_looks_at_the_first_of_those_who_wait_and_not_at_all() -> None:
    fleet = _mixed().waiting(*[a_job(f"{i}", rates=RATES, predicted_work_s=1000.0 - i) for i in range(50)])

    looked_at = [each.job.job for each in first_waiting(fleet.fleet, POLICIES["brim"], gpus=8, now_s=0)]

    assert looked_at == [f"{49 - i}" for i in range(9)]


def test_what_a_review_settled_is_carried_out_once_those_who_move_have_stopped() -> None:
    """The long job leaves the fast GPUs for the short one, and goes to the slow ones: both by one review."""
    world = _mixed().running(a_job("long", gpus=2, rates=RATES, predicted_work_s=90_000.0))
    world.waiting(a_job("short", gpus=2, rates=RATES, predicted_work_s=9_000.0), at_s=REVIEW_S - 1)
    prices, rules = world.fleet.posted_prices(), POLICIES["brim"]

    settled = decide(world.fleet, rules, prices, now_s=REVIEW_S)
    world.carry_out(settled).then(
        LeaseEnded(at_s=REVIEW_S + 2, lease="long.1", exit_code=None, kept_work_s=REVIEW_S)
    )
    then = decide(world.fleet, rules, prices, now_s=REVIEW_S + 2, review=settled.review)

    assert [stop.lease for stop in settled.stops] == ["long.1"]
    assert {start.job: start.node for start in then.starts} == {"short": "node-new", "long": "node-old"}
    assert settled.review is not None
    assert then.review == replace(settled.review, starting=())  # nobody looked anew, and all are there
    world.carry_out(then)
    later = decide(world.fleet, rules, prices, now_s=REVIEW_S + 30, review=then.review)
    assert later.review is None


def test_for_the_least_makespan_the_longest_of_known_jobs_goes_first_and_to_the_fast_gpus() -> None:
    rules = replace(POLICIES["brim"], objective="makespan")
    short = a_job("short", gpus=2, rates=RATES, predicted_work_s=9_000.0)
    long = a_job("long", gpus=2, rates=RATES, predicted_work_s=90_000.0)
    world = _mixed().waiting(short, long, at_s=REVIEW_S - 1)
    plan = world.plan(rules=rules, now_s=REVIEW_S)
    assert {start.job: start.node for start in plan.starts} == {"long": "node-new", "short": "node-old"}

    for of, first in ((POLICIES["brim"], "short"), (rules, "long")):
        one_type = a_fleet(nodes=1, gpus_per_node=2).waiting(
            replace(short, rates=()), replace(long, rates=())
        )
        assert [start.job for start in one_type.plan(rules=of, now_s=0).starts] == [first]


def test_for_the_least_makespan_nobody_is_stopped_for_a_shorter_job() -> None:
    brim = POLICIES["brim"]
    for rules, stops in ((brim, ["long.1"]), (replace(brim, objective="makespan"), [])):
        world = a_fleet(nodes=1, gpus_per_node=2).running(a_job("long", gpus=2, predicted_work_s=90_000.0))
        world.waiting(a_job("short", gpus=2, predicted_work_s=900.0), at_s=REVIEW_S - 1)
        plan = world.plan(rules=rules, now_s=REVIEW_S)
        assert [stop.lease for stop in plan.stops] == stops


def test_two_that_share_a_gpu_are_one_gpu_to_a_review() -> None:
    """Each counted as a whole one: a third went to a GPU that is four times as slow, with a fast one free."""
    world = AFleet([a_node("node-new", gpus=2, gpu="new"), a_node("node-old", gpus=2, gpu="old")])
    for name in ("half", "other-half"):
        world.waiting(a_job(name, gpu_milli=500, rates=RATES, predicted_work_s=9_000.0))
        world.then(granted(name, node="node-new", gpus=[0]), LeaseStarted(at_s=0, lease=f"{name}.1"))
    world.waiting(a_job("whole", rates=RATES, predicted_work_s=9_000.0), at_s=REVIEW_S - 1)

    plan = world.plan(rules=POLICIES["brim"], now_s=REVIEW_S)

    assert plan.stops == []
    assert [(start.job, start.node) for start in plan.starts] == [("whole", "node-new")]


def test_who_was_moved_often_is_moved_only_for_a_large_gain() -> None:
    """As much work left as who waits, and a little more: it would change places if that were free."""

    def stops(moves: int, *, stay: bool) -> list[str]:
        world = AFleet([a_node("node-new", gpus=2, gpu="new"), a_node("node-old", gpus=1, gpu="old")])
        world.running(a_job("moved", gpus=2, rates=RATES, checkpoint_interval_s=0))
        for i in range(1, moves + 1):
            at_s, lease = 600 * i, f"moved.{i}"
            world.then(LeaseEnding(at_s=at_s, lease=lease, reason=None, requeue=True))
            world.then(LeaseEnded(at_s=at_s, lease=lease, exit_code=None))
            plan = world.plan(rules=replace(POLICIES["brim"], move=False), now_s=at_s)
            world.carry_out(plan).then(LeaseStarted(at_s=at_s, lease=f"moved.{i + 1}"))
        world.waiting(a_job("new", gpus=2, rates=RATES, predicted_work_s=5000.0), at_s=REVIEW_S - 1)
        rules = replace(POLICIES["brim"], stay=stay)
        return [stop.lease for stop in world.plan(rules=rules, now_s=REVIEW_S).stops]

    assert stops(0, stay=True) == ["moved.1"]
    assert stops(5, stay=False) == ["moved.6"]
    assert stops(5, stay=True) == []
