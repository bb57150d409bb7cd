"""What a user wants run."""

from __future__ import annotations

from dataclasses import dataclass

# A class is a preset bid: who is willing to wait pays less. Lower rank goes first.
PRIORITIES: dict[str, int] = {"urgent": 0, "normal": 1, "background": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang of `gpus` workers and the command they run, as it was submitted."""

    job: str
    gpus: int
    name: str = ""
    tenant: str = "default"
    priority: str = "normal"
    gpu_types: tuple[str, ...] = ()  # empty: any
    budget_microusd: int | None = None  # None: no limit was set
    command: tuple[str, ...] = ()
    folder: str = ""  # where the command runs
    env: tuple[tuple[str, str], ...] = ()
