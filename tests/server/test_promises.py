"""What a server says of a deadline: at submit, of the job, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.errors import BadInput
from brimful.fleet.events import DeadlineAnswered
from brimful.scheduler.policies import POLICIES
from brimful.server.service.intake import Pending
from brimful.server.service.service import Service
from brimful.server.views.jobs import job_view
from brimful.server.views.why import why_view
from tests.builders import ScriptedEngine, a_job, a_node, refuses
from tests.server.builders import MemoryHistory

HOUR_S = 3600


def test_a_deadline_is_answered_in_the_transaction_of_the_submit() -> None:
    """Two of a batch want the only GPU for the same hour: one is promised, the other told when."""
    store = MemoryHistory()
    service = Service(store, [ScriptedEngine(a_node(gpus=1))], POLICIES["brim"])
    service.driver.tick()
    now_s = service.reader.now_s()
    asked = [
        Pending(a_job(name, max_run_s=HOUR_S, deadline_s=now_s + 5400, key=name)) for name in ("one", "two")
    ]

    service.submissions.submit_all(asked)

    answers = [event for event in store.log if isinstance(event, DeadlineAnswered)]
    assert [(each.job, each.is_promised) for each in answers] == [("job-1", True), ("job-2", False)]
    reader = service.reader
    first, second = (job_view(reader, reader.fleet.jobs[each.job]) for each in answers)
    assert first["promise"] is not None
    assert first["promise"]["done_by_s"] == now_s + 5400
    assert second["promise"] is not None
    assert (second["promise"]["done_by_s"] or 0) > now_s + 5400 + HOUR_S
    assert why_view(reader, reader.fleet.jobs["job-2"])["promise"] == second["promise"]
    service.stop()


def test_nothing_is_said_of_a_deadline_without_a_bound() -> None:
    store = MemoryHistory()
    service = Service(store, [ScriptedEngine(a_node(gpus=1))], POLICIES["brim"])
    service.driver.tick()
    service.submissions.submit_all([Pending(a_job("one", deadline_s=service.reader.now_s() + HOUR_S))])
    assert job_view(service.reader, service.reader.fleet.jobs["job-1"])["promise"] is None
    service.stop()


def test_a_promise_by_how_long_others_ran_says_how_likely_it_is_kept() -> None:
    store = MemoryHistory()
    service = Service(store, [ScriptedEngine(a_node(gpus=1))], POLICIES["brim"])
    service.driver.tick()
    reader = service.reader
    for i in range(9):
        reader.fleet.odds.finished(a_job(f"old-{i}"), 60.0 * (i + 1), submitted_s=0, at_s=600)
    now_s = reader.now_s()
    asked = [Pending(a_job("one", deadline_s=now_s + HOUR_S)), Pending(a_job("two", deadline_s=now_s + 300))]

    service.submissions.submit_all(asked)

    first, second = (job_view(reader, reader.fleet.jobs[name])["promise"] for name in ("job-1", "job-2"))
    assert first is not None
    assert second is not None
    assert first["is_promised"]
    assert first["chance"] == pytest.approx(0.9)
    assert first["said"].startswith("deadline promised with 90 %")
    assert second["said"].startswith("deadline not promised: the earliest that can be promised with 90 %")
    service.stop()


def test_a_deadline_that_is_past_is_refused_but_not_to_who_asks_again() -> None:
    now = [1_700_000_000]
    service = Service(
        MemoryHistory(), [ScriptedEngine(a_node(gpus=1))], POLICIES["brim"], clock=lambda: now[0]
    )
    job = a_job("one", deadline_s=now[0] + 60, key="k")
    first = service.submissions.submit(job)
    now[0] += 120
    assert service.submissions.submit(job) is first, "a second try under its key is the first"
    with refuses(BadInput, "server.deadline_passed", 60):
        service.submissions.submit(replace(job, key=""))
    assert service.reader.fleet.submitted == 1
    service.stop()
