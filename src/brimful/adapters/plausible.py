"""A site's word on a lease, as far as it can be true.

On Ray and on plain machines a job may have the same user as the agent that answers, so that any of it may be
a job's own. The loop counts with what it is told: a moment that is no number would end every tick.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from brimful.adapters.engines.lease_folders import exit_code_of
from brimful.fleet.events import Cause
from brimful.scheduler.ports import Observation

AHEAD_S = 300  # clocks differ; what is further in the future has not happened
MOST_WORK_S = 1 << 40
MOST_BYTES = 1 << 60  # and the largest number of anything
STATES = frozenset({"absent", "waiting", "running", "ended"})
CAUSES = frozenset({None, *get_args(Cause)})


def plausible(seen: Observation, *, now_s: float) -> Observation | None:
    """The same where nothing is wrong with it; None: it says nothing that can be said of a lease."""
    if seen.state not in STATES or seen.cause not in CAUSES:
        return None
    skew_s = seen.skew_s if _is_number(seen.skew_s) and abs(seen.skew_s) <= now_s else 0.0
    believed = replace(
        seen,
        skew_s=skew_s,
        started_s=_moment(seen.started_s, skew_s, now_s),
        ended_s=_moment(seen.ended_s, skew_s, now_s),
        resumes_s=_moment(seen.resumes_s, skew_s, now_s),
        exit_code=exit_code_of(seen.exit_code),
        exit_codes=tuple(map(exit_code_of, seen.exit_codes)),
        kept_work_s=_between(seen.kept_work_s, MOST_WORK_S),
        moved_bytes=int(_between(seen.moved_bytes, MOST_BYTES) or 0),
    )
    return seen if believed == seen else believed


def _is_number(value: Any) -> bool:  # noqa: ANN401 - of a site, whatever it is
    return type(value) in (int, float) and abs(value) <= MOST_BYTES  # neither is infinity, or what is none


def _moment(at_s: Any, skew_s: float, now_s: float) -> int | None:  # noqa: ANN401
    """By the site's clock; one that has yet to come is now."""
    if not _is_number(at_s) or at_s < 0:
        return None if at_s is None else 0
    return int(at_s) if at_s - skew_s <= now_s + AHEAD_S else int(now_s + skew_s)


def _between(value: Any, most: int) -> Any:  # noqa: ANN401
    return value if value is None or (_is_number(value) and 0 <= value <= most) else None
