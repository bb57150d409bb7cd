"""Unfinished jobs, counted once per second and event, however many people look.

Waiting and running jobs are grouped as they come and go (`Ranked`), so a count looks at no job, and a sum of
costs at nothing of a running job but its terms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

from brimful.fleet.charge import PARTS
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.state import JobState, Lease
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader

Sized = tuple[tuple[str, str], int]
Rate = tuple[tuple[str, str], int, int]
Terms = tuple[int, int, int]
ANY = 1 << 62  # micro-dollars: more than anything costs


@dataclass(slots=True)
class Tally:
    """Of one team in one queue."""

    running: int = 0
    held_gpus: int = 0
    accruing_microusd: int = 0  # cost of running jobs beyond what is posted
    microusd_per_hour: int = 0
    waiting: int = 0
    waiting_gpus: int = 0
    waits_since_s: int | None = None  # of the longest-waiting job
    on_hold: int = 0


def tallies(reader: Reader, who: Principal) -> dict[tuple[str, str], Tally]:
    """By team and queue, for those that the caller may see."""
    found = reader.once(all_tallies)
    return found if who.sees_all else {key: each for key, each in found.items() if who.sees(key[0])}


def all_tallies(reader: Reader) -> dict[tuple[str, str], Tally]:
    fleet, found = reader.fleet, defaultdict[tuple[str, str], Tally](Tally)
    if fleet.prices:  # a price that changes is looked up for each lease
        _add_leases(reader, found, fleet.open_leases.values())
    else:
        _add_leases(reader, found, fleet.unsettled.values())
        _add_running(reader, found)
    waiting = fleet.waiting.order("tally", lambda state: state.waiting_since_s, _size)
    for name, entries in waiting.groups.items():
        key, gpus = cast("Sized", name)
        row, since_s = found[key], cast("int", entries[0][0])
        row.waiting += len(entries)
        row.waiting_gpus += gpus * len(entries)
        row.waits_since_s = since_s if row.waits_since_s is None else min(row.waits_since_s, since_s)
    for state in fleet.on_hold.values():
        found[_key(state.job)].on_hold += 1
    return dict(found)


def _key(job: Job) -> tuple[str, str]:
    return job.tenant, job.queue or job.tenant


def _add_leases(reader: Reader, found: dict[tuple[str, str], Tally], leases: Iterable[Lease]) -> None:
    now_s, spent = reader.now_s(), reader.ledger.spent_microusd
    for lease in leases:
        state = reader.fleet.jobs[lease.job]
        row = found[_key(state.job)]
        row.running += 1
        row.held_gpus += lease.size
        row.accruing_microusd += state.billed_microusd(now_s) - spent.get(lease.job, 0)
        row.microusd_per_hour += lease.hourly_microusd


def _add_running(reader: Reader, found: dict[tuple[str, str], Tally]) -> None:
    """The same for running jobs at fixed prices, whose terms are noted once, when they start."""
    now_s, noted = reader.now_s(), reader.fleet.running.order("tally", partial(_terms, reader), _rate)
    for name, entries in noted.groups.items():
        key, gpus, owed_per_s = cast("Rate", name)
        row = found[key]
        row.running += len(entries)
        row.held_gpus += gpus * len(entries)
        row.microusd_per_hour += owed_per_s // WHOLE_GPU * len(entries)
        row.accruing_microusd += sum(
            [
                owed if owed < most else most
                for (started_s, before, most), _, _ in cast("list[tuple[Terms, int, JobState]]", entries)
                for seconds in (now_s - started_s if now_s > started_s else 0,)
                for owed in (before + owed_per_s * seconds // PARTS,)
            ]
        )


def _size(state: JobState) -> Sized:
    return _key(state.job), state.job.gpus


def _rate(state: JobState) -> Rate:
    """Team and queue, GPUs, and what they owe per second, in parts of a micro-dollar."""
    lease = state.leases[-1]
    return _key(state.job), lease.size, lease.microusd_per_gpu_hour * lease.size * lease.gpu_milli


def _terms(reader: Reader, state: JobState) -> Terms:
    """When it started, what its earlier leases owe that is not posted, and the most that may be added."""
    lease, budget = state.leases[-1], state.job.budget_microusd
    assert lease.started_s is not None, "it runs"
    spent = reader.ledger.spent_microusd.get(lease.job, 0)
    before = sum(each.cost_microusd(lease.started_s) for each in state.leases[:-1]) - spent
    before -= state.overrun_microusd
    return lease.started_s, before, ANY if budget is None else budget - spent
