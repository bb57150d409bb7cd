"""The web application: guard, API and console put together."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brimful import __version__
from brimful.errors import BadInput, BrimfulError, Refused
from brimful.server.api import add_error_handlers, make_router
from brimful.server.console.pages import make_console
from brimful.server.service import Service
from brimful.server.settings import LOOPBACK

MAX_BODY_BYTES = 1 << 20
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


def make_app(service: Service, token: str) -> ASGIApp:
    """The whole server as one ASGI application.

    Writing, and reading what jobs print, needs the token; looking at the rest does not, on loopback.
    """
    # The interactive docs pages load scripts from elsewhere; the schema itself is all anybody needs.
    app = FastAPI(
        title="brimful", version=__version__, openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None
    )
    app.include_router(make_router(service, _owner_with(token)))
    app.include_router(make_console(service), include_in_schema=False)
    add_error_handlers(app)
    return Guard(app)


def _owner_with(token: str) -> Callable[[Request], None]:
    def owner(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not secrets.compare_digest(given, token.encode()):
            raise Refused(
                "this needs the server's token, which only its owner can read",
                hint="run the command as the user who started the server, or set BRIMFUL_TOKEN",
                code="unauthorized",
            )

    return owner


class Guard:
    """Turns away what no honest client sends, before anything reads it.

    A web page the user visits can make the browser call loopback, under a name of its own (DNS
    rebinding) or with a large body; such a request names a host that is not loopback, or says its size.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        error = _objection(Headers(scope=scope))
        if error is not None:
            status = 413 if error.code == "too_large" else 403
            refusal = JSONResponse({"ok": False, "error": error.as_dict()}, status_code=status)
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, _limited(receive), send_guarded)


def _objection(headers: Headers) -> BrimfulError | None:
    host = re.sub(r":\d+$", "", headers.get("host", "")).strip("[]")
    if host not in LOOPBACK:
        return Refused(f"the host {host[:100]!r} is not this server", hint="use 127.0.0.1", code="wrong_host")
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        return BadInput(f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
    return None


def _limited(receive: Receive) -> Receive:
    """A body without a stated length is cut off at the limit as well."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes")
        return message

    return limited
