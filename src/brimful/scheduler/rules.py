"""The choices a policy is made of. Every part can be switched off, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Ordering = Literal["fifo", "priority", "fair", "bid", "index"]
TypeChoice = Literal["tight", "rotate", "fast", "advantage", "cheap"]
Backfill = Literal["none", "reserve", "greedy"]
Preempt = Literal["none", "priority", "index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a queue is owed, and how far it may go beyond while others leave theirs idle."""

    queue: str
    gpus: int  # its own, and what it lends while it does not use it
    borrow_gpus: int | None = None  # at most this many of others' idle GPUs; None: all of them
    lend: bool = True


def _option(*, default: Any, of: Any = None, least: int = 0) -> Any:  # noqa: ANN401
    """A choice that `--policy NAME?option=value` can change; what it is for: policies.about_option."""
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
    reclaim: bool = _option(default=True)
    off_peak: bool = _option(default=False)
    deadlines: bool = _option(default=False)
    grace_s: int = _option(default=10, least=1)
    # How the index compares jobs (ordering.py).
    known: bool = _option(default=True)
    ageing: float = _option(default=0.0)
    turns: float = _option(default=0.0)
    width: float = _option(default=1.0)
    fresh_s: float = _option(default=600.0)
    margin: float = _option(default=2.0)
    min_run_s: int = _option(default=300)
    tries: int = _option(default=4)
    rerank_s: int = _option(default=600, least=1)
