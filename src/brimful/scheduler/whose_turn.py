"""Who goes before its class because it is about to take longer than nearly all would in order of arrival.

How long that is the fleet reckons (fleet/backlog.py). Who is late goes first on no more than a share of the
GPUs: the rest stays with the order by index, so that short jobs never queue behind all who have waited. The
longest hundredth has none before it would take twice its length: it is what others wait for, and in any order
the last to be done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from heapq import merge
from typing import cast

from brimful.fleet.hazards import FRESH_S
from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.lease import JobState
from brimful.fleet.lengths import bucket, least_s
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.fleet.turns import length_s
from brimful.scheduler.rules import Rules

SHARE = 0.5  # of the GPUs
SOON = 0.8  # of what 99 in 100 would take in line
PATIENCE = 2  # times its own length: when one of the longest, done by then if it started now, is late, too
UNSURE = 100  # times, before enough jobs have shown how long the line is
_InLine = tuple[tuple[int, float], int, JobState]  # class and since when; serial; the job


def whose_turn(
    fleet: Fleet,
    rules: Rules,
    may_start: Callable[[JobState], bool],
    *,
    now_s: int,
    sold: Collection[Pool] = (),
) -> Sequence[JobState]:
    """Waiting jobs whose turn it is, in line, as many as their share of the GPUs has room for.

    Who may not start, by quota or purse or for want of a pool, stands in nobody's way. In pools that are
    sold the market chooses.
    """
    lengths, in_line_s = fleet.turns.lengths, fleet.backlog.in_line.long_s
    if rules.tail == "off":
        return ()
    order = fleet.waiting.order("by turn", _waiting_from, _by_length)
    groups = cast(dict[tuple[int, int], list[_InLine]], order.groups)
    long_at, since_s = lengths.long_at, now_s - SOON * max(in_line_s or 0.0, lengths.long_s or 0.0)
    patience = UNSURE if lengths.long_s is None else PATIENCE
    late: list[tuple[float, list[_InLine]]] = []  # of each length: since when it must have waited
    for (_, at), entries in groups.items():
        came_s = entries[0][0][1]
        if came_s <= since_s:
            from_s = since_s if at < long_at else now_s - patience * max(FRESH_S, least_s(at))
            if came_s <= from_s:
                late.append((from_s, entries))
    if not late:
        return ()
    gpus = sum([index.gpus for pool, index in fleet.capacity.pools.items() if pool not in sold])
    room = SHARE * gpus - fleet.turns.gpus(now_s)
    if room <= 0:
        return ()
    lines = [entries[: bisect_right(entries, from_s, key=_from_s)] for from_s, entries in late]
    found: list[JobState] = []
    for _, _, state in merge(*lines):
        if room <= 0:
            break
        if may_start(state):
            found.append(state)
            room -= state.job.gpus * state.job.gpu_milli / WHOLE_GPU
    return found


def _waiting_from(state: JobState) -> tuple[int, float]:
    """By class, and then by when it would have had to come to end now, if it started now."""
    return PRIORITIES[state.job.priority], state.ready_s - (state.remaining_s(state.waiting_since_s) or 0.0)


def _from_s(entry: _InLine) -> float:
    return entry[0][1]


def _by_length(state: JobState) -> tuple[int, int]:
    """By class and length, so that the longest need not be passed over one by one."""
    return PRIORITIES[state.job.priority], bucket(length_s(state))
