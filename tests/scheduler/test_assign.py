"""Settling GPU types: what is skipped at a review must change nothing."""

from __future__ import annotations

from copy import deepcopy
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.fleet.events import LeaseEnded, LeaseEnding
from brimful.fleet.lease import JobState
from brimful.language import verbatim
from brimful.scheduler.placing.assign import (
    ROOM_FOR_ALL,
    ROUNDS,
    _go_elsewhere,
    _Hopes,
    _swap,
    _trade,
    _Want,
)
from tests.builders import a_fleet, a_job

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
