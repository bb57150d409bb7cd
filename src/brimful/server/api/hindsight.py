"""Routes of the audit: where GPU time went, as JSON and as CSV."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query
from fastapi.responses import Response

from brimful.audit.readers.slurm import LAST_S
from brimful.client.answers import UsageAuditAnswer
from brimful.errors import BadInput
from brimful.language import say
from brimful.server.api.answers import envelope
from brimful.server.api.errors import COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.auth import Principal
from brimful.server.service.hindsight import Hindsight

USUAL_S = 30 * 86400
MOST_S = 366 * 86400
THREADS = 2  # one asks the process that reads the log, the next waits for it: seconds each of a long log
Moment = Annotated[int | None, Query(ge=0, lt=LAST_S, description="UTC second")]
CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {}}, "description": "leaf x team x type x day"}
}


def add_hindsight_routes(router: APIRouter, hindsight: Hindsight, gate: Gate) -> None:
    viewer, threads = gate.needs("viewer"), CapacityLimiter(THREADS)

    def window(from_s: int | None, to_s: int | None) -> tuple[int, int]:
        end_s = hindsight.now_s() if to_s is None else to_s
        start_s = max(0, end_s - USUAL_S) if from_s is None else from_s
        if not 0 < end_s - start_s <= MOST_S:
            raise BadInput(say("server.bad_audit_window", days=MOST_S // 86400))
        return start_s, end_s

    @router.get("/audit/usage", response_model=envelope(UsageAuditAnswer), responses=COMMON)
    async def usage(from_s: Moment = None, to_s: Moment = None, who: Principal = viewer) -> Response:
        """Where paid GPU time went, by default in the last 30 days. A tenant sees what it held itself."""
        start_s, end_s = window(from_s, to_s)

        def found() -> Response:
            return ok(hindsight.report(start_s=start_s, end_s=end_s, tenants=who.tenants()))

        return await to_thread.run_sync(found, limiter=threads)

    @router.get("/audit/usage.csv", response_class=Response, responses={**COMMON, **CSV})
    async def usage_csv(from_s: Moment = None, to_s: Moment = None, who: Principal = viewer) -> Response:
        """Leaf x team x type x day, in GPU-seconds and micro-dollars."""
        start_s, end_s = window(from_s, to_s)

        def found() -> str:
            return hindsight.csv(start_s=start_s, end_s=end_s, tenants=who.tenants())

        return Response(await to_thread.run_sync(found, limiter=threads), media_type="text/csv")
