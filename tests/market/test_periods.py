"""Months and quarters of a place, whatever its clocks do."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadInput
from brimful.fleet.events import Period
from brimful.market.periods import pace, period_at

HOUR_S = 3600


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("UTC", "2026-03-10", 31 * 24),
        ("Europe/Berlin", "2026-03-10", 31 * 24 - 1),  # clocks go forward
        ("Europe/Berlin", "2026-10-10", 31 * 24 + 1),  # and back
        ("America/New_York", "2026-11-10", 30 * 24 + 1),
        ("Australia/Lord_Howe", "2026-04-20", 30 * 24 + 0.5),
        ("America/Havana", "2026-11-10", 30 * 24 + 1),  # back at one o'clock on the first itself
    ],
)
def test_a_month_is_as_long_as_its_clocks_make_it(zone: str, month: str, hours: float) -> None:
    since_s, until_s = period_at(at(month, zone), "monthly", zone)
    assert until_s is not None
    assert (until_s - since_s) / HOUR_S == hours
    assert datetime.fromtimestamp(since_s, tz=ZoneInfo(zone)).strftime("%d %H:%M") == "01 00:00"


@given(
    at_s=st.integers(at("1990-01-01"), at("2060-01-01")),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Cairo"]),
    period=st.sampled_from(["monthly", "quarterly"]),
)
def test_periods_follow_each_other_without_a_gap(at_s: int, zone: str, period: Period) -> None:
    since_s, until_s = period_at(at_s, period, zone)
    assert until_s is not None
    assert since_s <= at_s < until_s
    assert period_at(until_s - 1, period, zone) == (since_s, until_s)
    assert period_at(until_s, period, zone)[0] == until_s


def test_a_zone_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput):
        period_at(0, "monthly", "Europe/Atlantis")


def test_the_pace_begins_as_that_of_the_month_before() -> None:
    day = 86400
    assert pace(0, elapsed_s=0, before=(30_000, 30 * day)) * day == pytest.approx(1000)
    assert pace(14_000, elapsed_s=7 * day, before=(30_000, 30 * day)) * day == pytest.approx(1500)
    assert pace(14_000, elapsed_s=7 * day, before=None) * day == pytest.approx(2000)
    assert pace(0, elapsed_s=0, before=None) == 0.0
