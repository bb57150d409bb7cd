"""What somebody without a manual asks of a page, and the page answers."""

from __future__ import annotations

import re
from pathlib import Path

from brimful.fleet.events import CancelRequested, LeaseEnded
from brimful.language import verbatim
from brimful.server.service.budgets import BudgetAsked
from tests.server.builders import bearer
from tests.server.test_console import Desk, a_lease_of, desk, words  # noqa: F401 - a fixture


def test_a_job_larger_than_the_fleet_says_that_waiting_does_not_help(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    desk.submit(gpus=3)
    desk.submit(gpus=2)
    desk.service.driver.tick()
    page = words(desk.html("/jobs/job-1"))
    assert "It cannot start with the fleet and its queue as they are: waiting does not help." in page
    assert "go first" not in page
    assert "waiting does not help" not in desk.html("/jobs/job-2")


def test_somebody_elses_job_says_who_may_change_it(desk: Desk) -> None:  # noqa: F811
    desk.submit(tenant="red", user="ann")
    headers = bearer(desk.access, "submitter", "red")
    page = words(desk.client.get("/jobs/job-1", headers=headers).text)
    assert "Only ann and the admins of red can change this job." in page
    assert "can change this job" not in desk.html("/jobs/job-1")  # an operator has buttons


def test_what_cannot_run_again_here_says_so_before_it_is_asked_for(desk: Desk) -> None:  # noqa: F811
    desk.submit(command=("python", "train.py"), env=(("WANDB_KEY", ""),))
    desk.submit()
    page = desk.html("/jobs/job-1")
    assert "environment variables (WANDB_KEY)" in page
    assert "<code>brimful submit --gpus 1 -- python train.py</code>" in page
    assert 'value="again"' not in page
    assert 'value="again"' in desk.html("/jobs/job-2")


def test_a_failure_that_nobody_can_explain_shows_the_end_of_the_log(desk: Desk, tmp_path: Path) -> None:  # noqa: F811
    desk.service.driver.tick()
    desk.submit()
    desk.write(*a_lease_of("job-1", at_s=desk.now_s))
    desk.write(LeaseEnded(at_s=desk.now_s + 3, lease="job-1.1", exit_code=7, reason=verbatim("exit code 7")))
    folder = tmp_path / "leases" / "job-1.1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log").write_text("one\ntwo\n\nthree <b>\nfour\n")
    page = desk.html("/jobs/job-1")
    assert "The end of its log:" in page
    assert "<code>two\nthree &lt;b&gt;\nfour\n</code>" in page


def test_a_job_cancelled_while_it_waited_once_more_shows_that_wait(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    desk.submit()
    desk.write(*a_lease_of("job-1", at_s=desk.now_s))
    ended = LeaseEnded(
        at_s=desk.now_s + 3, lease="job-1.1", exit_code=143, reason=verbatim("out"), requeue=True
    )
    desk.write(ended, CancelRequested(at_s=desk.now_s + 60, job="job-1"))
    steps = re.findall(r'<li class="(\w+)">', desk.html("/jobs/job-1"))
    assert steps == ["ran", "waited"]


def test_the_form_of_a_budget_holds_the_budget_as_it_is(desk: Desk) -> None:  # noqa: F811
    set_budget = desk.service.submissions.set_budget
    set_budget("lab", 2_000_000_000, BudgetAsked(period="quarterly"))
    set_budget("red", 12_500_000, BudgetAsked(period="monthly", within="lab", hard=False))
    page = desk.html("/teams")
    (form,) = re.findall(r'<form class="actions" id="budget-red".*?</form>', page, re.DOTALL)
    assert 'name="usd" inputmode="decimal" maxlength="20" size="8" value="12.5"' in form
    assert re.findall(r"<option[^>]* selected>([^<]*)", form) == ["monthly", "only a warning"]
    assert 'name="within"' not in form, "a budget stays where it is"
    home = words(desk.html())
    assert "lab: $1,987.50 left of $2,000.00" in home
    assert "red: $12.50 left of $12.50" in home


def test_a_page_speaks_one_language(desk: Desk) -> None:  # noqa: F811
    desk.submit(gpus=2)
    page = desk.client.get("/jobs/job-1", headers={"accept-language": "de"}).text
    assert "auf einem Knoten" in page
    assert 'data-failed="gescheitert"' in page  # for the log, when it ends
