"""The choices a policy is made of. Every part can be switched off, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a queue is owed, and how far it may go beyond while others leave theirs idle."""

    queue: str
    gpus: int  # its own, and what it lends while it does not use it
    borrow_gpus: int | None = None  # at most this many of others' idle GPUs; None: all of them
    lend: bool = True


def _option(words: str, *, default: Any, choices: tuple[str, ...] = (), least: int = 0) -> Any:  # noqa: ANN401
    """A choice that `--policy NAME?option=value` can change (policies.py)."""
    return field(default=default, metadata={"words": words, "choices": choices, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    quotas: tuple[Quota, ...] = ()
    order: str = _option(
        "who is next: by arrival, by class, by what its queue has had, by bid, or by class and expected work",
        default="priority",
        choices=("fifo", "priority", "fair", "bid", "index"),
    )
    types: str = _option(
        "which GPU type: the best fit, each in turn, the fastest, the one it gains most from compared with "
        "others, or the one where its work costs least",
        default="tight",
        choices=("tight", "rotate", "fast", "advantage", "cheap"),
    )
    backfill: str = _option(
        "who may pass a blocked job: nobody, whoever does not delay it, or anybody",
        default="none",
        choices=("none", "reserve", "greedy"),
    )
    reservations: int = _option("blocked gangs that keep a cell, with `backfill=reserve`", default=1)
    preempt: str = _option(
        "whom a job may stop: nobody, lower classes, or also whoever is much further from its end",
        default="none",
        choices=("none", "priority", "index"),
    )
    move: bool = _option("running jobs move to a GPU type that suits them better", default=False)
    reclaim: bool = _option("a job within its quota may stop gangs of its class that borrow", default=True)
    off_peak: bool = _option("deferrable jobs wait for the quiet hours", default=False)
    deadlines: bool = _option("who must start soon to be in time goes first in its class", default=False)
    grace_s: int = _option("seconds between the polite signal and the last one", default=10, least=1)
    # How the index compares jobs (ordering.py).
    known: bool = _option("predicted work is used; else only what a job has had so far", default=True)
    ageing: float = _option("seconds of expected work that a second of waiting makes up for", default=0.0)
    turns: float = _option("share of GPUs for jobs that have waited longer than nearly all run", default=0.0)
    width: float = _option("how a gang is weighed: 0 as one job, 1 by all its GPUs", default=1.0)
    fresh_s: float = _option("seconds a job of unknown length is expected to need at first", default=600.0)
    margin: float = _option("how many times further from its end a victim must be", default=2.0)
    min_run_s: int = _option("seconds a job is left alone after a start", default=300)
    tries: int = _option("blocked jobs that look for victims in one decision", default=4)
    rerank_s: int = _option("seconds between two comparisons while jobs wait", default=600, least=1)
