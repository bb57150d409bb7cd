"""The choices that make up a policy. Every part can be switched off, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from brimful.fleet.queues import Quota

__all__ = ["Quota", "Rules", "with_queues"]

Ordering = Literal["fifo", "priority", "fair", "bid", "index"]
TypeChoice = Literal["tight", "rotate", "fast", "advantage", "cheap"]
Backfill = Literal["none", "reserve", "greedy"]
Preempt = Literal["none", "priority", "index"]
Objective = Literal["jct", "makespan"]


def _option(*, default: Any, of: Any = None, least: int = 0) -> Any:  # noqa: ANN401
    """A choice that `--policy NAME?option=value` can change; policies.about_option describes it."""
    return field(default=default, metadata={"choices": get_args(of), "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    quotas: tuple[Quota, ...] = ()
    order: Ordering = _option(default="priority", of=Ordering)
    types: TypeChoice = _option(default="tight", of=TypeChoice)
    backfill: Backfill = _option(default="none", of=Backfill)
    reservations: int = _option(default=1)
    preempt: Preempt = _option(default="none", of=Preempt)
    move: bool = _option(default=False)
    moves: float = _option(default=0.0)
    reclaim: bool = _option(default=True)
    off_peak: bool = _option(default=False)
    tariff: bool = _option(default=False)
    deadlines: bool = _option(default=False)
    grace_s: int = _option(default=10, least=1)
    # How the index compares jobs (ordering.py, assign.py).
    objective: Objective = _option(default="jct", of=Objective)
    known: bool = _option(default=True)
    ageing: float = _option(default=0.0)
    turns: float = _option(default=0.0)
    width: float = _option(default=1.0)
    learn: bool = _option(default=False)
    fresh_s: float = _option(default=600.0)
    margin: float = _option(default=2.0)
    stay: bool = _option(default=False)
    min_run_s: int = _option(default=300)
    share: bool = _option(default=False)
    tries: int = _option(default=4)
    rerank_s: int = _option(default=600, least=1)


@lru_cache(maxsize=4)
def with_queues(rules: Rules, queues: tuple[Quota, ...]) -> Rules:
    """The same rules with the current queues; the same object while the queues stay the same."""
    return replace(rules, quotas=queues)
