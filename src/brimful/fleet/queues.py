"""What each queue may hold: its own GPUs, what it lends and borrows, and limits within it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A queue's quota, and how far it may exceed it while others leave theirs idle."""

    queue: str
    gpus: int  # its own, lent while unused
    borrow_gpus: int | None = None  # the most idle GPUs it may borrow; None: all of them
    lend: bool = True
    weight: float = 1.0  # under the policy `fair`: with 2 it is owed twice as much
    parent: str = ""  # the queue whose share it is part of under `fair`
    user_gpus: int | None = None  # the most one user may hold of it at once
    type_gpus: tuple[tuple[str, int], ...] = ()  # the most it may hold of each GPU type
    top_priority: str = "urgent"  # the highest class its jobs may have
    tenants: tuple[str, ...] = ()  # tenants that may use it; empty: the tenant of its name

    def is_for(self, tenant: str) -> bool:
        return tenant in (self.tenants or (self.queue,))

    @property
    def has_limits(self) -> bool:
        return self.user_gpus is not None or bool(self.type_gpus)
