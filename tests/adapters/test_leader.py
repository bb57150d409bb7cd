"""One server acts at a time, and one that was deposed writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from brimful.adapters.engines.processes import born
from brimful.adapters.stores import leader as leader_module
from brimful.adapters.stores.leader import LEASE_S, MARGIN_S, Leadership
from brimful.adapters.stores.schema import leader
from brimful.adapters.stores.sql import LostLead, SqlStore
from brimful.fleet.events import CancelRequested
from tests.builders import refuses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_leads_and_the_second_waits(url: str, clock: Clock) -> None:
    store = SqlStore(url)
    first, second = Leadership(store, clock=clock), Leadership(store, clock=clock)
    assert first.seek()
    for _ in range(20):
        clock.now += 2
        assert first.seek()
        assert not second.seek()
    store.close()


def test_a_silent_leader_is_deposed_after_its_lease_and_not_before(url: str, clock: Clock) -> None:
    store = SqlStore(url)
    first, second = Leadership(store, clock=clock), Leadership(store, clock=clock)
    assert first.seek()
    assert not second.seek()
    clock.now += LEASE_S - 0.1
    assert first.token == 1
    assert not second.seek()
    clock.now += 0.2
    with pytest.raises(LostLead):  # it may not act before another may
        _ = first.token
    assert not second.seek()
    clock.now += MARGIN_S
    assert second.seek()
    assert second.token == 2
    store.close()


def test_a_deposed_leader_that_wakes_up_writes_nothing(url: str, clock: Clock) -> None:
    store = SqlStore(url)
    first, second = Leadership(store, clock=clock), Leadership(store, clock=clock)
    first.seek()
    stale = first.token
    second.seek()
    clock.now += LEASE_S + MARGIN_S + 0.1
    assert second.seek()
    event = CancelRequested(at_s=1, job="a")
    with refuses(LostLead, "adapters.another_leads", 2, 1):
        store.append([event], after=0, fence=stale)
    with pytest.raises(LostLead):
        _ = first.token
    with pytest.raises(LostLead):
        store.keep_snapshot(1, "code", b"", left=[], fence=stale)
    assert not first.seek()
    assert store.end() == 0
    assert store.append([event], after=0, fence=second.token)
    store.close()


def test_a_lead_that_is_given_back_is_taken_at_once(url: str, clock: Clock) -> None:
    store = SqlStore(url)
    first, second = Leadership(store, clock=clock), Leadership(store, clock=clock)
    first.seek()
    first.give_back()
    assert not first.leads
    assert second.seek()
    first.give_back()
    assert second.seek()
    store.close()


def test_a_leader_whose_process_is_gone_from_this_machine_is_not_waited_for(url: str, clock: Clock) -> None:
    store = SqlStore(url)
    Leadership(store, clock=clock).seek()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    alive = {"machine": leader_module._machine(), "pid": child.pid, "born": born(child.pid)}

    def held_by(who: dict[str, object]) -> None:
        with store.writing() as connection:
            connection.execute(leader.update().values(holder=json.dumps(who)))

    held_by(alive)
    assert not Leadership(store, clock=clock).seek()
    child.communicate(b"\n")
    held_by({**alive, "machine": "another machine"})
    assert not Leadership(store, clock=clock).seek(), "who knows what runs there"
    held_by({**alive, "pid": os.getpid()})
    assert Leadership(store, clock=clock).seek(), "the pid is a stranger's now"
    held_by(alive)
    assert Leadership(store, clock=clock).seek()
    store.close()
