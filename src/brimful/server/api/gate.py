"""Who may use a route: found once for each request, before anything else."""

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

_bearer = HTTPBearer(auto_error=False, description="a token, as `brimful admin tokens add` gives it")


def cookie_name(request: HTTPConnection) -> str:
    """Browsers tell cookies of one host apart by name only, not by port: two servers must not share one."""
    return f"brimful_{request.url.port or 'session'}"


def shown_by(request: HTTPConnection) -> tuple[str, Kind]:
    """What it shows to come in, however that is written: a bearer token, else a session's cookie."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (text := given.strip()):
        return text, "token"
    return request.cookies.get(cookie_name(request), ""), "session"


async def principal_of(access: Access, request: Request) -> Principal | None:
    """By a bearer token; or, where nothing is changed, by a browser's session, and only as its cookie."""
    text, kind = shown_by(request)
    if kind == "session" and request.method not in ("GET", "HEAD"):
        return None
    who, fresh = access.known(text, kind)
    return who if fresh else await run_in_threadpool(access.look_up, text, kind)


def asker_of(request: Request, who: Principal | None = None) -> str:
    """Whose question this is, where one must not keep others waiting: a person, else an address."""
    who = who or getattr(request.state, "who", None)
    return who.name if who else (request.client.host if request.client else "?")


class Gate:
    """Makes the dependencies that let a role in, and notes what was done."""

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
            request.state.who = who
            return who

        needed.role = role  # type: ignore[attr-defined]  # for the reference page
        return Depends(needed)

    @contextmanager
    def audited(self, who: Principal, verb: str, target: Callable[[], str]) -> Iterator[None]:
        """A line in the audit log, however it ends."""
        try:
            yield
        except BrimfulError as error:
            self._access.note(who, verb, target(), error.code)
            raise
        self._access.note(who, verb, target(), "ok")
