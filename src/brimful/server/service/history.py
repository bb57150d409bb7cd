"""The service's view of its store: the log, jobs that have left memory, and snapshots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from brimful.adapters.stores.past import PastJob
from brimful.adapters.stores.snapshot import KeepsSnapshots


class History(KeepsSnapshots, Protocol):
    def records(self, seq: int, limit: int) -> Sequence[dict[str, Any]]:
        """Up to `limit` events after the first `seq`, as written: seq, at_s, kind, version, body."""

    def past_job(self, name: str) -> PastJob | None: ...

    def past_jobs(
        self,
        *,
        before: int | None = None,
        after: int = -1,
        limit: int = 200,
        tenants: Collection[str] | None = None,
    ) -> Sequence[PastJob]:
        """Newest first, those submitted between the jobs with these serials."""

    def past_tenants(self, names: Collection[str]) -> dict[str, str]:
        """Job -> tenant, for those of these jobs that are past."""

    def snapshot_seq(self) -> int:
        """Jobs that left memory by this event are among the past ones."""
