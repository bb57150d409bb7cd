"""The event log as each may read it: everybody sees nodes, and the jobs of their tenant."""

from __future__ import annotations

from typing import Any

from brimful.errors import NotFound
from brimful.server.auth import Principal
from brimful.server.service import Service


def events_for(service: Service, who: Principal, *, after: int, limit: int) -> dict[str, Any]:
    """Up to `limit` events after that place, and where to go on; a place below zero is from the end."""
    place = max(0, service.fleet.seq + after) if after < 0 else after
    rows = service.records(place, limit)
    seen = [row for row in rows if _may_see(service, who, row["body"])]
    return {"events": seen, "next_after": rows[-1]["seq"] if rows else place}


def _may_see(service: Service, who: Principal, body: dict[str, Any]) -> bool:
    if who.only_tenant is None:
        return True
    job = body.get("job")
    if isinstance(job, dict):
        return who.sees(job["tenant"])
    name = job or str(body.get("lease", "")).rpartition(".")[0]
    if not name:
        return True
    try:
        return who.sees(service.job(name).job.tenant)
    except NotFound:
        return False
