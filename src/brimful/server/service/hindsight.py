"""An audit of the server's own log: for whoever asks, and once a month for whoever wants to be told.

Read from the database, never from the loop's state, and one at a time: a long log costs seconds of CPU. What
was read once is kept, so that the next one who asks reads only what came after.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from brimful.adapters.stores.notices import NotifyRule, NotifyStore, Queued
from brimful.audit.readers.own import OwnLog
from brimful.audit.records import Records
from brimful.audit.report import as_csv, report
from brimful.audit.sweep import Swept, sweep
from brimful.audit.tree import Tree
from brimful.language import Number, Percent, say, told
from brimful.server.service.reader import Reader

KIND = "audit"
LOOK_S = 60.0
TOP = 5  # jobs in a message


class Hindsight:
    """What became of the GPU time that the log tells of."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._one_at_a_time = threading.Lock()
        self._log, self._seq = OwnLog(Records()), 0
        self._last: tuple[tuple[int, int, int], tuple[Records, Swept]] | None = None

    def now_s(self) -> int:
        return self._reader.now_s()

    def report(
        self, *, start_s: int, end_s: int, tenants: Collection[str] | None, user: str | None = None
    ) -> dict[str, Any]:
        """`tenants`: only what these held; None: everything that was paid for."""
        return report(*_only(*self._swept(start_s, end_s), tenants=tenants, user=user))

    def csv(self, *, start_s: int, end_s: int, tenants: Collection[str] | None) -> str:
        return as_csv(_only(*self._swept(start_s, end_s), tenants=tenants, user=None)[1].tree)

    def _swept(self, start_s: int, end_s: int) -> tuple[Records, Swept]:
        with self._one_at_a_time:
            # A window that is over stays as it is; one that reaches until now changes with every event.
            seq = self._reader.fleet.seq if end_s >= self.now_s() else 0
            if self._last is None or self._last[0] != (start_s, end_s, seq):
                while more := self._reader.store.since(self._seq):
                    self._log.add(more)
                    self._seq += len(more)
                records = self._log.until(self.now_s())
                self._last = ((start_s, end_s, seq), (records, sweep(records, start_s=start_s, end_s=end_s)))
            return self._last[1]


def _only(
    records: Records, found: Swept, *, tenants: Collection[str] | None, user: str | None
) -> tuple[Records, Swept]:
    """What these tenants held, or one of their users."""
    if tenants is None and user is None:
        return records, found
    runs = [r for r in records.runs if (tenants is None or r.team in tenants) and user in (None, r.user)]
    if user is not None:
        mine = replace(records, runs=runs)
        swept = sweep(replace(mine, waits=[]), start_s=found.start_s, end_s=found.end_s)
        return mine, replace(swept, tree=_held(swept.tree, tenants), demand={}, left_out=Counter())
    tree = _held(found.tree, tenants)
    return replace(records, runs=runs), replace(found, tree=tree, demand={}, left_out=Counter())


def _held(tree: Tree, tenants: Collection[str] | None) -> Tree:
    cells = {
        c: n
        for c, n in tree.cells.items()
        if c.leaf.startswith("allocated.") and (tenants is None or c.team in tenants)
    }
    return Tree(cells, tree.lots, {cell: tree.money[cell] for cell in cells if cell in tree.money})


def last_month(now_s: int) -> tuple[int, int]:
    """The calendar month before this moment, in UTC: its first second, and the first one after it."""
    this = datetime.fromtimestamp(now_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = (this - timedelta(days=1)).replace(day=1)
    return int(before.timestamp()), int(this.timestamp())


class Monthly:
    """Queues a message about the month before for every rule that asks for it, once."""

    def __init__(self, hindsight: Hindsight, store: NotifyStore, clock: Callable[[], int]) -> None:
        self._hindsight, self._store, self._clock = hindsight, store, clock
        self._told_s: int | None = None  # up to which month everybody was told

    def round(self) -> None:
        start_s, end_s = last_month(self._clock())
        if self._told_s is None:
            self._told_s = self._store.month_told(first=end_s)
        if self._told_s >= end_s:
            return
        # Who asked after the month was over is told of the next one.
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
    """Subject and text of a mail about a month."""
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
