"""Sign-in with the organisation's account: to the provider, and back with a session."""

from __future__ import annotations

import secrets

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from brimful.adapters.identity.oidc import Begun, Oidc
from brimful.errors import BrimfulError
from brimful.language import words
from brimful.server.api.gate import cookie_name
from brimful.server.auth import SIGN_IN_S, Access
from brimful.server.console.pages import Pages

BEGUN_S = 600
THREADS = 4  # that wait for the provider: anybody may begin, and those who answer users are few


def add_sign_in(router: APIRouter, access: Access, pages: Pages, oidc: Oidc, *, secure: bool) -> None:
    threads = CapacityLimiter(THREADS)

    def back_to(request: Request) -> str:
        # The host is one of ours: the middleware has rejected others.
        return f"{'https' if secure else 'http'}://{request.url.netloc}/console/sign-in"

    def begun_name(request: Request) -> str:
        return f"{cookie_name(request)}_sign_in"

    def failed(request: Request, problem: str) -> Response:
        answer = pages.sign_in(request, problem)
        answer.delete_cookie(begun_name(request), path="/console/sign-in")
        return answer

    @router.get("/console/sign-in/begin")
    async def begin(request: Request) -> Response:
        begun = Begun.new()
        try:
            there = await to_thread.run_sync(
                lambda: oidc.begin(begun, back=back_to(request)), limiter=threads
            )
        except BrimfulError as error:
            return failed(request, error.problem)
        answer = RedirectResponse(there, status_code=303, headers={"cache-control": "no-store"})
        # Lax: it must be sent when the provider redirects the browser back.
        answer.set_cookie(
            begun_name(request),
            begun.as_text(),
            max_age=BEGUN_S,
            path="/console/sign-in",
            httponly=True,
            samesite="lax",
            secure=secure,
        )
        return answer

    @router.get("/console/sign-in")
    async def back(request: Request, code: str = "", state: str = "") -> Response:
        begun = Begun.from_text(request.cookies.get(begun_name(request), ""))
        if begun is None or not code or not secrets.compare_digest(state.encode(), begun.state.encode()):
            return failed(request, words("server.sign_in_not_begun"))

        def signed_in() -> tuple[str, str]:
            person = oidc.finish(begun, code=code, back=back_to(request))
            session = access.sign_in(person.identity, person.name, person.roles)
            return person.name, session

        try:
            name, session = await to_thread.run_sync(signed_in, limiter=threads)
        except BrimfulError as error:
            return failed(request, error.problem)
        # Not a redirect: coming from another site, a browser would not send our cookie with the next request.
        answer = pages.answer(request, "signed_in.html", person=name)
        answer.headers["cache-control"] = "no-store"
        answer.set_cookie(
            cookie_name(request), session, max_age=SIGN_IN_S, httponly=True, samesite="strict", secure=secure
        )
        answer.delete_cookie(begun_name(request), path="/console/sign-in")
        return answer
