"""A page for a user's own tokens: created and revoked by a form, shown once.

Only where the browser's cookie is limited to TLS: otherwise it is sent to every port of the host, and a
session that could create tokens would be worth stealing. Only for users who signed in with the organisation's
account: others have a token. Operator tokens are never created here.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from brimful.errors import BrimfulError
from brimful.language import words
from brimful.server.api.gate import cookie_name
from brimful.server.auth import EVERYBODY, ROLES, Access, Principal
from brimful.server.console.pages import Pages, signed_form
from brimful.units import integer_from_text

MOST_DAYS = 90


def add_own_tokens(router: APIRouter, access: Access, pages: Pages) -> None:
    async def page(request: Request, who: Principal, *, secret: str = "", problem: str = "") -> Response:
        tokens = await run_in_threadpool(access.tokens_of, who)
        choices = [
            (tenant, role)
            for tenant, mine in sorted(who.roles.items())
            if tenant != EVERYBODY
            for role in ROLES[: min(ROLES.index(mine), ROLES.index("admin")) + 1]
        ]
        answer = pages.answer(
            request,
            "tokens.html",
            who=who,
            tokens=tokens,
            choices=choices,
            url=str(request.base_url).rstrip("/"),
            secret=secret,
            problem=problem,
        )
        answer.headers["cache-control"] = "no-store"
        return answer

    @router.get("/console/tokens")
    async def tokens(request: Request) -> Response:
        who = await run_in_threadpool(
            access.look_up, request.cookies.get(cookie_name(request), ""), "session"
        )
        return pages.sign_in(request) if who is None else await page(request, who)

    @router.post("/console/tokens")
    async def add(request: Request) -> Response:
        who, form = await signed_form(access, request)
        role, _, tenant = form.get("what", "").partition(" of ")
        days = integer_from_text(form.get("days", ""), low=1, high=MOST_DAYS)
        try:
            if days is None:
                return await page(request, who, problem=words("server.bad_days", most=MOST_DAYS))
            secret = await run_in_threadpool(access.issue_own, who, tenant, role, days * 86400)
        except BrimfulError as error:
            return await page(request, who, problem=error.problem)
        access.note(who, "token.add", f"{who.name} {tenant} {role}", "ok")
        return await page(request, who, secret=secret)

    @router.post("/console/tokens/revoke")
    async def revoke(request: Request) -> Response:
        who, form = await signed_form(access, request)
        try:
            await run_in_threadpool(access.revoke_own, who, form.get("token", ""))
        except BrimfulError as error:
            return await page(request, who, problem=error.problem)
        access.note(who, "token.revoke", form.get("token", "")[:40], "ok")
        return await page(request, who)
