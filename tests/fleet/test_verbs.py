"""What users ask of jobs and nodes besides submit and cancel, as the fleet folds it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    MoveRequested,
    NodeDrained,
    NodeLeft,
    NodeResumed,
    from_record,
    to_record,
)
from brimful.language import (
    Factor,
    Number,
    Percent,
    Plain,
    Quoted,
    Seconds,
    Several,
    Size,
    Usd,
    language,
    say,
    verbatim,
)
from brimful.language.record import said_in
from tests.builders import AFleet, a_fleet, a_job, a_node, joined


def test_a_held_job_does_not_start_and_waits_again_when_released() -> None:
    fleet = a_fleet().waiting(a_job("a")).then(JobHeld(at_s=1, job="a"))
    assert fleet.fleet.jobs["a"].phase == "held"
    assert fleet.plan().starts == []

    fleet.then(JobReleased(at_s=5, job="a"))
    assert fleet.fleet.jobs["a"].waiting_since_s == 5
    assert [start.job for start in fleet.plan().starts] == ["a"]


def test_a_running_job_on_hold_is_stopped_and_does_not_come_back_by_itself() -> None:
    fleet = a_fleet().running(a_job("a"))
    fleet.then(
        JobHeld(at_s=1, job="a"), LeaseEnding(at_s=1, lease="a.1", reason=verbatim("hold"), requeue=True)
    )
    fleet.then(LeaseEnded(at_s=3, lease="a.1", exit_code=0))
    assert (fleet.fleet.jobs["a"].phase, fleet.plan().starts) == ("held", [])

    fleet.then(CancelRequested(at_s=4, job="a"))
    assert fleet.fleet.jobs["a"].reason == say("fleet.cancelled_held")


def test_a_moved_job_starts_at_that_site_only() -> None:
    there = replace(a_node("node-1", gpus=1), site="there")
    fleet = AFleet([a_node("node-0"), there]).waiting(a_job("a", gpus=2), a_job("b"))
    fleet.then(
        MoveRequested(at_s=1, job="a", sites=("there",)), MoveRequested(at_s=1, job="b", sites=("there",))
    )
    plan = fleet.plan()
    assert [(start.job, start.node) for start in plan.starts] == [("b", "node-1")]
    assert plan.waits["a"].as_dict()["most"] == 1

    fleet.then(MoveRequested(at_s=2, job="a", sites=()))
    assert {start.job for start in fleet.plan().starts} == {"a", "b"}


def test_a_drained_node_starts_nothing_keeps_what_runs_and_stays_drained_when_it_comes_back() -> None:
    fleet = (
        a_fleet(nodes=1).running(a_job("a")).then(NodeDrained(at_s=1, node="node-0", reason=verbatim("fans")))
    )
    fleet.waiting(a_job("b"))
    assert fleet.plan().starts == []
    assert fleet.plan().waits["b"].as_dict()["has"] == {"code": "scheduler.no_node_takes_work"}
    assert fleet.plan().waits["b"].as_dict()["drained"] == {"code": "scheduler.drained", "nodes": 1}
    assert "a.1" in fleet.fleet.open_leases

    fleet.then(LeaseEnded(at_s=2, lease="a.1", exit_code=0), NodeLeft(at_s=3, node="node-0"))
    fleet.then(joined(a_node("node-0"), at_s=4))
    assert fleet.plan().starts == []

    fleet.then(NodeResumed(at_s=5, node="node-0"))
    assert [start.gpus for start in fleet.plan().starts] == [(0,)]


def test_a_resumed_node_does_not_offer_what_is_still_held() -> None:
    fleet = a_fleet(nodes=1, gpus_per_node=2).running(a_job("a"))
    fleet.then(NodeDrained(at_s=1, node="node-0"), NodeResumed(at_s=2, node="node-0"))
    assert fleet.fleet.free("node-0") == (1,)


def test_a_key_belongs_to_its_submitter() -> None:
    fleet = a_fleet().waiting(a_job("a", key="k", submitter="x"), a_job("b", key="k", submitter="y"))
    assert fleet.fleet.keyed == {("x", "k"): "a", ("y", "k"): "b"}


EVERY_KIND = say(
    "scheduler.outbid_short",
    outbid=say("scheduler.outbid_by", jobs=Several(("b", "c")), price=Usd(3_000_000)),
    limit=Usd(2_500_000),
    above=Several(
        (Seconds(5), Size(1 << 30), Percent(0.25, 1), Number(1.5, 1), Plain(7), Quoted("x"), Factor(2.0))
    ),
)


@pytest.mark.parametrize(
    "event",
    [
        JobHeld(at_s=1, job="a", reason=verbatim("r")),
        JobReleased(at_s=1, job="a"),
        MoveRequested(at_s=1, job="a", sites=("x",)),
        NodeDrained(at_s=1, node="n", reason=verbatim("r")),
        NodeResumed(at_s=1, node="n"),
        LeaseEnding(at_s=1, lease="a.1", reason=EVERY_KIND, requeue=True),
        LeaseEnded(
            at_s=1, lease="a.1", exit_code=1, reason=Several((say("fleet.cancelled_held"), "x"), "; ")
        ),
        JobSubmitted(
            at_s=1, job=a_job("a", sites=("x",), peak_bytes=(("h100", 5),), step_s=(("h100", 0.5),))
        ),
    ],
)
def test_an_event_comes_back_from_its_record_as_it_was(event: Event) -> None:
    kind, version, body = to_record(event)
    assert from_record(kind, version, json.loads(json.dumps(body))) == event


def test_a_reason_in_an_older_log_is_a_text_and_reads_as_one() -> None:
    body = {"at_s": 1, "lease": "a.1", "reason": "preempted by b", "requeue": True}
    ending = from_record("LeaseEnding", 1, body)
    assert isinstance(ending, LeaseEnding)
    assert ending.reason == verbatim("preempted by b")


def test_a_reason_in_the_log_is_said_in_the_language_of_its_reader() -> None:
    _, _, body = to_record(LeaseEnding(at_s=1, lease="a.1", reason=EVERY_KIND, requeue=True))
    assert body["reason"]["code"] == "scheduler.outbid_short"
    assert body["reason"]["limit"] == {"microusd": 2_500_000}
    said = said_in(body["reason"])
    assert said is not None
    assert language("de").text(said).startswith("überboten von b, c, bei 3,00\u00a0$ pro GPU-Stunde; ")
