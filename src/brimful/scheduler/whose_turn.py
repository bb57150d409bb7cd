"""Which jobs go before their class because they have waited so long (fleet/turns.py defines a turn).

First come, first served, on no more than a share of the GPUs: the rest stays with the order by index, so that
short jobs never queue behind all that have waited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from heapq import merge
from math import inf
from typing import cast

from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.learned.lengths import bucket, least_s
from brimful.fleet.lease import JobState
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.fleet.turns import length_s
from brimful.scheduler.rules import Rules

_InLine = tuple[tuple[int, float], int, JobState]  # class and since when; serial; the job


def whose_turn(
    fleet: Fleet,
    rules: Rules,
    may_start: Callable[[JobState], bool],
    *,
    now_s: int,
    sold: Collection[Pool] = (),
) -> Sequence[JobState]:
    """Waiting jobs whose turn it is, in order, as many as their share of the GPUs holds.

    A job that may not start, for lack of quota, budget or pool, blocks nobody. In pools that are sold the
    market chooses.
    """
    lengths = fleet.turns.lengths
    if not rules.turns or lengths.long_s is None:
        return ()
    order = fleet.waiting.order("by turn", _waiting_from, _by_length)
    groups = cast(dict[tuple[int, int], list[_InLine]], order.groups)
    long_at, since_s = lengths.long_at, now_s - lengths.long_s
    late: list[tuple[float, list[_InLine]]] = []  # per length: since when a job must have waited
    for (_, at), entries in groups.items():
        came_s = entries[0][0][1]
        if came_s <= since_s:
            from_s = since_s if at < long_at else _made_up_s(at, rules, now_s)
            if came_s <= from_s:
                late.append((from_s, entries))
    if not late:
        return ()
    gpus = sum([index.gpus for pool, index in fleet.capacity.pools.items() if pool not in sold])
    room = rules.turns * gpus - fleet.turns.gpus(now_s)
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


def _made_up_s(at: int, rules: Rules, now_s: int) -> float:
    """Since when one of the longest jobs must have waited for ageing to make up for all its length.

    Then it gets a turn too. Otherwise a gang wider than what turns leave free would wait as long as there are
    any.
    """
    return now_s - least_s(at) / rules.ageing if rules.ageing else -inf


def _waiting_from(state: JobState) -> tuple[int, float]:
    """By class, then by the arrival time it would have if it had waited ever since."""
    return PRIORITIES[state.job.priority], state.ready_s + state.run_s


def _from_s(entry: _InLine) -> float:
    return entry[0][1]


def _by_length(state: JobState) -> tuple[int, int]:
    """By class and length, so that the longest are not passed over one by one."""
    return PRIORITIES[state.job.priority], bucket(length_s(state))
