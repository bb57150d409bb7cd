"""What-ifs: the same jobs after idle tails are ended, failing jobs save, and so on.

Each change only says what it does to a job's work, its types or its arrival time. What that is worth is found
by a replay of all of them together (actions.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from brimful.audit.cards import card_leaves
from brimful.audit.records import Records, Run
from brimful.specs.gpu import Gpu, all_gpus
from brimful.units import HOUR_S

# In the order in which they are tried, each on top of the previous ones.
CHANGES = ("end_tails", "checkpoint", "old_cards", "quiet_hours")
TOP_FAILING = 10  # jobs that are asked to save
SAVE_EVERY_S = HOUR_S
DEFER_H = 24  # a deferrable job starts within a day
FORMATS = ("bf16", "fp16", "tf32", "fp32")


class Changes:
    def __init__(
        self, records: Records, *, start_s: int, end_s: int, types: Collection[str], which: Collection[str]
    ) -> None:
        self._records, self._start_s, self._end_s = records, start_s, end_s
        self._types, self._which = types, which
        self._saved = _redone_s(records.runs) if "checkpoint" in which else {}
        self._demand = _by_hour(records.runs, start_s, end_s) if "quiet_hours" in which else []
        self._cards = {gpu.name: gpu for gpu in all_gpus()} if "old_cards" in which else {}

    def saved_s(self, i: int) -> int:
        """For run `i`: seconds it would not have held its GPUs."""
        run = self._records.runs[i]
        saved = self._saved.get(i, 0)
        if "end_tails" in self._which:
            start, end = max(run.start_s, self._start_s), min(run.end_s, self._end_s)
            saved += tail_s(self._records, run, start, end)
        return saved

    def types_of(self, run: Run, only: str) -> dict[str, Any]:
        """Types it may run on, and how fast. A job is bound to its own type unless a change frees it."""
        gpu = only or run.gpu
        if not gpu:
            return {}
        older = [
            (other, rate)
            for other in sorted(self._types)
            if "old_cards" in self._which and (rate := self._rate(run, gpu, other)) is not None
        ]
        rates = ((gpu, 1.0), *older)
        return {"gpu_types": tuple(name for name, _ in rates), "rates": rates if older else ()}

    def _rate(self, run: Run, gpu: str, other: str) -> float | None:
        """Speed on another card, if the job's memory is known to fit and the card is not faster."""
        there, here = self._cards.get(other), self._cards.get(gpu)
        if there is None or here is None or other == gpu or run.memory_bytes is None:
            return None
        rate = speed(there, here)
        return rate if rate <= 1 and run.memory_bytes <= there.memory_bytes else None

    def later_s(self, run: Run, work_s: int) -> int:
        """How much later it comes: at the hour from which demand was lowest for the length of its run."""
        if "quiet_hours" not in self._which or not run.deferrable:
            return 0
        first = max(0, (run.submit_s if run.submit_s is not None else run.start_s) - self._start_s) // HOUR_S
        hours = min(DEFER_H, max(1, round(work_s / HOUR_S)))
        load = [sum(self._demand[first + k : first + k + hours]) for k in range(DEFER_H)]
        last = max(0, len(self._demand) - first - hours)
        return min(range(min(DEFER_H, last + 1)), key=lambda k: (load[k], k)) * HOUR_S


def speed(there: Gpu, here: Gpu) -> float:
    """The lower of two ratios, compute and memory bandwidth: nobody says which one bounds the job."""
    ratios = [there.bandwidth_bytes_per_s / here.bandwidth_bytes_per_s]
    both = [f for f in FORMATS if f in there.dense_flops_per_s and f in here.dense_flops_per_s]
    ratios += [there.dense_flops_per_s[f] / here.dense_flops_per_s[f] for f in both[:1]]
    return min(ratios)


def tail_s(records: Records, run: Run, start: int, end: int) -> int:
    """How long all its cards had been idle when it ended, or the whole run; 0 if unknown."""
    last = start + 1
    for part in run.parts:
        for leaf, _, b, _ in card_leaves(records, run, part, (start, end, part.gpus), ()):
            if not leaf.endswith((".idle.tail", ".idle.never_used")):
                last = max(last, b)
    return max(0, end - last)


def failing(runs: list[Run]) -> list[list[int]]:
    """Successive tries of one job, by owner, name and width, the most costly first; runs by index.

    Only if each try is a separate job: a job that resumes where it stopped already saves.
    """
    tries: defaultdict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        if run.name:
            tries[run.user, run.team, run.name, run.gpus].append(i)
    lost = {}
    for key, some in tries.items():
        some.sort(key=lambda i: runs[i].start_s)
        is_own = len({runs[i].job for i in some}) == len(some)
        tried = [runs[i] for i in some if runs[i].outcome == "lost"]
        if is_own and (gpu_s := sum(run.gpus * (run.end_s - run.start_s) for run in tried)):
            lost[key] = gpu_s
    top = sorted(lost, key=lambda key: (-lost[key], key))[:TOP_FAILING]
    return [tries[key] for key in top]


def _redone_s(runs: list[Run]) -> dict[int, int]:
    """Run -> seconds in which it repeated what a failed try before it had done, had that saved every hour."""
    found: dict[int, int] = {}
    for some in failing(runs):
        kept = free_s = 0
        for i in some:
            run_s = runs[i].end_s - runs[i].start_s
            if kept and runs[i].start_s >= free_s:
                found[i] = min(kept, run_s)
            kept = max(kept, run_s // SAVE_EVERY_S * SAVE_EVERY_S) if runs[i].outcome == "lost" else 0
            free_s = runs[i].end_s
    return found


def _by_hour(runs: list[Run], start_s: int, end_s: int) -> list[int]:
    """GPU-seconds that non-deferrable jobs held in each hour of the window."""
    hours = [0] * (max(0, end_s - start_s - 1) // HOUR_S + 1)
    for run in runs:
        at, end = max(run.start_s, start_s), min(run.end_s, end_s)
        while at < end and not run.deferrable:
            hour = (at - start_s) // HOUR_S
            until = min(end, start_s + (hour + 1) * HOUR_S)
            hours[hour] += run.gpus * (until - at)
            at = until
    return hours
