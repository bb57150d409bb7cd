"""An audit of the server's own log: on request, and once a month for subscribers.

Read from the database, never from the loop's state, and in a separate process (`hindsight_worker.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from brimful.adapters.stores.notices import NotifyRule, NotifyStore, Queued
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import WorldFailed
from brimful.language import Number, Percent, say, told
from brimful.server.service import hindsight_worker
from brimful.server.service.hindsight_worker import Sweeper
from brimful.server.service.log_reader import LogReader
from brimful.server.service.reader import Reader

KIND = "audit"
LOOK_S = 60.0
TOP = 5  # jobs in a message
SMALL = 300  # events read in this process, in 10 ms: starting another costs more
MOST_KEPT = 50  # cached answers for pages


class Hindsight:
    """Where the GPU time in the log went."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._one_at_a_time, self._keeping = threading.Lock(), threading.Lock()
        self._here = Sweeper(lambda seq: reader.store.since(seq))  # noqa: PLW0108 - a schema has no store
        self.log_reader = LogReader(hindsight_worker.__name__)
        self._kept: dict[tuple[object, ...], tuple[int, dict[str, Any]]] = {}
        self._counting: set[tuple[object, ...]] = set()
        self.read = 0  # events read so far

    def now_s(self) -> int:
        return self._reader.now_s()

    def report(
        self, *, start_s: int, end_s: int, tenants: Collection[str] | None, user: str | None = None
    ) -> dict[str, Any]:
        """`tenants`: only what these held; None: everything that was paid for."""
        found: dict[str, Any] = self._ask(start_s, end_s, tenants, user=user)
        return found

    def csv(self, *, start_s: int, end_s: int, tenants: Collection[str] | None) -> str:
        found: str = self._ask(start_s, end_s, tenants, as_csv=True)
        return found

    def so_far(
        self, *, start_s: int, end_s: int, tenants: frozenset[str] | None
    ) -> tuple[dict[str, Any] | None, bool]:
        """The newest available report for such a window, and whether a newer one is being computed.

        For pages: never waits for a long log.
        """
        if self._is_small():
            return self.report(start_s=start_s, end_s=end_s, tenants=tenants), False
        key = (end_s - start_s, tenants)

        def count() -> None:
            try:
                found = self.report(start_s=start_s, end_s=end_s, tenants=tenants)
                with self._keeping:
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    self._kept[key] = (end_s, found)
            finally:
                with self._keeping:
                    self._counting.discard(key)

        with self._keeping:
            known_s, found = self._kept.get(key, (-1, None))
            if known_s < end_s and key not in self._counting:
                self._counting.add(key)
                threading.Thread(target=count, name="audit", daemon=True).start()
            return found, known_s < end_s

    def share_read(self) -> float:
        """Of the log, to show progress."""
        return min(1.0, self.read / max(1, self._reader.fleet.seq))

    def _is_small(self) -> bool:
        return self._reader.fleet.seq <= SMALL or not isinstance(self._reader.store, SqlStore)

    def _ask(
        self,
        start_s: int,
        end_s: int,
        tenants: Collection[str] | None,
        *,
        user: str | None = None,
        as_csv: bool = False,
    ) -> Any:  # noqa: ANN401 - JSON
        asked: dict[str, Any] = {"start_s": start_s, "end_s": end_s, "now_s": self.now_s(), "user": user}
        asked |= {"tenants": None if tenants is None else sorted(tenants), "as_csv": as_csv}
        with self._one_at_a_time:
            store = self._reader.store
            if self._is_small() or not isinstance(store, SqlStore):
                for _ in self._here.read():
                    pass
                return self._here.answer(asked)
            return self._from_process(store, asked)

    def _from_process(self, store: SqlStore, asked: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        for said in self.log_reader.ask(store, asked):
            if "data" in said:
                return said["data"]
            self.read = said["read"]
        raise WorldFailed(say("server.audit_failed"), code="audit_failed")

    def close(self) -> None:
        self.log_reader.close()


def last_month(now_s: int) -> tuple[int, int]:
    """The calendar month before this time, in UTC: its first second, and the first one after it."""
    this = datetime.fromtimestamp(now_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = (this - timedelta(days=1)).replace(day=1)
    return int(before.timestamp()), int(this.timestamp())


class Monthly:
    """Queues a message about the previous month for every rule that asks for it, once."""

    def __init__(self, hindsight: Hindsight, store: NotifyStore, clock: Callable[[], int]) -> None:
        self._hindsight, self._store, self._clock = hindsight, store, clock
        self._told_s: int | None = None  # the last month that was reported

    def round(self) -> None:
        start_s, end_s = last_month(self._clock())
        if self._told_s is None:
            self._told_s = self._store.month_told(first=end_s)
        if self._told_s >= end_s:
            return
        # A rule created after the month was over starts with the next one.
        rules = [r for r in self._store.rules() if KIND in r.kinds.split(",") and r.created_s < end_s]
        self._store.take_in_month([self._note(rule, start_s, end_s) for rule in rules], month_s=end_s)
        self._told_s = end_s

    def _note(self, rule: NotifyRule, start_s: int, end_s: int) -> Queued:
        tenants = None if rule.tenant == "*" else {rule.tenant}
        data = self._hindsight.report(start_s=start_s, end_s=end_s, tenants=tenants, user=rule.owner or None)
        facts = {
            "kind": KIND,
            "at_s": end_s,
            "tenant": rule.tenant,
            "user": rule.owner,
            "from": data["from"],
            "to": data["to"],
            "gpu_h": data["paid_gpu_h"],
            "usd": data["paid_usd"],
            "headline": data["headline"],
            "jobs": data["jobs"][:TOP],
        }
        note = f"{KIND}-{end_s}-{rule.rule}"
        return Queued(note=note, rule=rule.rule, body=json.dumps(facts), tries=0, next_s=end_s)


def month_said(facts: dict[str, Any]) -> tuple[str, str]:
    """Subject and text of an email about a month."""
    headline = facts["headline"]
    shares = {name: Percent(headline[name]["share"] or 0.0, 1) for name in ("kept", "wasted", "unknown")}
    whose, month = facts["user"] or facts["tenant"], facts["from"][:7]
    subject = told(say("server.audit_subject", whose=whose, month=month))
    lines = [
        told(say("server.audit_month", whose=whose, month=month, hours=Number(facts["gpu_h"], 1), **shares))
    ]
    for job in facts["jobs"]:
        hours = Number(job["wasted_gpu_h"], 1)
        lines.append("  " + told(say("server.audit_job", job=job["job"], hours=hours)))
    return " ".join(f"brimful: {subject}".split())[:200], "\n".join(lines) + "\n"
