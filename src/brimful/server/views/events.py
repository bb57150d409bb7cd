"""The event log as each caller may read it: everyone sees nodes, and the jobs of their tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from brimful.client.answers import EventAnswer, EventsAnswer
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader

OF_ALL_TENANTS = {"QueuesSet", "ReservedLent"}  # they name tenants


BLOCK = 500  # events read at a time
MOST_LOOKED_AT = 20_000  # events a request may read for somebody who sees few of them


def events_for(reader: Reader, who: Principal, *, after: int, limit: int) -> EventsAnswer:
    """Up to `limit` events after this position, and where to continue; negative: counted from the end.

    Events that the caller may not see do not count.
    """
    if who.sees_all:
        place = max(0, reader.fleet.seq + after) if after < 0 else after
        rows = _rows(reader, place, limit)
        return {"events": rows, "next_after": rows[-1]["seq"] if rows else place}
    place = _begin_of_last(reader, who, -after) if after < 0 else after
    seen: list[EventAnswer] = []
    for _ in range(MOST_LOOKED_AT // BLOCK):
        rows = _rows(reader, place, BLOCK)
        for row in _visible(reader, who, rows):
            seen.append(row)
            if len(seen) == limit:
                return {"events": seen, "next_after": row["seq"]}
        if not rows:
            break
        place = rows[-1]["seq"]
    return {"events": seen, "next_after": place}


def _begin_of_last(reader: Reader, who: Principal, wanted: int) -> int:
    """Where the newest events that they may see begin."""
    end = place = reader.fleet.seq
    seen = 0
    while place > 0 and end - place < MOST_LOOKED_AT:
        start = max(0, place - BLOCK)
        for row in reversed([*_visible(reader, who, _rows(reader, start, place - start))]):
            seen += 1
            if seen == wanted:
                return int(row["seq"]) - 1
        place = start
    return place


def _rows(reader: Reader, after: int, limit: int) -> list[EventAnswer]:
    return [
        {"seq": row["seq"], "at_s": row["at_s"], "kind": row["kind"], "body": row["body"]}
        for row in reader.store.records(after, limit)
    ]


def _visible(reader: Reader, who: Principal, rows: Sequence[EventAnswer]) -> Iterator[EventAnswer]:
    tenants = reader.tenants_of({name for row in rows if (name := _job_of(row["body"]))})
    for row in rows:
        job, name = row["body"].get("job"), _job_of(row["body"])
        tenant = job["tenant"] if isinstance(job, dict) else tenants.get(name, row["body"].get("tenant"))
        reserved = row["body"].get("reservation")
        if tenant is None and reserved and (found := reader.fleet.reservations.find(reserved)) is not None:
            tenant = found.tenant
        is_anybodys = not (name or reserved or tenant) and row["kind"] not in OF_ALL_TENANTS
        if is_anybodys or (tenant is not None and who.sees(tenant)):
            yield row


def _job_of(body: dict[str, Any]) -> str:
    """The event's job; empty if it has none."""
    job = body.get("job")
    if isinstance(job, dict):
        return str(job["job"])
    return job or str(body.get("lease", "")).rpartition(".")[0]
