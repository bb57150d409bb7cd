"""What some engines can do besides the scheduler's port. Found by type check; nobody has to do all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from brimful.errors import Said
from brimful.fleet.state import Node


class LogPiece(NamedTuple):
    start: int  # where the bytes begin in the log
    data: bytes
    size: int  # of the whole log, now


@runtime_checkable
class KeepsLogs(Protocol):
    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        """Up to `limit` bytes of what this rank of the lease printed; a negative offset is from the end."""


@runtime_checkable
class KeepsSamples(Protocol):
    def sample(self, lease: str) -> bytes | None:
        """What the lease's Meter measured last, as it wrote it; None where none did.

        Never more than 64 KiB. BadInput where what is there cannot have been written by a Meter.
        """


@runtime_checkable
class SeesActivity(Protocol):
    def busy_frac(self, node: str, gpus: Sequence[int]) -> float | None:
        """Of the last moment, in which some kernel ran on any of them; None where no driver says."""


class GpuUse(NamedTuple):
    """What a GPU's driver says of the last moment; None where it does not."""

    memory_used_bytes: int | None  # by every program
    busy_frac: float | None  # of the time, some kernel ran


@runtime_checkable
class SeesGpus(Protocol):
    def gpu_use(self) -> Mapping[tuple[str, int], GpuUse]:
        """By node and GPU, of those whose driver answers."""


@runtime_checkable
class KeepsEnvironments(Protocol):
    """Keeps the values of a job's environment variables, which may be secrets: the log holds names only."""

    def keep_env(self, job: str, env: Mapping[str, str]) -> None:
        """Before the job is submitted; for all its leases."""

    def forget_env(self, job: str) -> None:
        """The job is over."""


def environment_keepers(engines: Iterable[object]) -> list[KeepsEnvironments]:
    """The engines, if all of them keep what jobs were submitted with; none where one does not."""
    engines = list(engines)
    keepers = [engine for engine in engines if isinstance(engine, KeepsEnvironments)]
    return keepers if len(keepers) == len(engines) else []


@runtime_checkable
class Admits(Protocol):
    def admit(self, tenant: str) -> None:
        """Refused where jobs of this tenant may not run."""


@runtime_checkable
class Complains(Protocol):
    def complaints(self) -> Mapping[str, Said]:
        """Leases that could not be looked at the last time, and why; they count as they did before."""


@runtime_checkable
class Examines(Protocol):
    """A provider that can be looked at more closely than the loop does."""

    def examine(self) -> Mapping[str, Said | None]:
        """By part, such as a machine: what is wrong with it; None: nothing. Takes its time."""


class SeenJob(NamedTuple):
    """A job of anybody, as a site's own scheduler shows it."""

    job: str  # as the site calls it, once and for all
    user: str
    gpus: int  # in all
    nodes: int
    gpu: str  # the type it asked for; empty: any
    submitted_s: int
    started_s: int | None = None
    ended_s: int | None = None
    places: tuple[str, ...] = ()  # the nodes it has, or had
    outcome: str = "unknown"  # kept, lost or unknown: what became of its work
    held: bool = False  # it could not begin yet, however many GPUs were free


@runtime_checkable
class WatchesJobs(Protocol):
    """An engine that can be watched without acting there."""

    def nodes(self) -> Sequence[Node]: ...

    def seen_jobs(self) -> Sequence[SeenJob]:
        """Every job that the site remembers, whoever's it is."""
