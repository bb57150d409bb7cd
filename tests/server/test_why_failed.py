"""Why a job failed, on its page: what its log makes Fit do is its own team's trouble."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import Refused, WorldFailed
from brimful.fleet.job import Job
from brimful.fleet.lease import JobState
from brimful.language import say
from brimful.server.console import why_failed
from brimful.server.console.why_failed import WhyFailed
from tests.builders import a_job


class Asked:
    """In place of Fit: who asked, and what it answers."""

    def __init__(self) -> None:
        self.askers: list[str] = []
        self.fails: Exception | None = None

    def ask(self, *, asker: str = "", **_asked: Any) -> Any:
        self.askers.append(asker)
        if self.fails is not None:
            raise self.fails
        return {"explanation": {"answer": {"cause": "memory"}}}


def failed(job: Job) -> JobState:
    state = JobState(job, -1, -1, 0, 0)
    state.phase = "failed"
    state.leases = [type("Lease", (), {"lease": f"{job.job}.1", "exit_codes": (1,)})()]
    return state


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(why_failed, "log_piece", lambda *_asked, **_more: {"text": "out of memory"})
    return Asked()


def test_a_teams_logs_are_asked_about_in_its_name(fit: Asked) -> None:
    """Without one they could take all places that wait for Fit, and others would find none."""
    why = WhyFailed(None, fit)  # type: ignore[arg-type]
    assert why(failed(a_job("a", tenant="red"))) == {"cause": "memory", "log_end": []}
    assert why(failed(a_job("a", tenant="red"))) == {"cause": "memory", "log_end": []}
    why(failed(a_job("b", tenant="blue")))
    assert len(fit.askers) == 2
    assert "" not in fit.askers
    assert fit.askers[0] != fit.askers[1]


def test_who_found_no_place_is_answered_later_and_a_text_without_answer_is_asked_once(fit: Asked) -> None:
    why, state = WhyFailed(None, fit), failed(a_job("a"))  # type: ignore[arg-type]
    fit.fails = Refused(say("server.fit_busy", most=3), code="too_many")
    assert why(state) is None
    fit.fails = None
    assert why(state) == {"cause": "memory", "log_end": []}
    fit.fails, other = WorldFailed(say("server.audit_failed")), failed(a_job("b"))
    assert why(other) is None
    fit.fails = None
    assert why(other) is None, "it may have cost the whole time of an answer"
