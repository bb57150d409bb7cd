"""Chances that spot stays: stated from the past alone, scored later, and beside the usual rate."""

from __future__ import annotations

import random

import pytest

from brimful.market.forecast import BrierScore
from brimful.market.spells import Spells, spells_of
from brimful.market.staying import STAYS_H, StayRecord
from brimful.units import HOUR_S

SPELLS = 60


def some_changes(seed: int) -> list[int]:
    """Spells of minutes to days; many young ones end at once, and old ones last."""
    rng, at_s, found = random.Random(seed), 500 * HOUR_S + 17, []
    for _ in range(2 * SPELLS):
        found.append(at_s)
        at_s += int(rng.choice([0, 0.2, 1, 7, 40]) * HOUR_S * rng.uniform(0.5, 1.5))
    return found


def scored_by_hand(changes: list[int], *, until_s: int) -> dict[int, BrierScore]:
    """The same from its definition, look by look, with everything learned anew each time."""
    scores = {hours: BrierScore() for hours in STAYS_H}
    spans = [(a, changes[i + 1]) for i, a in enumerate(changes) if i % 2 == 0 and i + 1 < len(changes)]
    looks = [
        (at_s, came_s, went_s)
        for came_s, went_s in spans
        for at_s in range((came_s // HOUR_S + 1) * HOUR_S, went_s + 1, HOUR_S)
    ]
    for hours, score in scores.items():
        known = [(min(at_s + hours * HOUR_S, went), at_s + hours * HOUR_S <= went) for at_s, _, went in looks]
        for (at_s, came_s, went_s), (decided_s, stayed) in zip(looks, known, strict=True):
            assert decided_s <= until_s
            earlier = known[: looks.index((at_s, came_s, went_s))]
            # At the very moment of its end, a look does not know of that end yet.
            then = [each for when, each in earlier if when <= at_s and (each or when < at_s)]
            learned = spells_of([each for each in changes if each < at_s], until_s=at_s)
            usual = (sum(then) + 1) / (len(then) + 2)
            score.add(learned.stays(at_s - came_s, hours), usual, stayed=stayed)
    return scores


@pytest.mark.parametrize("seed", [0, 2])
def test_chances_are_stated_from_the_past_and_scored_once_decided(seed: int) -> None:
    changes = some_changes(seed)
    known = StayRecord()
    known.tell(changes, now_s=changes[-1])

    for each in known.horizons:
        wanted = scored_by_hand(changes, until_s=changes[-1])[each.hours]
        assert each.score.cases == wanted.cases > 100
        assert each.score.loss == pytest.approx(wanted.loss)
        assert each.score.climatology == pytest.approx(wanted.climatology)


def test_it_does_not_matter_how_often_it_is_asked_nor_that_old_changes_are_forgotten() -> None:
    changes, often, once = some_changes(7), StayRecord(), StayRecord()
    end_s = changes[-1] + 5 * HOUR_S
    for now_s in range(changes[0], end_s + 1, 1_700):
        seen = [each for each in changes if each <= now_s]
        often.tell(seen[2 * (len(seen) // 8) :], now_s=now_s)
    often.tell(changes, now_s=end_s)
    once.tell(changes, now_s=end_s)

    assert [each.due for each in often.horizons] == [each.due for each in once.horizons]
    for ours, theirs in zip(often.horizons, once.horizons, strict=True):
        assert ours.score.cases == theirs.score.cases
        assert ours.score.loss == pytest.approx(theirs.score.loss)
    told = spells_of(changes, until_s=end_s)
    for mine, all_at_once in ((once.spells.hours, told.hours), (once.spells.ends, told.ends)):
        for row, wanted in zip(mine, all_at_once, strict=True):
            assert row == pytest.approx(wanted)


def test_spot_that_was_never_seen_or_never_left_has_little_to_score() -> None:
    never, steady = StayRecord(), StayRecord()
    never.tell([], now_s=99 * HOUR_S)
    steady.tell([0], now_s=99 * HOUR_S)

    assert [each.score.cases for each in never.horizons] == [0, 0, 0]
    assert never.spells == Spells()
    assert [each.score.cases for each in steady.horizons] == [98, 93, 75]


def test_a_change_that_is_told_late_by_another_clock_settles_what_is_due() -> None:
    known = StayRecord()
    known.tell([0], now_s=10 * HOUR_S)
    known.tell([0, 10 * HOUR_S - 5], now_s=11 * HOUR_S)

    assert [each.due for each in known.horizons] == [type(each.due)() for each in known.horizons]
    assert [each.score.cases for each in known.horizons] == [10, 10, 10]
