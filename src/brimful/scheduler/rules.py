"""The choices a policy is made of. Every part can be switched off, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a queue is owed, and how far it may go beyond while others leave theirs idle."""

    queue: str
    gpus: int  # its own, and what it lends while it does not use it
    borrow_gpus: int | None = None  # at most this many of others' idle GPUs; None: all of them
    lend: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    order: str = "priority"  # who is next: a name of ordering.py
    types: str = "tight"  # which GPU type: tight (best fit, speed ignored), rotate, fast, advantage, cheap
    backfill: str = (
        "none"  # none: nobody passes a blocked job; reserve: who does not delay it; greedy: anyone
    )
    reservations: int = 1  # blocked gangs that keep a cell, under `reserve`
    preempt: str = "none"  # none, priority (lower classes), index (whoever is much further from its end)
    move: bool = False  # running jobs change to a GPU type that suits them better
    quotas: tuple[Quota, ...] = ()
    reclaim: bool = True  # a job within its queue's quota may stop gangs of its class that borrow
    off_peak: bool = False  # deferrable jobs wait for the quiet hours
    deadlines: bool = False  # who must start soon to be in time goes first within its class
    grace_s: int = 10  # between the polite signal and the last one
    # How the index compares jobs (ordering.py).
    known: bool = True  # predictions of a job's work are used; False: only what it has had so far
    ageing: float = 0.0  # seconds of expected work that a second of waiting makes up for
    turns: float = 0.0  # of the GPUs, at most this share goes to whose turn it is (fleet/turns.py)
    width: float = 1.0  # 0: a gang counts as one job; 1: by all its GPUs
    fresh_s: float = 600.0  # what a job of unknown length is expected to need when it starts
    margin: float = 2.0  # a victim must be this many times further from its end
    min_run_s: int = 300  # nobody is preempted sooner after a start
    tries: int = 4  # blocked jobs that look for victims in one decision
    rerank_s: int = 600  # while jobs wait, think again at least this often


# The named policies of `brimful simulate --policy`.
POLICIES: dict[str, Rules] = {
    "fifo": Rules(order="fifo"),
    "priority": Rules(order="priority", deadlines=True),
    "backfill": Rules(order="priority", backfill="reserve", deadlines=True),
    "bid": Rules(order="bid", backfill="reserve"),
    "fair": Rules(order="fair", backfill="reserve", deadlines=True),
    # Least attained service, all GPU types in turn, and with each job on the type that suits it.
    "las": Rules(
        order="index",
        known=False,
        types="rotate",
        backfill="greedy",
        preempt="index",
        move=True,
        rerank_s=360,
    ),
    "las-aware": Rules(
        order="index",
        known=False,
        types="advantage",
        backfill="greedy",
        preempt="index",
        move=True,
        rerank_s=360,
    ),
    "srpt": Rules(order="index", backfill="greedy", preempt="index", ageing=0.0, margin=1.0, min_run_s=0),
    "brim": Rules(
        order="index",
        types="advantage",
        backfill="reserve",
        preempt="index",
        move=True,
        off_peak=True,
        deadlines=True,
        ageing=0.01,
        turns=0.75,
        fresh_s=1800.0,
    ),
}
