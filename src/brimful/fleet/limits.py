"""When leases reach their job's budget or longest run, earliest first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from brimful.fleet.lease import JobState, Lease, limit_s


class Limits:
    """The running leases whose job has a limit."""

    def __init__(self) -> None:
        self._due: list[tuple[int, str]] = []
        self._of: dict[str, int] = {}

    def has(self, lease: str) -> bool:
        """Whether it runs and will reach its job's budget or longest run."""
        return lease in self._of

    def is_due(self, now_s: int) -> bool:
        return bool(self._due) and self._due[0][0] <= now_s

    def due(self, now_s: int) -> Iterator[str]:
        """Leases whose job has used up its budget or its longest run by now."""
        for due_s, name in self._due:
            if due_s > now_s:
                return
            yield name

    def next_s(self, now_s: int) -> int | None:
        """When the next lease reaches a limit."""
        if not self._due:
            return None
        at = bisect_left(self._due, (now_s + 1, ""))
        return self._due[at][0] if at < len(self._due) else None

    def find(self, state: JobState, lease: Lease) -> None:
        """Record when it reaches its job's budget or longest run; repeated when the price changes."""
        if state.job.budget_microusd is None and state.job.max_run_s is None:
            return
        self.forget(lease)
        due_s = limit_s(state, lease)
        if due_s is not None and lease.phase in ("granted", "running"):
            self._of[lease.lease] = due_s
            insort(self._due, (due_s, lease.lease))

    def forget(self, lease: Lease) -> None:
        due_s = self._of.pop(lease.lease, None)
        if due_s is not None:
            del self._due[bisect_left(self._due, (due_s, lease.lease))]
