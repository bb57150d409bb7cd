"""How well a fleet did: one set of definitions for simulation report, console and audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.fleet.state import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Times are None if no job supplies one: a missing figure is not a zero."""

    jobs: int
    finished: int
    mean_jct_s: float | None  # finish - ready: submit, or the end of the jobs it depends on
    p50_jct_s: float | None
    p99_jct_s: float | None
    mean_delay_s: float | None  # finish - ready - work
    p99_delay_s: float | None
    mean_first_wait_s: float | None  # first start - ready: excludes waits after a preemption
    makespan_s: float | None  # last finish - first submit
    allocation_rate: float | None  # leased GPU-seconds / available GPU-seconds


def measure(fleet: Fleet, *, now_s: int) -> Metrics:
    """The fleet's record from its first submit until now, or until the last job's end if all are over.

    Leaves out: useful share and lost work, which need speeds per GPU type and checkpoints; and, in the times,
    jobs that have left memory (`Fleet.keep`).
    """
    states = list(fleet.jobs.values())
    jcts = [s.ended_s - s.ready_s for s in states if s.phase == "finished" and s.ended_s is not None]
    delays = [s.delay_s(now_s) for s in states if s.phase == "finished"]
    waits = [s.first_start_s - s.ready_s for s in states if s.first_start_s is not None]
    makespan_s = None
    if fleet.is_idle() and fleet.first_submit_s is not None and fleet.last_end_s is not None:
        makespan_s = float(fleet.last_end_s - fleet.first_submit_s)
    return Metrics(
        jobs=fleet.submitted,
        finished=fleet.finished.jobs,
        mean_jct_s=mean(jcts),
        p50_jct_s=percentile(jcts, 50),
        p99_jct_s=percentile(jcts, 99),
        mean_delay_s=mean(delays),
        p99_delay_s=percentile(delays, 99),
        mean_first_wait_s=mean(waits),
        makespan_s=makespan_s,
        allocation_rate=fleet.allocation_rate(now_s),
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of them do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # ceil
    return float(ordered[max(0, int(rank) - 1)])


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
