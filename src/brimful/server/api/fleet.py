"""Routes of the fleet: nodes, queues, money, events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import Response

from brimful.client.answers import (
    AttentionsAnswer,
    DrainAnswer,
    EventsAnswer,
    FleetAnswer,
    SpendAnswer,
)
from brimful.client.queue_answers import QueuesAnswer, QueuesCheckAnswer
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import Hold, QueuesRequest
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.views.attention import attention_view
from brimful.server.views.events import events_for
from brimful.server.views.fleet import drain_view, fleet_view, queue_checks, queues_view, sites_view
from brimful.server.views.money import budgets_view, spend_view

NodeName = Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$")]


def add_fleet_routes(router: APIRouter, reader: Reader, verbs: Verbs, gate: Gate) -> None:
    viewer, operator = gate.needs("viewer"), gate.needs("operator")

    @router.get("/fleet", response_model=envelope(FleetAnswer), responses=COMMON)
    async def fleet(who: Principal = viewer) -> Response:
        return ok(fleet_view(reader, who))

    @router.post("/nodes/{node}/drain", response_model=envelope(DrainAnswer), responses=CHANGING)
    def drain(
        node: NodeName, body: Annotated[Hold | None, Body()] = None, who: Principal = operator
    ) -> Response:
        verbs.drain(who, node, body.reason if body else "")
        return ok(drain_view(reader, node))

    @router.post("/nodes/{node}/resume", response_model=envelope(DrainAnswer), responses=CHANGING)
    def resume(node: NodeName, who: Principal = operator) -> Response:
        verbs.resume(who, node)
        return ok(drain_view(reader, node))

    @router.get("/attention", response_model=envelope(AttentionsAnswer), responses=COMMON)
    def attention(who: Principal = viewer) -> Response:
        """What needs attention, most urgent first."""
        sites, budgets = sites_view(reader, who), budgets_view(reader, who)
        return ok({"attention": attention_view(reader, who, sites=sites, budgets=budgets)})

    @router.get("/queues", response_model=envelope(QueuesAnswer), responses=COMMON)
    async def queues(who: Principal = viewer) -> Response:
        return ok({"queues": queues_view(reader, who)})

    @router.put("/queues", response_model=envelope(QueuesAnswer), responses=CHANGING)
    def set_queues(body: QueuesRequest, who: Principal = operator) -> Response:
        """Replace all queues with their quotas and limits; queues left out have none."""
        verbs.set_queues(who, body.as_quotas())
        return ok({"queues": queues_view(reader, who)})

    @router.post("/queues/check", response_model=envelope(QueuesCheckAnswer), responses=COMMON)
    def check_queues(body: QueuesRequest, who: Principal = operator) -> Response:  # noqa: ARG001
        """What `PUT /v1/queues` would refuse, and which settings would have no effect. Changes nothing."""
        return ok({"queues": queue_checks(reader, body.as_quotas())})

    @router.get("/spend", response_model=envelope(SpendAnswer), responses=COMMON)
    async def spend(who: Principal = viewer) -> Response:
        return ok(spend_view(reader, who))

    @router.get("/events", response_model=envelope(EventsAnswer), responses=COMMON)
    def events(
        after: Annotated[
            int, Query(ge=-1_000_000, le=1 << 60, description="negative: counted from the end")
        ] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        who: Principal = viewer,
    ) -> Response:
        return ok(events_for(reader, who, after=after, limit=limit))
