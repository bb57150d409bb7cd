"""A log as a trace: rehearsed under the policy that ran, it ends as it did."""

from __future__ import annotations

from dataclasses import replace

from bench.rehearsing import a_load
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobHeld,
    JobSubmitted,
    LeaseEnded,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
    PolicyAdopted,
)
from brimful.fleet.metrics import mean, percentile
from brimful.language import say
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.past import Figures, Past, PastReader, rehearse_past, resized
from brimful.sim.world import SITE, rehearse
from brimful.units import DAY_S, HOUR_S
from tests.builders import a_job, a_node, joined


def a_past(events: list[Event], start_s: int, end_s: int) -> Past:
    reader = PastReader()
    reader.expect(start_s)
    reader.read(events)
    return reader.past(start_s, end_s)


def under(past: Past, policy: str = "fifo") -> Figures:
    return rehearse_past(past, read_policy(policy).rules)


def test_the_policy_that_ran_would_have_done_what_it_did() -> None:
    """From the middle of a busy day, with jobs that run, wait and were stopped before."""
    arrivals = a_load([(1.0, "good")], seed=3, gpus=8)
    start_s, end_s = 14 * HOUR_S, 20 * HOUR_S
    for policy in ("backfill", "brim", "las"):
        outcome = rehearse(arrivals, parse_fleet("1x8"), read_policy(policy).rules)
        past = a_past(outcome.log, start_s, end_s)
        new = [s for s in outcome.fleet.jobs.values() if start_s <= s.submitted_s < end_s]
        # What came after the past's end has no part in it: count who was done by then.
        quiet = [each for each in arrivals if each.at_s < end_s]
        alone = rehearse(quiet, parse_fleet("1x8"), read_policy(policy).rules).fleet.jobs
        jcts = [float((alone[s.job.job].ended_s or 0) - s.submitted_s) for s in new]
        found = under(past, policy)
        assert (found.jobs, found.finished) == (len(new), len(new))
        assert found.mean_jct_s == mean(jcts)
        assert found.p99_jct_s == percentile(jcts, 99)


def test_another_policy_would_have_done_something_else() -> None:
    arrivals = a_load([(1.0, "good")], seed=3, gpus=8)
    outcome = rehearse(arrivals, parse_fleet("1x8"), read_policy("backfill").rules)
    past = a_past(outcome.log, 0, DAY_S)
    ran, better = under(past, "backfill"), under(past, "brim")
    assert sum(better.costs_s) < 0.9 * sum(ran.costs_s)
    assert ran.fill is not None
    assert 0.7 < ran.fill <= 1.0


NODE = replace(a_node(gpus=2), site=SITE)


def a_lease(job: str, *, gpus: tuple[int, ...] = (0, 1), at_s: int = 0) -> list[Event]:
    lease = f"{job}.1"
    return [
        LeaseGranted(at_s=at_s, lease=lease, job=job, node="node-0", gpus=gpus, microusd_per_gpu_hour=0),
        LeaseStarted(at_s, lease),
    ]


def ended(job: str, at_s: int) -> LeaseEnded:
    return LeaseEnded(at_s=at_s, lease=f"{job}.1", exit_code=0)


def test_a_job_that_runs_goes_on_from_where_it_is() -> None:
    events: list[Event] = [joined(NODE), JobSubmitted(0, a_job("long", gpus=2)), *a_lease("long")]
    events += [JobSubmitted(50, a_job("next", gpus=2)), ended("long", 100)]
    events += [*a_lease("next", at_s=100), ended("next", 130)]
    found = under(a_past(events, 40, 200))
    assert (found.jobs, found.finished) == (1, 1)
    assert found.mean_jct_s == 50 + 30
    assert found.mean_delay_s == 50
    assert found.costs_s == (80, 0, 0, 0, 0, 0, 0, 0)


def test_what_people_did_happens_again() -> None:
    """A job is cancelled, another is put on hold while it runs, a node leaves and comes back."""
    events: list[Event] = [joined(NODE)]
    events += [JobSubmitted(10, a_job("gone", gpus=2)), *a_lease("gone", at_s=10)]
    events += [JobSubmitted(11, a_job("held", gpus=2)), CancelRequested(at_s=20, job="gone")]
    events += [ended("gone", 21), *a_lease("held", at_s=21), JobHeld(at_s=30, job="held", reason=say("x.y"))]
    events += [NodeLeft(at_s=40, node="node-0"), NodeJoined.of(NODE, at_s=60)]
    events += [JobSubmitted(50, a_job("last", gpus=2))]
    found = under(a_past(events, 5, 100))
    assert found.jobs == 3
    assert found.finished == 1  # the last, on the node that came back
    assert found.preemptions == 1


def test_a_job_that_is_not_over_is_longer_than_what_it_has_had() -> None:
    events: list[Event] = [joined(NODE)]
    for at_s, run_s in ((0, 10), (100, 500), (1000, 20)):
        name = f"job-{at_s}"
        events += [JobSubmitted(at_s, a_job(name, gpus=2)), *a_lease(name, at_s=at_s)]
        events.append(ended(name, at_s + run_s))
    events += [JobSubmitted(2000, a_job("open", gpus=2)), *a_lease("open", at_s=2000)]
    events += [JobSubmitted(2090, a_job("strange", gpus=1))]
    past = a_past(events, 1900, 2100)
    assert past.work_s["open"] == 500.0  # it has run for 100 s
    assert past.work_s["strange"] == 600.0  # of its size nothing is known
    assert under(past).finished == 2


def test_a_policy_that_was_adopted_does_not_decide_in_a_rehearsal() -> None:
    events: list[Event] = [joined(NODE), PolicyAdopted(at_s=0, policy="las", instead_of="fifo")]
    events += [JobSubmitted(10, a_job("wide", gpus=2)), JobSubmitted(20, a_job("other", gpus=2))]
    assert under(a_past(events, 5, 100)).preemptions == 0


def test_nodes_more_or_fewer_count_whether_they_were_there_or_joined_later() -> None:
    events: list[Event] = [joined(NODE), *(JobSubmitted(10, a_job(name, gpus=2)) for name in ("one", "two"))]
    for start_s in (-100, 5):  # the node joins in this past, or was there before it
        past = a_past(events, start_s, 100)
        waits = [under(resized(past, nodes)).mean_delay_s for nodes in (0, 1, 3)]
        assert waits == [300.0, 0.0, 0.0]
        assert under(resized(past, -1)).finished == 0


def test_a_node_more_comes_when_the_one_that_it_is_like_comes() -> None:
    events: list[Event] = [JobSubmitted(0, a_job("one", gpus=2)), JobSubmitted(1, a_job("two", gpus=2))]
    events += [JobSubmitted(20, a_job("last", gpus=1)), NodeJoined.of(NODE, at_s=50)]
    asked = resized(a_past(events, -10, 100), 1).asked
    assert [(type(each).__name__, each.at_s) for each in asked[-2:]] == [("NodeJoined", 50)] * 2
