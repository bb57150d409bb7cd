"""What `brimful job show` says of a job."""

from __future__ import annotations

from typing import get_args

import pytest

from brimful.cli.fleet.job import _show_text, _why_text
from brimful.cli.fleet.jobs import _counts, does
from brimful.client.answers import JobAnswer
from brimful.fleet.lease import JobPhase
from brimful.language import choose, count, say, told, words


@pytest.mark.parametrize("within", ["nvlink", "rack", "site", "any"])
def test_where_a_gang_may_run_is_said_unless_it_is_one_node(within: str) -> None:
    job = a_job(within)
    asks = words(f"fleet.within_{within}", gpus=count("gpu", 16), types=say("fleet.any_type"))
    assert asks in _show_text(job)
    assert asks not in _show_text(a_job("node"))


@pytest.mark.parametrize("language", ["en", "fr", "es", "de"])
def test_a_label_never_touches_what_it_labels(language: str) -> None:
    choose(language)
    why = {
        "job": "job-1",
        "phase": "running",
        "waiting": None,
        "ahead": None,
        "here": "HERE",
        "price": "PRICE",
    }
    shown = _why_text({**why, "policy": "POLICY", "pools": []})  # type: ignore[typeddict-item]
    columns = {
        line.index(said)
        for line in shown.splitlines()
        for said in ("HERE", "PRICE", "POLICY")
        if said in line
    }
    assert len(columns) == 1
    assert all(f" {said}" in shown for said in ("HERE", "PRICE", "POLICY"))


def test_tasks_are_counted_in_the_plural() -> None:
    tasks = {
        "tasks": 5,
        "at_most": None,
        "phases": {"finished": 4, "failed": 1},
        "run_s": 0,
        "cost_microusd": 0,
    }
    choose("fr")
    assert _counts(tasks).endswith("1 échouée, 4 terminées")  # type: ignore[arg-type]


@pytest.mark.parametrize("language", ["en", "fr", "es", "de"])
def test_every_phase_has_a_verb_and_a_count(language: str) -> None:
    """'job-9 est échoué' was made of 'est' and a phase."""
    choose(language)
    for phase in get_args(JobPhase):
        assert told(does(phase)) == words(f"fleet.verb_{phase}")
        assert "3" in words(f"fleet.tasks_{phase}", n=3)


def test_why_of_a_job_that_has_ended_says_why() -> None:
    over = {"job": "job-1", "phase": "failed", "ended": "THE REASON", "waiting": None, "ahead": None}
    shown = _why_text({**over, "here": None, "price": None, "policy": "", "pools": []})  # type: ignore[typeddict-item]
    assert "THE REASON" in shown
    assert "job logs job-1" in shown


def a_job(within: str) -> JobAnswer:
    facts = {"job": "job-1", "name": "", "command": ["true"], "folder": "/", "gpus": 16, "gpu_types": []}
    facts |= {"tenant": "default", "priority": "normal", "phase": "waiting", "why": "", "leases": []}
    facts |= {"submitted_s": 0, "ready_s": 0, "now_s": 9, "started_s": None, "ended_s": None, "delay_s": 9}
    facts |= {"cost_microusd": 0, "budget_microusd": None, "run_s": 0, "within": within}
    return facts  # type: ignore[return-value]
