"""Optional engine capabilities beyond the scheduler's port, found by type check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from brimful.errors import Said
from brimful.fleet.state import Node


class LogPiece(NamedTuple):
    start: int  # offset of these bytes in the log
    data: bytes
    size: int  # of the whole log, as of now


@runtime_checkable
class KeepsLogs(Protocol):
    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        """Up to `limit` bytes of this rank's output; a negative offset counts from the end."""


@runtime_checkable
class KeepsSamples(Protocol):
    def sample(self, lease: str) -> bytes | None:
        """The lease's latest Meter sample, as written; None if there is none.

        At most 64 KiB. Raises BadInput if a Meter cannot have written what is there.
        """


@runtime_checkable
class SeesActivity(Protocol):
    def busy_frac(self, node: str, gpus: Sequence[int]) -> float | None:
        """Recent fraction of time in which a kernel ran on any of these GPUs; None if no driver says."""


class GpuUse(NamedTuple):
    """Recent usage as the GPU's driver reports it; None where it does not."""

    memory_used_bytes: int | None  # by all programs
    busy_frac: float | None  # fraction of time in which a kernel ran


@runtime_checkable
class SeesGpus(Protocol):
    def gpu_use(self) -> Mapping[tuple[str, int], GpuUse]:
        """By node and GPU; only GPUs whose driver answers."""


@runtime_checkable
class KeepsEnvironments(Protocol):
    """Stores the values of a job's environment variables, which may be secrets: the log holds names only."""

    def keep_env(self, job: str, env: Mapping[str, str]) -> None:
        """Called before the job is submitted; applies to all its leases."""

    def forget_env(self, job: str) -> None:
        """Called when the job is over."""


def environment_keepers(engines: Iterable[object]) -> list[KeepsEnvironments]:
    """The engines if all of them store job environments; otherwise none."""
    engines = list(engines)
    keepers = [engine for engine in engines if isinstance(engine, KeepsEnvironments)]
    return keepers if len(keepers) == len(engines) else []


@runtime_checkable
class Admits(Protocol):
    def admit(self, tenant: str) -> None:
        """Raises if jobs of this tenant may not run here."""


@runtime_checkable
class Complains(Protocol):
    def complaints(self) -> Mapping[str, Said]:
        """Leases that the last look could not read, and why; their previous state still counts."""


@runtime_checkable
class KnowsOthers(Protocol):
    def others(self) -> Mapping[str, Sequence[str]]:
        """By node, as of the last look: users whose own jobs hold GPUs there."""


@runtime_checkable
class Examines(Protocol):
    """A provider that supports a closer check than the loop makes."""

    def examine(self) -> Mapping[str, Said | None]:
        """By part, such as a machine: what is wrong with it, or None. May be slow."""


class SeenJob(NamedTuple):
    """Anyone's job, as the site's own scheduler shows it."""

    job: str  # the site's id for it, which never changes
    user: str
    gpus: int  # total
    nodes: int
    gpu: str  # requested type; empty: any
    submitted_s: int
    started_s: int | None = None
    ended_s: int | None = None
    places: tuple[str, ...] = ()  # its nodes, current or past
    outcome: str = "unknown"  # kept, lost or unknown: what happened to its work
    held: bool = False  # it could not start yet, even with free GPUs


@runtime_checkable
class WatchesJobs(Protocol):
    """An engine that can be watched without acting on it."""

    @property
    def site(self) -> str: ...

    def nodes(self) -> Sequence[Node]: ...

    def seen_jobs(self) -> Sequence[SeenJob]:
        """Every job the site remembers, of any user."""
