"""Answers about queues: shapes, as in `answers`."""

from __future__ import annotations

from typing import Annotated, TypedDict


class QueueSettings(TypedDict):
    gpus: Annotated[int, "its quota, which it lends while unused"]
    borrow_gpus: Annotated[int | None, "limit on borrowed idle GPUs; null: no limit"]
    lend: bool
    weight: Annotated[float, "its weight under the policy `fair`"]
    parent: Annotated[str, "the queue whose share it is part of; empty: none that the caller may see"]
    user_gpus: Annotated[int | None, "limit per user"]
    type_gpus: Annotated[dict[str, int], "limit per GPU type"]
    top_priority: Annotated[str, "the highest class its jobs may have"]
    tenants: Annotated[list[str], "who may use it; empty: the tenant with its name"]


class QueueAnswer(TypedDict):
    queue: str
    running: int
    held_gpus: int
    waiting: int
    waiting_gpus: int
    on_hold: int
    oldest_wait_s: int | None
    recent_gpu_s: float
    share_owed: Annotated[
        float | None, "under `fair`, 0 to 1, of queues with jobs; null: no job, or no shares"
    ]
    share_used: Annotated[float | None, "under `fair`, 0 to 1, of all recent use; null: no shares"]
    quota_gpus: int | None
    set: Annotated[QueueSettings | None, "the operator's settings; null: none"]
    without_effect: Annotated[list[str], "settings that the current policy does not look at"]
    notes: Annotated[list[str], "what the fleet has too little of for its settings; for operators"]


class QueuesAnswer(TypedDict):
    queues: list[QueueAnswer]


class QueueCheckAnswer(TypedDict):
    queue: str
    without_effect: Annotated[list[str], "settings that the current policy does not look at"]
    notes: Annotated[list[str], "what the fleet has too little of for its settings"]


class QueuesCheckAnswer(TypedDict):
    queues: list[QueueCheckAnswer]
