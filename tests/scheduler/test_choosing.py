"""When a rehearsal is evidence enough to change the policy."""

from __future__ import annotations

import json
from random import Random

from brimful.fleet.events import PolicyAdopted, PolicyRehearsed, Rehearsed, from_record, to_record
from brimful.language import Percent, say
from brimful.scheduler.choosing import choose, evidence
from brimful.scheduler.policies import CANDIDATES, in_force, read_policy

EVEN = (1000,) * 8


def a_result(policy: str, costs_s: tuple[int, ...] = EVEN, *, p99_s: int = 100, kept: int = 3) -> Rehearsed:
    return Rehearsed(policy, costs_s, 50, p99_s, 20, kept, 900)


def a_rehearsal(*results: Rehearsed) -> PolicyRehearsed:
    return PolicyRehearsed(at_s=9, since_s=0, until_s=9, jobs=5, deadlines=3, results=results)


def chosen(candidate: Rehearsed, ours: Rehearsed | None = None) -> str | None:
    better = choose(a_rehearsal(ours or a_result("now"), candidate), "now")
    return None if better is None else better.policy


def test_a_candidate_that_is_better_all_day_long_is_chosen() -> None:
    assert chosen(a_result("new", (700,) * 8)) == "new"
    (found,) = evidence(a_rehearsal(a_result("now"), a_result("new", (700,) * 8)), "now")
    assert round(found.gain, 6) == round(found.least_gain, 6) == 0.3


def test_the_surest_of_several_is_chosen() -> None:
    found = a_rehearsal(a_result("now"), a_result("good", (800,) * 8), a_result("best", (600,) * 8))
    better = choose(found, "now")
    assert better is not None
    assert better.policy == "best"
    assert choose(found, "best") is None


def test_a_small_gain_is_not_worth_a_change() -> None:
    assert chosen(a_result("new", (920,) * 8)) is None


def test_one_lucky_stretch_is_chance() -> None:
    assert chosen(a_result("new", (1000,) * 7 + (10,))) is None
    ours = a_result("now", (0,) * 7 + (1000,))  # all there was came at once
    assert chosen(a_result("new", (0,) * 7 + (100,)), ours) is None


def test_a_day_without_work_says_nothing() -> None:
    assert chosen(a_result("new", (0,) * 8), a_result("now", (0,) * 8)) is None
    assert evidence(a_rehearsal(a_result("new")), "now") == []


def test_neither_deadlines_nor_the_tail_pay_for_the_mean() -> None:
    assert chosen(a_result("new", (500,) * 8, kept=2)) is None
    assert chosen(a_result("new", (500,) * 8, p99_s=126)) is None
    assert chosen(a_result("new", (500,) * 8, kept=4, p99_s=125)) == "new"


def test_equal_policies_are_hardly_ever_told_apart() -> None:
    rng = Random(7)
    days = 2000
    changes = 0
    for _ in range(days):
        ours, theirs = (tuple(round(rng.lognormvariate(8, 0.4)) for _ in range(8)) for _ in range(2))
        changes += chosen(a_result("new", theirs), a_result("now", ours)) is not None
    assert changes <= days // 200


def test_the_log_keeps_what_was_found() -> None:
    reason = say("server.evidence", jobs=5, past=9, gain=Percent(0.3), least=Percent(0.2), policy="now")
    adopted = PolicyAdopted(at_s=1, policy="new", instead_of="now", by="olga", reason=reason)
    for event in (a_rehearsal(a_result("now"), a_result("new")), adopted):
        kind, version, body = json.loads(json.dumps(to_record(event)))
        assert from_record(kind, version, body) == event


def test_an_adopted_policy_holds_for_the_server_it_was_adopted_on() -> None:
    brim, srpt = read_policy("brim?grace_s=99").rules, read_policy("srpt").rules
    adopted = PolicyAdopted(at_s=1, policy="srpt", instead_of="brim?grace_s=99")
    now = in_force(brim, adopted)
    assert (now.order, now.preempt, now.margin) == (srpt.order, srpt.preempt, srpt.margin)
    assert now.grace_s == 99  # how long a stop may take is no question of order
    assert in_force(brim, adopted) is now
    assert in_force(brim, None) is brim
    other = read_policy("fair").rules  # whoever starts it with another policy has decided again
    assert in_force(other, adopted) is other


def test_a_policy_that_nobody_knows_any_more_has_no_effect() -> None:
    brim = read_policy("brim").rules
    assert in_force(brim, PolicyAdopted(at_s=1, policy="gone", instead_of="brim")) is brim


def test_candidates_are_written_as_they_are_read() -> None:
    assert [read_policy(text).text for text in CANDIDATES] == list(CANDIDATES)
