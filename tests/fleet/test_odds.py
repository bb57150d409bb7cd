"""How long jobs like one were, and how likely a promise is kept by that."""

from __future__ import annotations

from random import Random

import pytest

from brimful.fleet.learned.odds import PROMISES, SURE, Odds, Run, run_of
from tests.builders import a_job


def _run(work_s: float, *, name: str = "", due_s: int | None = None, is_over: bool = True) -> Run:
    return run_of(a_job("j", name=name, deadline_s=due_s), submitted_s=0, work_s=work_s, is_over=is_over)


def _seen(odds: Odds, work_s: float, *, name: str = "", due_s: int | None = None) -> None:
    odds.finished(a_job("old", name=name, deadline_s=due_s), work_s, submitted_s=0, at_s=10)


def test_the_chance_to_be_at_most_the_kth_of_n_is_k_of_n_plus_one() -> None:
    odds = Odds()
    for work_s in (30.0, 10.0, 20.0):
        _seen(odds, work_s)
    assert [work_s for work_s, _ in odds.like(_run(0.0), [])] == [10.0, 20.0, 30.0]
    assert [chance for _, chance in odds.like(_run(0.0), [])] == pytest.approx([1 / 4, 2 / 4, 3 / 4])


def test_a_job_that_still_runs_counts_as_longer_than_what_it_has_had() -> None:
    odds = Odds()
    for work_s in (10.0, 30.0):
        _seen(odds, work_s)
    # Between the two: whoever is longer than 10 s is one of three others, and of these one is over by 30 s.
    found = odds.like(_run(0.0), [_run(20.0, is_over=False)])
    assert [chance for _, chance in found] == pytest.approx([1 / 4, 1 - 3 / 4 * 1 / 2])


def test_jobs_of_the_same_name_and_with_as_much_time_stand_for_it_first() -> None:
    odds = Odds()
    for i in range(60):
        _seen(odds, 100.0 + i, name="short", due_s=1000)
        _seen(odds, 9000.0 + i, name="long", due_s=1000)
        _seen(odds, 90_000.0 + i, name="short", due_s=1_000_000)
    found = odds.like(_run(0.0, name="short", due_s=1100), [])
    assert all(work_s < 200 for work_s, _ in found)


def test_what_is_said_follows_what_was_kept_however_wrong_the_lengths_are() -> None:
    """600 promises, 90 % likely by the lengths, 70 % kept: in all within 3 points, the early ones too."""
    odds, dice, said, kept = Odds(), Random(5), [], []
    for i in range(600):
        now_s, job = 10 * i, a_job(f"j{i}")
        said.append(odds.corrected(SURE, now_s=now_s))
        odds.promised(job.job, SURE, at_s=now_s, by_s=now_s + 25)
        kept.append(dice.random() < 0.7)
        odds.finished(job, 1.0, submitted_s=now_s, at_s=now_s + (5 if kept[-1] else 50))
    assert sum(said) / 600 == pytest.approx(sum(kept) / 600, abs=0.03)


def test_a_promise_counts_for_the_part_of_its_time_that_is_gone_unless_its_job_was_given_up() -> None:
    odds = Odds()
    for name in ("kept", "cancelled", "late"):
        odds.promised(name, SURE, at_s=0, by_s=100)
    odds.finished(a_job("kept"), 1.0, submitted_s=0, at_s=50)
    odds.given_up("cancelled")
    # One of two is kept by now, whatever becomes of the other; nine that stand for no promise are added.
    assert odds.corrected(SURE, now_s=60) == pytest.approx(SURE + (0.5 - SURE) * 1 / 10)
    assert odds.corrected(SURE, now_s=100) == pytest.approx(SURE + (0.5 - SURE) * 2 / 11)
    before = repr(odds)
    odds.corrected(SURE, now_s=200)
    assert repr(odds) == before, "reading changes nothing"


def test_nothing_is_ever_certain() -> None:
    odds = Odds()
    for i in range(2 * PROMISES):
        odds.promised(f"j{i}", SURE, at_s=i, by_s=i + 1)
        odds.finished(a_job(f"j{i}"), 1.0, submitted_s=i, at_s=i)
    assert SURE < odds.corrected(0.99, now_s=10_000) < 1.0
