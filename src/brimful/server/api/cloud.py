"""Routes of cloud machines: what is for sale, what was bought, what would be bought."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from brimful.client.cloud_answers import CloudAnswer, CloudPlanAnswer, OffersAnswer, ProvidersAnswer
from brimful.server.api.answers import envelope
from brimful.server.api.errors import COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import Submission
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.views.cloud import check_view, cloud_view, offers_view, plan_view


def add_cloud_routes(router: APIRouter, reader: Reader, gate: Gate) -> None:
    viewer, operator = gate.needs("viewer"), gate.needs("operator")

    @router.get("/cloud", response_model=envelope(CloudAnswer), responses=COMMON)
    def cloud(who: Principal = operator) -> Response:
        """The machines that were bought, what they cost, and the operator's spending caps."""
        del who
        return ok(cloud_view(reader))

    @router.get("/cloud/offers", response_model=envelope(OffersAnswer), responses=COMMON)
    def offers(who: Principal = viewer) -> Response:
        """What providers sell: available offers first, cheapest per GPU first."""
        del who
        return ok({"offers": offers_view(reader)})

    @router.get("/cloud/check", response_model=envelope(ProvidersAnswer), responses=COMMON)
    def check(who: Principal = operator) -> Response:
        """Each provider, and what is wrong with it. Contacts every machine it lists."""
        del who
        return ok({"providers": list(check_view(reader))})

    @router.post("/cloud/plan", response_model=envelope(CloudPlanAnswer), responses=COMMON)
    def plan(job: Submission, who: Principal = viewer) -> Response:
        """What would be bought for this job, when it would finish, and how likely. Buys nothing."""
        return ok(plan_view(reader, job.as_job(who, "")))
