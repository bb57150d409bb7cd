"""Who goes before its class because it has waited so long (fleet/turns.py says whose turn it is).

First come, first served, on no more than a share of the GPUs: the rest stays with the order by index, so that
short jobs never queue behind all who have waited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import merge
from typing import cast

from brimful.fleet.job import PRIORITIES
from brimful.fleet.lease import JobState
from brimful.fleet.lengths import bucket
from brimful.fleet.state import Fleet
from brimful.fleet.turns import length_s
from brimful.scheduler.rules import Rules

_InLine = tuple[tuple[int, float], int, JobState]  # class and since when; serial; the job


def whose_turn(fleet: Fleet, rules: Rules, *, now_s: int) -> Sequence[JobState]:
    """Waiting jobs whose turn it is, in line, as many as their share of the GPUs has room for."""
    lengths = fleet.turns.lengths
    if not rules.turns or lengths.long_s is None:
        return ()
    order = fleet.waiting.order("by turn", _waiting_from, _by_length)
    groups = cast(dict[tuple[int, int], list[_InLine]], order.groups)
    long_at, since_s = lengths.long_at, now_s - lengths.long_s
    lines = [
        entries[: bisect_right(entries, since_s, key=_from_s)]
        for (_, at), entries in groups.items()
        if at < long_at and entries[0][0][1] <= since_s
    ]
    if not lines:
        return ()
    gpus = sum(pool.gpus for pool in fleet.capacity.pools.values())
    room = rules.turns * gpus - fleet.turns.gpus(now_s)
    found: list[JobState] = []
    for _, _, state in merge(*lines):
        if room <= 0:
            break
        if state.job.gpus <= gpus:
            found.append(state)
            room -= state.job.gpus
    return found


def _waiting_from(state: JobState) -> tuple[int, float]:
    """By class, and then by when it would have come had it waited ever since."""
    return PRIORITIES[state.job.priority], state.submitted_s + state.run_s


def _from_s(entry: _InLine) -> float:
    return entry[0][1]


def _by_length(state: JobState) -> tuple[int, int]:
    """By class and length, so that the longest need not be passed over one by one."""
    return PRIORITIES[state.job.priority], bucket(length_s(state))
