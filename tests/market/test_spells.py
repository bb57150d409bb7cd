"""What is believed of spot that nobody has watched yet, from records of other capacity."""

from __future__ import annotations

import pytest

from brimful.market.spells import AGES_S, NONE_LEFT, PRIOR_SPELLS, Spells, follow, prior_of, spells_of
from brimful.sim.deadlines import Capacity, seen_in
from brimful.units import HOUR_S as HOUR

HOUR_S = 3600


def record(pattern: bytes, times: int, *, tick_s: int = 600) -> Capacity:
    return Capacity(tick_s, ("z",), (pattern * times,))


def test_of_records_that_are_alike_the_belief_is_what_they_show() -> None:
    seen = seen_in(record(b"\x01" * 12 + b"\x00" * 6, 500))  # two hours there, one away
    prior = prior_of([seen, seen.copy(), seen.copy()])
    one_hour = AGES_S.index(HOUR_S)
    for is_up, age in ((True, one_hour), (False, one_hour - 1)):
        shown = seen.hours[is_up][age] / seen.ends[is_up][age]
        assert prior[is_up][age] == pytest.approx(shown, rel=0.05)


def test_it_lies_between_records_that_differ() -> None:
    short, long = (seen_in(record(b"\x01" * n + b"\x00", 400)) for n in (1, 30))
    prior = prior_of([short, long])
    shown = short.hours[True][0] / short.ends[True][0]
    assert shown < prior[True][0] < long.hours[True][0]


def test_a_record_that_saw_no_end_leans_on_the_others() -> None:
    always, restless = seen_in(record(b"\x01", 300)), seen_in(record(b"\x01\x00", 300))
    prior = prior_of([always, restless])
    assert all(0.0 < hours < 1e3 for row in prior for hours in row)


def test_nothing_believed_is_nothing_counted_and_a_prior_weighs_two_spells() -> None:
    assert sum(map(sum, Spells.before(None).hours)) == 0
    believed = Spells.before([[1.0] * len(AGES_S)] * 2)
    assert believed.ends[True] == [PRIOR_SPELLS] * len(AGES_S)
    assert believed.per_hour(is_up=True) == [1.0] * len(AGES_S)


def test_of_one_zone_whoever_follows_sees_its_spells_and_has_none_after_a_loss() -> None:
    zone = [0, 5 * HOUR, 6 * HOUR, 9 * HOUR]

    seen = follow([zone], until_s=10 * HOUR)

    assert seen.spells == spells_of(zone, until_s=10 * HOUR)
    assert seen.after == NONE_LEFT


def test_after_a_loss_one_goes_on_in_the_zone_that_is_left_at_the_age_it_has() -> None:
    lasting, brief = [0], [x for i in range(6) for x in (4 * i * HOUR, (4 * i + 1) * HOUR)]

    seen = follow([lasting, brief], until_s=100 * HOUR)
    both = follow([[0, 30 * HOUR], [10 * HOUR]], until_s=100 * HOUR)

    assert [sum(each) for each in seen.after] == pytest.approx([1] * len(AGES_S))
    assert seen.spells.hours[True][0] - Spells().hours[True][0] == pytest.approx(AGES_S[1] / HOUR), (
        "held once"
    )
    assert both.after[-1][len(AGES_S)] == pytest.approx(1), "20 hours old when the first one goes"
