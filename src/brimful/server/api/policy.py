"""Routes of the policy: which one is active, what others would have done, and adopting one."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from brimful.client.policy_answers import PolicyAnswer
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import AdoptRequest, RehearsalRequest
from brimful.server.auth import Principal
from brimful.server.rehearsing.rehearser import Rehearser
from brimful.server.service.reader import Reader
from brimful.server.views.policy import policy_view


def add_policy_routes(router: APIRouter, reader: Reader, rehearser: Rehearser, gate: Gate) -> None:
    operator = gate.needs("operator")

    @router.get("/policy", response_model=envelope(PolicyAnswer), responses=CHANGING)
    def policy(who: Principal = operator) -> Response:  # noqa: ARG001 - only checks the role
        """The active policy, and what the latest rehearsal of the server's own past showed."""
        return ok(policy_view(reader, rehearser))

    @router.post("/policy/rehearse", response_model=envelope(PolicyAnswer), responses=CHANGING)
    def rehearse(body: RehearsalRequest, who: Principal = operator) -> Response:
        """Start to rehearse the last days in the background; `GET /v1/policy` has the result."""
        with gate.audited(who, "policy.rehearse", lambda: f"{body.days} {' '.join(body.policies)}"):
            rehearser.ask(days=body.days, policies=body.policies, sizes=body.nodes)
        return ok(policy_view(reader, rehearser))

    @router.post("/policy/adopt", response_model=envelope(PolicyAnswer), responses=CHANGING)
    def adopt(body: AdoptRequest, who: Principal = operator) -> Response:
        """Make this policy the active one."""
        with gate.audited(who, "policy.adopt", lambda: body.policy):
            rehearser.adopt(body.policy, by=who.name)
        return ok(policy_view(reader, rehearser))
