"""Whatever call to store or engine fails, before its effect or after it, and whether or not the server dies
of it: every job ends, none runs twice at once, and the money adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from brimful.errors import WorldFailed
from brimful.fleet.events import CancelRequested, Event, JobSubmitted
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.state import OVER, Fleet
from brimful.language import verbatim
from brimful.market.ledger import Ledger
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import Failures, Observation, Ports, Start
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import a_job, a_node

RULES = Rules(preempt="priority", min_run_s=0)
LAST_S = 40


class Died(BaseException):
    """The server is gone, in the middle of the call."""


@dataclass
class Fault:
    """Strikes at the k-th call; `seen` counts them."""

    at: int = 0
    after: bool = False
    kind: type[BaseException] = WorldFailed
    seen: int = 0

    def __call__(self, act: Callable[[], Any]) -> Any:
        self.seen += 1
        if self.seen != self.at:
            return act()
        if self.after:
            act()
        raise self.kind(verbatim("struck"))


@dataclass
class Site:
    """Runs jobs for the seconds they ask for, remembers all of them, and is idempotent by lease."""

    site: str
    has: list[Node]
    fault: Fault
    now_s: int = 0
    began: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    job_of: dict[str, str] = field(default_factory=dict)

    def nodes(self) -> Sequence[Node]:
        found: Sequence[Node] = self.fault(lambda: self.has)
        return found

    def start(self, starts: Sequence[Start]) -> Failures:
        for each in starts:
            self.fault(partial(self._begin, each.lease, each.job))
        return {}

    def _begin(self, lease: str, job: Job) -> None:
        if lease not in self.began and lease not in self.refused:
            self.began[lease], self.job_of[lease] = self.now_s, job.job
            self.ends[lease] = self.now_s + int(job.name)

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        for lease in leases:
            self.fault(partial(self._end, lease))
        return {}

    def _end(self, lease: str) -> None:
        if lease in self.began:
            self.ends[lease] = min(self.ends[lease], self.now_s)
        else:
            self.refused.add(lease)

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        found: Sequence[Observation] = self.fault(lambda: [self._look(lease) for lease in leases])
        return found

    def _look(self, lease: str) -> Observation:
        if lease not in self.began:
            return Observation(lease=lease, state="absent")
        began_s, ends_s = self.began[lease], self.ends[lease]
        if ends_s > self.now_s:
            return Observation(lease=lease, state="running", started_s=began_s)
        return Observation(lease=lease, state="ended", started_s=began_s, ended_s=ends_s, exit_code=0)


class FaultyStore(MemoryStore):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def since(self, seq: int) -> Sequence[Event]:
        found: Sequence[Event] = self._fault(lambda: super(FaultyStore, self).since(seq))
        return found

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        written: bool = self._fault(lambda: super(FaultyStore, self).append(events, after=after))
        return written


def a_run(fault: Fault) -> tuple[Fleet, Ledger, list[Site]]:
    """Two sites, a preemption, a cancel, jobs that queue: with one fault on the way."""
    store = FaultyStore(fault)
    sites = [Site(s, [replace(a_node(f"{s}-0", gpus=2), site=s)], fault) for s in ("east", "west")]
    wanted = [
        *((0, a_job(f"b{i}", name="12", priority="background", retries=99)) for i in range(4)),
        (3, a_job("n", name="5", gpus=2, retries=99)),
        (5, a_job("u", name="4", gpus=2, priority="urgent", retries=99)),
        (6, a_job("q", name="5", budget_microusd=10**6, retries=99)),
    ]
    fleet = Fleet()
    ports = Ports(store=store, engines={each.site: each for each in sites})
    for now_s in range(LAST_S):
        for site in sites:
            site.now_s = now_s
        due: list[Event] = [JobSubmitted(at_s=now_s, job=job) for at_s, job in wanted if at_s == now_s]
        if now_s == 8:
            due.append(CancelRequested(at_s=now_s, job="q"))
        store.log.extend(due)
        try:
            tick(fleet, ports, RULES, now_s=now_s)
        except WorldFailed:
            pass  # the loop says so and goes on
        except Died:
            fleet = Fleet()
            ports = Ports(store=store, engines={each.site: each for each in sites})
        no_job_runs_twice(sites, now_s)
    ledger, fleet = Ledger(), Fleet()
    for event in store.log:
        ledger.apply(event)
        fleet.apply(event)
    return fleet, ledger, sites


def no_job_runs_twice(sites: list[Site], now_s: int) -> None:
    going = [s.job_of[lease] for s in sites for lease in s.began if s.ends[lease] > now_s]
    assert len(going) == len(set(going))


CALLS = Fault()
a_run(CALLS)


@pytest.mark.parametrize("kind", [WorldFailed, Died])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_call_may_fail(kind: type[BaseException], after: bool) -> None:
    assert CALLS.seen > 200, "the run is busy enough to mean something"
    for at in range(1, CALLS.seen + 1):
        fault = Fault(at=at, after=after, kind=kind)
        fleet, ledger, sites = a_run(fault)
        told = f"call {at}"
        phases = {name: state.phase for name, state in fleet.jobs.items()}
        assert len(phases) == 7, told
        assert phases.pop("q") in ("cancelled", "finished"), told
        assert set(phases.values()) == {"finished"}, (told, phases)
        assert fleet.open_leases == {}, told
        assert sum(ledger.balances.values()) == 0, told
        for name, state in fleet.jobs.items():
            assert state.phase in OVER
            ran = sum(s.ends[x] - s.began[x] for s in sites for x in s.began if s.job_of[x] == name)
            assert state.run_s == ran, (told, name, "what ran was billed, and nothing else")
