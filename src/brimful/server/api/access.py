"""Routes of tokens, users, the audit log and console sign-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from brimful.adapters.identity.store import Token, User
from brimful.client.answers import (
    AuditAnswer,
    NewTokenAnswer,
    ProofAnswer,
    TicketAnswer,
    TokenAnswer,
    TokensAnswer,
    UserAnswer,
    UsersAnswer,
    WhoAnswer,
    alike,
)
from brimful.server.api.answers import envelope
from brimful.server.api.cursors import Cursor, page_after, read_cursor
from brimful.server.api.errors import CHANGING, COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import WORD, NewToken, RoleRequest
from brimful.server.auth import TICKET_S, Access, Principal

UserName = Annotated[str, Path(max_length=100, pattern=WORD)]
TokenName = Annotated[str, Path(max_length=40, pattern=r"^[^\x00]+$")]


def add_access_routes(router: APIRouter, access: Access, gate: Gate) -> None:
    viewer, admin = gate.needs("viewer"), gate.needs("admin")

    @router.get("/whoami", response_model=envelope(WhoAnswer), responses=COMMON)
    async def whoami(who: Principal = viewer) -> Response:
        facts = alike(WhoAnswer, who)
        return ok({**facts, "roles": dict(who.roles)})

    @router.get("/users", response_model=envelope(UsersAnswer), responses=COMMON)
    def users(who: Principal = admin) -> Response:
        """Users of the teams you administer, with their roles there."""
        return ok({"users": [_user_view(user) for user in access.users(who)]})

    @router.post("/users/{user}", response_model=envelope(UserAnswer), responses=CHANGING)
    def set_role(user: UserName, body: RoleRequest, who: Principal = admin) -> Response:
        """Set a user's role in a team; null removes the user, and its tokens for the team stop working."""
        with gate.audited(who, "user.role", lambda: f"{user} {body.tenant} {body.role}"):
            return ok(_user_view(access.set_role(who, user, body.tenant, body.role)))

    @router.get("/proof", response_model=envelope(ProofAnswer), responses=COMMON)
    def proof(
        token: Annotated[str, Query(pattern=r"^[0-9a-f]{16}$")],
        nonce: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")],
    ) -> Response:
        """Proof that this server knows a token, for a client that has it and checks before sending it."""
        return ok({"proof": access.proof(token, nonce)})

    @router.get("/tokens", response_model=envelope(TokensAnswer), responses=COMMON)
    def tokens(who: Principal = admin) -> Response:
        return ok({"tokens": _token_views(access, access.tokens(who))})

    @router.post("/tokens", status_code=201, response_model=envelope(NewTokenAnswer), responses=CHANGING)
    def add(body: NewToken, who: Principal = admin) -> Response:
        with gate.audited(who, "token.add", lambda: f"{body.name} {body.tenant} {body.role}"):
            secret, token = access.issue_for(
                who,
                name=body.name,
                tenant=body.tenant,
                role=body.role,
                ttl_s=body.ttl_s,
                may_be_shorter="ttl_s" not in body.model_fields_set,  # shorten only the default lifetime
            )
        return ok({"token": _token_views(access, [token])[0], "secret": secret}, 201)

    @router.post("/tokens/{token}/revoke", response_model=envelope(TokenAnswer), responses=CHANGING)
    def revoke(token: TokenName, who: Principal = admin) -> Response:
        with gate.audited(who, "token.revoke", lambda: token):
            return ok(_token_views(access, [access.revoke(who, token)])[0])

    @router.post("/tickets", status_code=201, response_model=envelope(TicketAnswer), responses=CHANGING)
    def ticket(who: Principal = viewer) -> Response:
        """A one-time link that opens the console in a browser."""
        with gate.audited(who, "console.ticket", lambda: ""):
            path = f"/console/enter?ticket={access.ticket(who)}"
        return ok({"path": path, "expires_in_s": TICKET_S}, 201)

    @router.get("/audit", response_model=envelope(AuditAnswer), responses=COMMON)
    def audit(
        limit: Annotated[int, Query(ge=1, le=1000)] = 200, cursor: Cursor = None, who: Principal = admin
    ) -> Response:
        deeds = access.deeds(who, before=read_cursor(cursor), limit=limit)
        more = int(str(deeds[-1]["seq"])) if len(deeds) == limit else None
        return ok({"deeds": deeds, "next_cursor": page_after(more)})


def _token_views(access: Access, tokens: Sequence[Token]) -> list[TokenAnswer]:
    left = access.left_behind(tokens)
    return [{**alike(TokenAnswer, token), "has_left": token.token in left} for token in tokens]


def _user_view(user: User) -> UserAnswer:
    return {
        "user": user.user,
        "signs_in": user.identity is not None,
        "created_s": user.created_s,
        "roles": dict(user.roles),
    }
