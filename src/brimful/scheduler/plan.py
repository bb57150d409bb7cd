"""What was decided, as data: comparable, printable, and nothing has happened yet."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    job: str
    lease: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    lease: str
    reason: str
    requeue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)  # job -> why, with numbers
