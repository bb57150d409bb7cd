"""How well a fleet did: one set of definitions for simulation report, console and audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.fleet.state import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Times are None where no job supplies one: an absent figure is not a zero."""

    jobs: int
    finished: int
    mean_jct_s: float | None  # finish - submit
    p50_jct_s: float | None
    p99_jct_s: float | None
    mean_delay_s: float | None  # finish - submit - work
    p99_delay_s: float | None
    mean_first_wait_s: float | None  # first start - submit: it says nothing of waits after a preemption
    makespan_s: float | None  # last finish - first submit
    allocation_rate: float | None  # leased GPU-seconds / GPU-seconds there were
    gpu_s: int


def measure(fleet: Fleet, *, now_s: int) -> Metrics:
    """The fleet's record from its first submit until now, or until the last job's end if all are over.

    Leaves out: useful share and lost work, which need speeds per GPU type and checkpoints; and, in the times,
    jobs that have left memory (`Fleet.keep`).
    """
    states = list(fleet.jobs.values())
    jcts = [s.ended_s - s.submitted_s for s in states if s.phase == "finished" and s.ended_s is not None]
    delays = [s.delay_s(now_s) for s in states if s.phase == "finished"]
    waits = [s.first_start_s - s.submitted_s for s in states if s.first_start_s is not None]
    first_s = now_s if fleet.first_submit_s is None else fleet.first_submit_s
    ends = [s.ended_s for s in states if s.ended_s is not None]
    all_over = len(ends) == len(states)
    last_s = max([*ends, fleet.past.last_end_s]) if states and all_over else now_s
    gpu_s = fleet.leased_gpu_s(now_s)
    return Metrics(
        jobs=fleet.past.jobs + len(states),
        finished=fleet.past.finished + len(jcts),
        mean_jct_s=_mean(jcts),
        p50_jct_s=percentile(jcts, 50),
        p99_jct_s=percentile(jcts, 99),
        mean_delay_s=_mean(delays),
        p99_delay_s=percentile(delays, 99),
        mean_first_wait_s=_mean(waits),
        makespan_s=float(last_s - first_s) if states and all_over else None,
        allocation_rate=fleet.allocation_rate(now_s),
        gpu_s=gpu_s,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of them do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # ceil
    return float(ordered[max(0, int(rank) - 1)])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
