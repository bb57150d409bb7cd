"""What a rehearsal showed, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brimful.fleet.metrics import measure
from brimful.sim.world import Outcome
from brimful.units import HOUR_S, MICROUSD

if TYPE_CHECKING:
    from brimful.sim.fill import Filled


def report(outcome: Outcome, *, policy: str, seed: int, cpu_s: float) -> dict[str, Any]:
    """One run of the `runs` list in `brimful simulate --json`. None: there was nothing to measure."""
    priced = any(node.microusd_per_gpu_hour for node in outcome.fleet.nodes.values())
    m = measure(outcome.fleet, now_s=outcome.end_s)
    return {
        "policy": policy,
        "seed": seed,
        "jobs": m.jobs,
        "finished": m.finished,
        "mean_jct_h": _hours(m.mean_jct_s),
        "p50_jct_h": _hours(m.p50_jct_s),
        "p99_jct_h": _hours(m.p99_jct_s),
        "makespan_h": _hours(m.makespan_s),
        "mean_wait_h": _hours(m.mean_wait_s),
        "allocation_rate": m.allocation_rate,
        "gpu_h": m.gpu_s / HOUR_S,
        "cost_usd": sum(outcome.ledger.spent_microusd.values()) / MICROUSD if priced else None,
        "never_ran": outcome.waits,
        "cpu_s": cpu_s,
    }


def fill_report(filled: Filled, *, cpu_s: float) -> dict[str, Any]:
    """One run of `brimful simulate --fill`: nothing ends in it, so there are no times to tell."""
    return {
        "policy": filled.policy,
        "seed": filled.seed,
        "jobs": filled.tasks,
        "placed": filled.placed,
        "allocation_rate": float(filled.allocated_percent[-1]) / 100,
        "allocation_at": filled.allocation_at,
        "cpu_s": cpu_s,
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S
