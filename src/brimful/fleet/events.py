"""What has happened. The log of these is the truth; every table and number is a fold of it.

An event says what became so, at which UTC second, in the fewest words that rebuild the state. It is never
changed once written: a new meaning is a new version, and the reader keeps understanding the old ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from brimful.errors import WorldFailed
from brimful.fleet.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node offers `gpus` GPUs, or its description changed."""

    version: ClassVar[int] = 1
    at_s: int
    site: str
    node: str
    gpu: str
    gpus: int
    microusd_per_gpu_hour: int
    declared: bool  # True: somebody said so in the settings; False: found on the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    version: ClassVar[int] = 1
    at_s: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    version: ClassVar[int] = 1
    at_s: int
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    version: ClassVar[int] = 1
    at_s: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """The intent to start: from here on these GPUs are taken, whether or not the process is up yet."""

    version: ClassVar[int] = 1
    at_s: int
    lease: str
    job: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStarted:
    """The engine saw it run. Billing begins here."""

    version: ClassVar[int] = 1
    at_s: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnding:
    """The intent to stop. The GPUs stay taken until LeaseEnded."""

    version: ClassVar[int] = 1
    at_s: int
    lease: str
    reason: str
    requeue: bool  # True: the job waits for another lease; False: this is its end


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded:
    """The engine saw that nothing of it runs any more. Billing ends here and the GPUs are free."""

    version: ClassVar[int] = 1
    at_s: int
    lease: str
    exit_code: int | None  # None: nobody knows
    reason: str = ""


Event = (
    NodeJoined
    | NodeLeft
    | JobSubmitted
    | CancelRequested
    | LeaseGranted
    | LeaseStarted
    | LeaseEnding
    | LeaseEnded
)

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        NodeJoined,
        NodeLeft,
        JobSubmitted,
        CancelRequested,
        LeaseGranted,
        LeaseStarted,
        LeaseEnding,
        LeaseEnded,
    )
}


def to_record(event: Event) -> tuple[str, int, dict[str, Any]]:
    """(kind, version, body): what a store writes."""
    return type(event).__name__, event.version, asdict(event)


def from_record(kind: str, version: int, body: dict[str, Any]) -> Event:
    """The event a record holds, or a clear refusal: guessing would corrupt every number after it."""
    if kind not in KINDS or version > KINDS[kind].version:
        raise WorldFailed(
            f"the event log holds {kind} version {version}, which this brimful does not know",
            hint="this database was written by a newer brimful: install that version or restore a backup",
            code="log_too_new",
        )
    fields = dict(body)
    if kind == "JobSubmitted":
        fields["job"] = _job_from(fields["job"])
    elif kind == "LeaseGranted":
        fields["gpus"] = tuple(fields["gpus"])
    event: Event = KINDS[kind](**fields)
    return event


def _job_from(body: dict[str, Any]) -> Job:
    """JSON knows only lists; the noun is hashable and so holds tuples."""
    fields = dict(body)
    fields["gpu_types"] = tuple(fields["gpu_types"])
    fields["command"] = tuple(fields["command"])
    fields["env"] = tuple((key, value) for key, value in fields["env"])
    return Job(**fields)
