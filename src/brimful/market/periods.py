"""When a budget's period begins and ends: at midnight in its time zone, whatever daylight saving does."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from brimful.errors import BadInput
from brimful.fleet.events import Period
from brimful.language import Quoted, say

PRIOR_S = 7 * 86400
MONTHS: dict[Period, int] = {"monthly": 1, "quarterly": 3}


def zone_of(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(say("money.no_zone", zone=Quoted(name[:60])), code="no_zone") from error


def period_at(at_s: int, period: Period, zone: str) -> tuple[int, int | None]:
    """(first second, first second after it) of the period containing this second; None: it never ends."""
    if period == "fixed":
        return at_s, None
    months, here = MONTHS[period], zone_of(zone)
    now = datetime.fromtimestamp(at_s, tz=here)
    first = now.year * 12 + (now.month - 1) // months * months
    since_s, until_s = (_month(first + more, here) for more in (0, months))
    return since_s, until_s


def _month(count: int, zone: tzinfo) -> int:
    # If midnight does not exist that day, this is the second at which the clocks go forward.
    return int(datetime(count // 12, count % 12 + 1, 1, tzinfo=zone).timestamp())


def pace(used: int, *, elapsed_s: int, before: tuple[int, int] | None) -> float:
    """Micro-dollars per second, from what was used in this period and in the one before (with its length).

    The previous period counts as much as a week of this one: a month's first hours say little.
    """
    known_s = prior = 0.0
    if before is not None and before[1] > 0:
        known_s, prior = float(PRIOR_S), before[0] / before[1] * PRIOR_S
    known_s += max(0, elapsed_s)
    return (used + prior) / known_s if known_s else 0.0
