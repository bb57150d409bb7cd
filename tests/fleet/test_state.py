"""The fold: what each event makes of the fleet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brimful.errors import WorldFailed
from brimful.fleet import sharing
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseStarted,
    NodeLeft,
    NoticeGiven,
    NoticeWithdrawn,
    from_record,
    to_record,
)
from brimful.fleet.lease import NOTICES_KEPT
from brimful.fleet.metrics import measure, percentile
from brimful.fleet.node import Node
from brimful.language import verbatim
from tests.builders import AFleet, a_fleet, a_job, a_node, granted, joined, refuses


def ended(job: str, *, at_s: int, exit_code: int | None = 0) -> LeaseEnded:
    return LeaseEnded(at_s=at_s, lease=f"{job}.1", exit_code=exit_code)


def test_a_lease_that_is_warned_again_and_again_keeps_the_newest_notices() -> None:
    world = a_fleet().waiting(a_job("a", gpus=1)).then(granted("a", gpus=(0,)))
    for at_s in range(1, 60):
        world.then(NoticeGiven(at_s=at_s, lease="a.1", until_s=at_s + 60, reason=verbatim("dear")))
        world.then(NoticeWithdrawn(at_s=at_s, lease="a.1"))
    world.then(LeaseEnding(at_s=60, lease="a.1", reason=verbatim("dear"), requeue=True))

    kept = world.fleet.leases["a.1"].notices
    assert kept[-3:] == ((59, "leave", 119), (59, "stay", None), (60, "stop", None))
    assert len(kept) == NOTICES_KEPT


def test_a_lease_takes_its_gpus_from_grant_to_end() -> None:
    world = a_fleet(gpus_per_node=4).waiting(a_job("a", gpus=3))
    world.then(granted("a", gpus=(0, 1, 2)))
    assert world.fleet.free("node-0") == (3,)

    world.then(LeaseStarted(at_s=5, lease="a.1"), ended("a", at_s=65))
    assert world.fleet.free("node-0") == (0, 1, 2, 3)
    assert world.fleet.jobs["a"].phase == "finished"
    assert world.fleet.leases["a.1"].billed_s(now_s=1000) == 60


def test_a_gpu_never_has_two_tenants() -> None:
    world = a_fleet(gpus_per_node=2).running(a_job("a")).waiting(a_job("b"))
    with pytest.raises(AssertionError, match="already has a tenant"):
        world.then(granted("b", gpus=(0,)))


def test_a_shared_gpu_is_folded_as_the_log_tells_whatever_the_catalogue_says_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release that corrects a card's memory must be able to read what the one before has decided."""
    monkeypatch.setattr(sharing, "usable_bytes", lambda _gpu: 100)
    halves = [a_job(name, compute_milli=300, gpu_memory_bytes=40) for name in "abc"]
    world = a_fleet(gpus_per_node=1).waiting(*halves)
    world.then(replace(granted("a", gpus=(0,)), gpu_milli=500), LeaseStarted(at_s=5, lease="a.1"))
    monkeypatch.setattr(sharing, "usable_bytes", lambda _gpu: 50)
    world.then(replace(granted("b", gpus=(0,)), gpu_milli=500), LeaseStarted(at_s=6, lease="b.1"))
    assert [len(sharing.tenants(world.fleet, lease)) for lease in world.fleet.open_leases.values()] == [2, 2]
    with pytest.raises(AssertionError, match="already has a tenant"):
        world.then(replace(granted("c", gpus=(0,)), gpu_milli=500))


def test_a_gang_is_placed_whole() -> None:
    world = a_fleet(gpus_per_node=4).waiting(a_job("a", gpus=3))
    with pytest.raises(AssertionError, match="whole"):
        world.then(granted("a", gpus=(0, 1)))


@pytest.mark.parametrize("requeue", [True, False])
def test_a_job_that_was_faster_than_its_stop_is_finished(*, requeue: bool) -> None:
    world = a_fleet(gpus_per_node=1).running(a_job("a"))
    world.then(LeaseEnding(at_s=1, lease="a.1", reason=verbatim("preempted"), requeue=requeue))
    done = LeaseEnded(at_s=2, lease="a.1", exit_code=0, cause="finished")
    world.then(done)
    assert (world.fleet.jobs["a"].phase, world.fleet.jobs["a"].reason) == ("finished", None)
    kind, version, body = to_record(done)
    old = from_record(kind, version - 1, body)
    assert old == LeaseEnded(at_s=2, lease="a.1", exit_code=0), "in an older log another lease followed"


def test_gpus_stay_taken_while_a_job_is_stopping() -> None:
    world = a_fleet(gpus_per_node=1).running(a_job("a"))
    world.then(LeaseEnding(at_s=1, lease="a.1", reason=verbatim("preempted"), requeue=True))
    assert world.fleet.free("node-0") == ()
    assert world.fleet.jobs["a"].phase == "stopping"


def test_a_preempted_job_waits_again_and_keeps_its_first_lease() -> None:
    world = a_fleet().running(a_job("a"))
    world.then(
        LeaseEnding(at_s=1, lease="a.1", reason=verbatim("preempted"), requeue=True),
        ended("a", at_s=2, exit_code=143),
    )
    state = world.fleet.jobs["a"]
    assert (state.phase, len(state.leases), state.ended_s) == ("waiting", 1, None)


def test_a_job_cancelled_while_it_is_being_preempted_does_not_come_back() -> None:
    world = a_fleet().running(a_job("a"))
    world.then(
        LeaseEnding(at_s=1, lease="a.1", reason=verbatim("preempted"), requeue=True),
        CancelRequested(at_s=1, job="a"),
        ended("a", at_s=2, exit_code=143),
    )
    assert world.fleet.jobs["a"].phase == "cancelled"
    assert not world.fleet.waiting


def test_cancelling_a_waiting_job_ends_it_at_once_and_one_that_is_over_changes_nothing() -> None:
    world = (
        a_fleet().waiting(a_job("a")).then(CancelRequested(at_s=3, job="a"), CancelRequested(at_s=9, job="a"))
    )
    assert world.fleet.jobs["a"].phase == "cancelled"
    assert world.fleet.jobs["a"].ended_s == 3


def test_a_node_declared_smaller_keeps_its_leases_and_offers_less_afterwards() -> None:
    world = a_fleet(gpus_per_node=4).running(a_job("a", gpus=4)).then(joined(a_node(gpus=2)))
    assert world.fleet.free("node-0") == ()
    world.then(ended("a", at_s=9))
    assert world.fleet.free("node-0") == (0, 1)


def test_a_lease_may_end_after_its_node_has_left() -> None:
    world = a_fleet().running(a_job("a")).then(NodeLeft(at_s=1, node="node-0"), ended("a", at_s=2))
    assert world.fleet.jobs["a"].phase == "finished"


def test_events_survive_json() -> None:
    job = a_job(
        "a",
        gpus=2,
        env=(("A", "1"),),
        gpu_types=("h100",),
        budget_microusd=5,
        rates=(("h100", 1.0), ("k80", 0.1)),
    )
    events: list[Event] = [JobSubmitted(at_s=1, job=job), granted("a", gpus=(0, 1)), ended("a", at_s=4)]
    events.append(joined(a_node()))
    for event in events:
        kind, version, body = to_record(event)
        assert from_record(kind, version, json.loads(json.dumps(body))) == event


def test_a_log_written_by_version_0_1_still_opens() -> None:
    job = {"job": "a", "gpus": 1, "name": "", "tenant": "t", "priority": "normal", "gpu_types": ["h100"]}
    job |= {"budget_microusd": None, "command": ["true"], "folder": "/", "env": [["A", "1"]]}
    node = {"at_s": 0, "site": "here", "node": "n", "gpu": "h100", "gpus": 2, "declared": True}
    lease = {"at_s": 1, "lease": "a.1", "job": "a", "node": "n", "gpus": [1], "microusd_per_gpu_hour": 5}
    world = AFleet([]).then(
        from_record("NodeJoined", 1, node | {"microusd_per_gpu_hour": 5}),
        from_record("JobSubmitted", 1, {"at_s": 0, "job": job}),
        from_record("LeaseGranted", 1, lease),
        from_record("LeaseEnded", 1, {"at_s": 3, "lease": "a.1", "exit_code": 0, "reason": ""}),
    )
    assert world.fleet.jobs["a"].phase == "finished"
    assert world.fleet.nodes["n"] == Node(
        site="here", node="n", gpu="h100", gpus=2, declared=True, microusd_per_gpu_hour=5
    )


@pytest.mark.parametrize(("kind", "version"), [("LeaseEnded", 7), ("Teleported", 1)])
def test_an_event_of_a_newer_brimful_is_refused_not_guessed(kind: str, version: int) -> None:
    with refuses(WorldFailed, "fleet.newer_event", kind, version):
        from_record(kind, version, {})


def test_metrics_of_a_run_by_hand() -> None:
    # Two GPUs for 100 s. `a` runs 0-100 on one, `b` waits 10 s and runs 10-60 on the other.
    world = a_fleet(gpus_per_node=2).running(a_job("a")).waiting(a_job("b"))
    world.then(granted("b", gpus=(1,)), LeaseStarted(at_s=10, lease="b.1"))
    world.then(ended("b", at_s=60), ended("a", at_s=100))
    figures = measure(world.fleet, now_s=500)
    assert figures.mean_jct_s == 80
    assert figures.mean_first_wait_s == 5
    assert figures.mean_delay_s == 5, "no engine told what was kept, and both ended well: all of it was"
    assert (world.fleet.finished.jobs, world.fleet.finished.delay_s) == (2, 10)
    assert figures.makespan_s == 100
    assert figures.allocation_rate == (100 + 50) / 200


def test_a_share_of_a_gpu_counts_as_that_share_of_gpu_time_and_of_the_price() -> None:
    world = a_fleet(gpus_per_node=1).waiting(a_job("half", gpu_milli=500), a_job("tenth", gpu_milli=100))
    for name in ("half", "tenth"):
        world.then(granted(name, gpus=(0,)), LeaseStarted(at_s=0, lease=f"{name}.1"))
    assert world.fleet.leased_gpu_s(100) == 60
    assert [lease.hourly_microusd for lease in world.fleet.open_leases.values()] == [1_000_000, 200_000]

    world.then(ended("half", at_s=100), ended("tenth", at_s=200))

    figures = measure(world.fleet, now_s=1000)
    gpu_s = world.fleet.leased_gpu_s(1000)
    assert gpu_s == 50 + 20
    assert figures.allocation_rate == 70 / 200
    spent = sum(lease.cost_microusd(200) for lease in world.fleet.leases.values())
    assert spent == pytest.approx(gpu_s / 3600 * 2_000_000, abs=2), "as on the bills"


def test_nothing_measured_is_none_and_not_zero() -> None:
    figures = measure(a_fleet().fleet, now_s=0)
    assert (figures.mean_jct_s, figures.p99_jct_s, figures.allocation_rate) == (None, None, None)


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([7], 99) == 7
