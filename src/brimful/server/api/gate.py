"""Who may use a route: determined once per request, before anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from brimful.errors import BrimfulError
from brimful.server.auth import Access, Kind, Principal, forbidden, unauthorized

_bearer = HTTPBearer(auto_error=False, description="a token from `brimful admin tokens add`")


def cookie_name(request: HTTPConnection) -> str:
    """Browsers separate cookies of one host by name, not by port: two servers must not share a name."""
    return f"brimful_{request.url.port or 'session'}"


def shown_by(request: HTTPConnection) -> tuple[str, Kind]:
    """The credential it sends: a bearer token, otherwise a session cookie."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (text := given.strip()):
        return text, "token"
    return request.cookies.get(cookie_name(request), ""), "session"


async def principal_of(access: Access, request: Request) -> Principal | None:
    """From a bearer token; for GET and HEAD also from a browser's session cookie."""
    text, kind = shown_by(request)
    if kind == "session" and request.method not in ("GET", "HEAD"):
        return None
    who, fresh = access.known(text, kind)
    if not fresh:
        who = await run_in_threadpool(access.look_up, text, kind)
    if who is not None:
        request.state.who = who  # also tells the connection that it is a user's
    return who


def asker_of(request: Request, who: Principal | None = None) -> str:
    """Who to count this request for where one client must not block others: a user, otherwise an address."""
    who = who or getattr(request.state, "who", None)
    return who.name if who else (request.client.host if request.client else "?")


class Gate:
    """Makes the dependencies that check roles, and writes the audit log."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def needs(self, role: str) -> Any:  # noqa: ANN401 - FastAPI's own type
        async def needed(
            request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
        ) -> Principal:
            who = await principal_of(self._access, request)
            if who is None:
                raise unauthorized()
            if not who.may(role):
                self._access.note(who, f"{request.method} denied", request.url.path, "forbidden")
                raise forbidden(who, role)
            return who

        needed.role = role  # type: ignore[attr-defined]  # for the reference page
        return Depends(needed)

    @contextmanager
    def audited(self, who: Principal, verb: str, target: Callable[[], str]) -> Iterator[None]:
        """A line in the audit log, whatever the outcome."""
        try:
            yield
        except BrimfulError as error:
            self._access.note(who, verb, target(), error.code)
            raise
        self._access.note(who, verb, target(), "ok")
