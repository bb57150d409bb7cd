"""The event log as each caller may read it: everyone sees nodes, and the jobs of their tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from brimful.client.answers import EventAnswer, EventsAnswer
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader

OF_ALL_TENANTS = {"QueuesSet", "ReservedLent"}  # they name tenants


def events_for(reader: Reader, who: Principal, *, after: int, limit: int) -> EventsAnswer:
    """Up to `limit` events after this position, and where to continue; negative: counted from the end."""
    place = max(0, reader.fleet.seq + after) if after < 0 else after
    rows: list[EventAnswer] = [
        {"seq": row["seq"], "at_s": row["at_s"], "kind": row["kind"], "body": row["body"]}
        for row in reader.store.records(place, limit)
    ]
    visible = rows if who.sees_all else list(_visible(reader, who, rows))
    return {"events": visible, "next_after": rows[-1]["seq"] if rows else place}


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
