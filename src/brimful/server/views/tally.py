"""Unfinished jobs, counted once per second and event, however many people look."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from brimful.server.auth import Principal
from brimful.server.service.reader import Reader


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
    found = reader.once(_tallies)
    return found if who.sees_all else {key: each for key, each in found.items() if who.sees(key[0])}


def _tallies(reader: Reader) -> dict[tuple[str, str], Tally]:
    fleet, spent, now_s = reader.fleet, reader.ledger.spent_microusd, reader.now_s()
    found: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
    for lease in fleet.open_leases.values():
        state = fleet.jobs[lease.job]
        job = state.job
        row = found[job.tenant, job.queue or job.tenant]
        row.running += 1
        row.held_gpus += lease.size
        row.accruing_microusd += state.billed_microusd(now_s) - spent.get(lease.job, 0)
        row.microusd_per_hour += lease.hourly_microusd
    for state in fleet.waiting.values():
        job, since_s = state.job, state.waiting_since_s
        row = found[job.tenant, job.queue or job.tenant]
        row.waiting += 1
        row.waiting_gpus += job.gpus
        if row.waits_since_s is None or since_s < row.waits_since_s:
            row.waits_since_s = since_s
    for state in fleet.on_hold.values():
        found[state.job.tenant, state.job.queue or state.job.tenant].on_hold += 1
    return dict(found)
