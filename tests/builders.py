"""Small fleets and jobs for tests: they hide what a test does not care about."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from brimful.errors import BrimfulError, Said
from brimful.fleet.events import Event, JobSubmitted, LeaseGranted, LeaseStarted, NodeJoined
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet, Node
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import Engine, Failures, Observation, Start
from brimful.scheduler.rules import Ordering, Rules
from tests.patience import PATIENCE_S

USD = 1_000_000


def code_of(said: Said | None) -> str:
    """Which sentence it is: tests hold codes and numbers, not words."""
    return "" if said is None else str(said.as_dict()["code"])


def a_job(job: str, *, gpus: int = 1, priority: str = "normal", **more: object) -> Job:
    return Job(job=job, gpus=gpus, priority=priority, command=("true",), folder="/", **more)  # type: ignore[arg-type]


def a_node(node: str = "node-0", *, gpus: int = 8, gpu: str = "h100", usd: int = 2) -> Node:
    return Node(site="here", node=node, gpu=gpu, gpus=gpus, microusd_per_gpu_hour=usd * USD, declared=True)


def joined(node: Node, at_s: int = 0) -> NodeJoined:
    return NodeJoined.of(node, at_s=at_s)


def granted(
    job: str, *, node: str = "node-0", gpus: Sequence[int], at_s: int = 0, usd: int = 2
) -> LeaseGranted:
    return LeaseGranted(
        at_s=at_s, lease=f"{job}.1", job=job, node=node, gpus=tuple(gpus), microusd_per_gpu_hour=usd * USD
    )


class AFleet:
    """`a_fleet(nodes=2).running(job).waiting(job)`: a state made of real events."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.fleet = Fleet()
        self.events: list[Event] = []
        self._apply(*[joined(node) for node in nodes])

    def running(self, *jobs: Job, at_s: int = 0) -> AFleet:
        for job in jobs:
            self.waiting(job, at_s=at_s)
            node = next(n for n in self.fleet.nodes if len(self.fleet.free(n)) >= job.gpus)
            gpus = self.fleet.free(node)[: job.gpus]
            self._apply(granted(job.job, node=node, gpus=gpus, at_s=at_s))
            self._apply(LeaseStarted(at_s=at_s, lease=f"{job.job}.1"))
        return self

    def waiting(self, *jobs: Job, at_s: int = 0) -> AFleet:
        self._apply(*[JobSubmitted(at_s=at_s, job=job) for job in jobs])
        return self

    def then(self, *events: Event) -> AFleet:
        self._apply(*events)
        return self

    def plan(
        self,
        *,
        order: Ordering = "priority",
        now_s: int = 0,
        unreachable: Collection[str] = (),
        rules: Rules | None = None,
    ) -> Plan:
        prices = self.fleet.posted_prices()
        rules = rules or Rules(order=order)
        return decide(self.fleet, rules, prices, now_s=now_s, unreachable=unreachable)

    def carry_out(self, plan: Plan) -> AFleet:
        """Write the plan's intents, as `tick` does."""
        self._apply(*plan.intents)
        return self

    def _apply(self, *events: Event) -> None:
        for event in events:
            self.fleet.apply(event)
            self.events.append(event)


def a_fleet(nodes: int = 1, gpus_per_node: int = 8) -> AFleet:
    return AFleet([a_node(f"node-{i}", gpus=gpus_per_node) for i in range(nodes)])


class ScriptedEngine:
    """An engine whose world the test writes: what it has, what it sees, and whether it can be reached."""

    site = "here"

    def __init__(self, *nodes: Node) -> None:
        self.has = list(nodes)
        self.sees: dict[str, Observation] = {}
        self.calls: list[tuple[str, str]] = []
        self.broken: Exception | None = None

    def nodes(self) -> Sequence[Node]:
        self._maybe_fail()
        return self.has

    def start(self, starts: Sequence[Start]) -> Failures:
        self._maybe_fail()
        self.calls += [("start", each.lease) for each in starts]
        return {}

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        self._maybe_fail()
        self.calls += [("stop", lease) for lease in leases]
        return {}

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        self._maybe_fail()
        return [self.sees.get(lease, Observation(lease=lease, state="absent")) for lease in leases]

    def _maybe_fail(self) -> None:
        if self.broken is not None:
            raise self.broken


def start_one(
    engine: Engine, lease: str, job: Job, *, node: str, gpus: Sequence[int], source: str = ""
) -> None:
    for error in engine.start([Start(lease, job, ((node, tuple(gpus)),), source)]).values():
        raise error


def stop_one(engine: Engine, lease: str, *, grace_s: int) -> None:
    for error in engine.stop([lease], grace_s=grace_s).values():
        raise error


def eventually(check: Callable[[], object]) -> None:
    """Wait for a real process to get there; fail with what it last was."""
    deadline = time.monotonic() + PATIENCE_S
    while not (last := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {last!r} after {PATIENCE_S} s")
        time.sleep(0.02)


@contextmanager
def refuses(
    kind: type[BrimfulError], code: str, *values: object
) -> Iterator[pytest.ExceptionInfo[BrimfulError]]:
    """What is done here ends in an error of this kind whose sentence has this code and these values."""
    with pytest.raises(kind) as caught:
        yield caught
    check_reason(caught.value.said.as_dict(), code, *values)


def check_reason(reason: Mapping[str, object], code: str, *values: object) -> None:
    """It is this sentence, with these values; of a place its end is enough: 'row 2' of 'trace.csv row 2'."""
    assert reason["code"] == code
    told = [f" {value}" for value in reason.values()]
    assert all(any(one.endswith(f" {value}") for one in told) for value in values), reason
