"""Which policy was adopted, and what the newest rehearsal of the server's own past has shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from brimful.errors import Said
from brimful.fleet.event import Event


class Rehearsed(NamedTuple):
    """What a policy would have made of a past. -1: nothing to measure."""

    policy: str
    costs_s: tuple[int, ...]  # job-seconds, by stretch of the past
    mean_jct_s: int
    p99_jct_s: int
    mean_delay_s: int
    deadlines_kept: int
    fill_permille: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRehearsed(Event):
    """What each policy would have made of the time from `since_s` to `until_s`, from the same start."""

    at_s: int
    since_s: int
    until_s: int
    jobs: int  # submitted in that time
    deadlines: int  # of these jobs and of earlier ones still there
    results: tuple[Rehearsed, ...]
    cpu_ms: int = 0  # spent on the rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAdopted(Event):
    """From here on this policy decides, on a server that was started with `instead_of`."""

    at_s: int
    policy: str
    instead_of: str
    by: str = ""  # who adopted it; empty: the server itself
    reason: Said | None = None  # the evidence


@dataclass(slots=True)
class Adoption:
    """A fold of these events."""

    last: PolicyAdopted | None = None
    rehearsed: PolicyRehearsed | None = None

    def apply(self, event: Event) -> None:
        if isinstance(event, PolicyAdopted):
            self.last = event
        elif isinstance(event, PolicyRehearsed):
            self.rehearsed = event
