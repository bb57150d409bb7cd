"""The log as the service passes it on: readers see at once what is read from it or written to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from brimful.adapters.capabilities import KeepsEnvironments
from brimful.errors import WorldFailed
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSkipped,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeGone,
    NodeOrdered,
    NodeReady,
    NodeReturned,
)
from brimful.fleet.state import OVER, Fleet
from brimful.scheduler.ports import Store
from brimful.server.service.reader import Reader

log = logging.getLogger("brimful")


class ObservedStore:
    """Logs what was written; engines forget the environments of finished jobs."""

    def __init__(self, store: Store, reader: Reader, keepers: Sequence[KeepsEnvironments]) -> None:
        self._store, self._reader, self._keepers = store, reader, keepers

    def since(self, seq: int) -> Sequence[Event]:
        if recent := self._reader.recent(after=seq):
            return recent
        events = self._store.since(seq)
        self._reader.fold(events, after=seq)
        return events

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        if (gone := self._reader.health.store_gone) is not None:
            raise WorldFailed(gone, code="database_gone")  # a write would be lost now
        if not self._store.append(events, after=after):
            return False
        with self._reader.locked():
            self._reader.fold(events, after=after)
            lines = _lines(self._reader.fleet, events)
            over = [env for name in lines if (env := _env_done(self._reader, name))]
        for line in (*filter(None, lines.values()), *_bought(events)):
            log.info("%s", line)
        for engine in self._keepers if over else ():
            for name in over:
                engine.forget_env(name)
        return True


def _env_done(reader: Reader, name: str) -> str:
    """Environments that are no longer needed: the job's, or its array's once all of it is over."""
    state = reader.job(name)
    array = reader.array(state.job.array)
    if state.phase not in OVER or (array is not None and array.unfinished):
        return ""
    return state.job.array or name


def _bought(events: Sequence[Event]) -> Iterator[str]:
    """What was bought and given back: whoever pays wants to read that."""
    for event in events:
        match event:
            case NodeOrdered(node=node, reason=reason):
                yield f"{node} ordered: {reason}"
            case NodeReady(node=node):
                yield f"{node} ready"
            case NodeReturned(node=node, reason=reason):
                yield f"{node} given back: {reason}"
            case NodeGone(node=node, cause=cause, reason=reason):
                yield f"{node} gone ({cause})" + (f": {reason}" if reason else "")


def _lines(fleet: Fleet, events: Sequence[Event]) -> dict[str, str]:
    """The jobs that changed, with one readable line each."""
    lines: dict[str, str] = {}
    for event in events:
        if isinstance(event, CancelRequested):
            lines[event.job] = ""  # logged where it was requested
        if isinstance(event, JobSkipped):
            lines[event.job] = f"{event.job} skipped: {event.reason}"
        if not isinstance(event, LeaseGranted | LeaseStarted | LeaseEnding | LeaseEnded):
            continue
        lease = fleet.leases.get(event.lease)
        if lease is None:
            continue  # it left memory with this very event
        state = fleet.jobs[lease.job]
        reason = f": {state.reason}" if state.reason else ""
        gpus = ",".join(map(str, lease.gpus))
        lines[lease.job] = f"{lease.job} {state.phase} on {lease.node} GPU {gpus}{reason}"
    return lines
