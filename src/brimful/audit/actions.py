"""What to do: changes applied one on top of the other, each replayed together with all before it.

The last replay has all of them at once. The GPUs that a step returns are what it adds to the steps before it,
so they sum to the joint answer and to nothing else: alone, a step may be worth more or less.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from brimful.audit.changes import CHANGES
from brimful.audit.rehearsals import Work
from brimful.audit.sizing import EXPLAINED, Replay, Sizing, gpus_of, least, silos
from brimful.fleet.node import Node
from brimful.scheduler.policies import Policy
from brimful.scheduler.rules import Rules
from brimful.units import DAY_S, HOUR_S, MICROUSD

MONTH_H = 730
TRUSTED = 0.8  # share of the real waits that must be explained
WEEK_S = 7 * DAY_S
Confidence = Literal["low", "medium", "high"]
LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")
# Steps that rest on more than the records: retries are recognised by name, speeds come from data sheets.
ASSUMED = ("checkpoint", "old_cards", "quiet_hours")


def actions(
    work: Callable[[Collection[str]], Work], policy: Policy, explained: float | None
) -> list[dict[str, Any]]:
    """`work` makes the jobs after some changes; `explained` is how much the calibration explains."""
    now = work(())
    today = Sizing(now.arrivals, now.as_it_was(policy.rules)).replay(now.fleet, whole=True)
    found: list[dict[str, Any]] = []
    fleet: Mapping[Node, int] = now.fleet
    made: tuple[str, ...] = ()
    pooled = gpus_of(fleet)  # enough for the jobs as they were, once queues share
    before_s = _work_s(now)
    for name in ("drop_walls" if now.walls else "return_gpus", *CHANGES):
        tried = now if not found and name not in CHANGES else work((*made, name))
        if name in CHANGES and tried.arrivals == work(made).arrivals:
            continue  # nothing of the kind in the records
        step = _step(tried, policy.rules, name)
        if step is None:
            continue
        counts, replay = step
        saved_s = before_s - _work_s(tried)
        if counts == fleet and saved_s <= 0 and (replay.mean_delay_s or 0) >= (today.mean_delay_s or 0):
            continue  # nothing is returned, freed or earlier
        found.append(
            {
                "action": name,
                "gpus": gpus_of(fleet) - gpus_of(counts),
                "left_gpus": gpus_of(counts),
                "usd_per_month": _usd_per_month(fleet, counts),
                "gpu_h_per_month": saved_s / HOUR_S * MONTH_H * HOUR_S / _span_s(tried),
                "hurt_before": today.worst_share,
                "hurt_after": replay.worst_share,
                "mean_delay_s_before": today.mean_delay_s,
                "mean_delay_s_after": replay.mean_delay_s,
                **_confidence(name, explained, _span_s(now)),
            }
        )
        fleet, before_s = counts, _work_s(tried)
        if name in CHANGES:
            made = (*made, name)
        else:
            pooled = gpus_of(counts)
    return (
        [*found, _renew(now, fleet, pooled, policy.rules, explained)]
        if gpus_of(fleet) < gpus_of(now.fleet)
        else found
    )


def _step(work: Work, rules: Rules, name: str) -> tuple[Mapping[Node, int], Replay] | None:
    """The fewest nodes after this change, and the replay on them; None if it makes things worse.

    Always starts from today's fleet: a later step may be able to use exactly what an earlier one returns.
    """
    sizing = Sizing(work.arrivals, rules, work.types)
    counts = least(sizing, work.fleet)
    if counts is None:
        return None if name in CHANGES else (work.fleet, sizing.replay(work.fleet, whole=True))
    return counts, sizing.replay(counts, whole=True)


def _renew(
    now: Work, fleet: Mapping[Node, int], pooled: int, rules: Rules, explained: float | None
) -> dict[str, Any]:
    """All of it again, as what to buy, and why there were more. Not to be added to the other actions.

    GPUs beyond what every queue would need alone are over-provisioned; the rest was bought because queues do
    not share (defensive buying), or is saved by the other changes. Known only with a single kind of node.
    """
    had, left = gpus_of(now.fleet), gpus_of(fleet)
    defensive = None
    if len(now.fleet) == 1:
        alone = silos(now.arrivals, rules, next(iter(now.fleet))).values()
        if None not in alone:
            defensive = max(0, min(had, sum(n or 0 for n in alone)) - pooled)
    return {
        "action": "renew",
        "gpus": had - left,
        "left_gpus": left,
        "usd_per_month": _usd_per_month(now.fleet, fleet),
        "defensive_gpus": defensive,
        "over_gpus": None if defensive is None else had - pooled - defensive,
        "changed_gpus": pooled - left,
        **_confidence("renew", explained, _span_s(now)),
    }


def _work_s(work: Work) -> float:
    return sum(a.job.gpus * a.work_s for a in work.arrivals)


def _usd_per_month(before: Mapping[Node, int], after: Mapping[Node, int]) -> float | None:
    """None if something that is returned has no price."""
    microusd = 0
    for kind, n in before.items():
        gone = n - after.get(kind, 0)
        if gone and not kind.microusd_per_gpu_hour:
            return None
        microusd += gone * kind.gpus * kind.microusd_per_gpu_hour
    priced = any(kind.microusd_per_gpu_hour for kind in before)
    return microusd * MONTH_H / MICROUSD if priced else None


def _span_s(work: Work) -> float:
    return max(1.0, max(a.at_s + a.work_s for a in work.arrivals) - work.arrivals[0].at_s)


def _confidence(name: str, explained: float | None, span_s: float) -> dict[str, Any]:
    """No more than the replay deserves, and than records do that have seen no whole day, or no whole week."""
    level = 0 if explained is None or explained < EXPLAINED else 1 if explained < TRUSTED else 2
    seen = 0 if span_s < DAY_S else 1 if span_s < WEEK_S else 2
    confidence: Confidence = LEVELS[min(seen, max(0, level - (name in ASSUMED)))]
    return {"confidence": confidence, "seen_s": span_s, "is_short": seen < len(LEVELS) - 1}
