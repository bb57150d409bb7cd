"""A server in virtual time changes its policy when its load changes, and not before."""

from __future__ import annotations

from bench.groups.rehearse import BAD, GOOD, changed
from brimful.units import HOUR_S


def test_it_changes_its_policy_within_a_day_of_a_change_of_load() -> None:
    """Predictions are good until the second morning, and misleading from then on."""
    life = changed(0, days=((1.25, "good"), (1.01, "bad")), policies=(GOOD, BAD))
    (switch,) = life.switches
    assert (switch.before, switch.after) == (GOOD, BAD)
    assert 30 * HOUR_S < switch.at_s <= 54 * HOUR_S
    assert switch.why.gain > switch.why.least_gain > 0.1
