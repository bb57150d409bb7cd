"""All routes under /v1."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from brimful import __version__
from brimful.client.answers import HealthAnswer
from brimful.language import told
from brimful.server.api.access import add_access_routes
from brimful.server.api.answers import envelope
from brimful.server.api.check import add_check_route
from brimful.server.api.cloud import add_cloud_routes
from brimful.server.api.code import add_code_routes
from brimful.server.api.errors import ok
from brimful.server.api.fit import add_fit_route
from brimful.server.api.fleet import add_fleet_routes
from brimful.server.api.gate import Gate
from brimful.server.api.hindsight import add_hindsight_routes
from brimful.server.api.jobs import add_job_routes
from brimful.server.api.market import add_market_routes
from brimful.server.api.notifications import add_notification_routes
from brimful.server.api.policy import add_policy_routes
from brimful.server.api.reservations import add_reservation_routes
from brimful.server.api.stream import add_stream_routes
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Access
from brimful.server.fitting.fitter import Fitter
from brimful.server.service.service import Service

UNWELL = {503: {"model": envelope(HealthAnswer), "description": "the scheduler cannot go on"}}


def make_router(service: Service, access: Access, fitter: Fitter, *, open_fit: bool = False) -> APIRouter:
    reader, submissions, code = service.reader, service.submissions, service.code
    router = APIRouter(prefix="/v1")
    gate = Gate(access)

    # Public, so they reveal no path, address or name.
    @router.get("/health", response_model=envelope(HealthAnswer))
    async def health() -> Response:
        """This process answers."""
        return ok({"version": __version__, "healthy": True, "reason": None, "reason_code": None})

    @router.get("/ready", response_model=envelope(HealthAnswer), responses=UNWELL)  # type: ignore[arg-type]
    async def ready() -> Response:
        """The scheduler is running, and its database answers."""
        trouble = reader.health.open_trouble()
        why = (told(trouble), trouble.as_dict()["code"]) if trouble else (None, None)
        found = {"version": __version__, "healthy": not trouble, "reason": why[0], "reason_code": why[1]}
        return ok(found, 503 if trouble else 200)

    add_check_route(router, reader, submissions, fitter, service.forecaster, gate=gate)
    add_job_routes(router, reader, submissions, gate, code)
    if code is not None:
        add_code_routes(router, code, gate)
    verbs = Verbs(reader, submissions, gate, code)
    add_fleet_routes(router, reader, verbs, gate)
    add_market_routes(router, reader, verbs, gate)
    add_cloud_routes(router, reader, gate)
    add_reservation_routes(router, reader, submissions, gate)
    add_access_routes(router, access, gate)
    if service.notifier is not None:
        add_notification_routes(router, service.notifier, gate)
    add_hindsight_routes(router, service.hindsight, gate)
    if service.rehearser is not None:
        add_policy_routes(router, reader, service.rehearser, gate)
    add_fit_route(router, fitter, gate, open_to_all=open_fit)
    add_stream_routes(router, reader, access, gate)
    return router
