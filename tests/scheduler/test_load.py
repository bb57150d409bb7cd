"""Once an hour the log is told how busy each pool is."""

from __future__ import annotations

from brimful.fleet.events import LoadSeen
from brimful.scheduler.load import load_seen
from tests.builders import a_fleet, a_job

HOUR = 3600


def test_what_is_held_and_what_waits_is_told_once_an_hour() -> None:
    fleet = a_fleet(nodes=2, gpus_per_node=8).running(a_job("a", gpus=8)).waiting(a_job("b", gpus=8))

    (seen,) = load_seen(fleet.fleet, now_s=HOUR)

    assert isinstance(seen, LoadSeen)
    assert (seen.held, seen.wanted, seen.gpus) == (8, 8, 16)
    fleet.then(seen)
    assert load_seen(fleet.fleet, now_s=HOUR + 1800) == []
    assert len(load_seen(fleet.fleet, now_s=2 * HOUR)) == 1


def test_nothing_is_told_before_anybody_asked_for_a_gpu() -> None:
    assert load_seen(a_fleet().fleet, now_s=HOUR) == []
