"""The web application: guard, API and console put together."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection

import anyio
from fastapi import APIRouter, FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brimful import __version__
from brimful.adapters.code import MAX_PACKED_BYTES
from brimful.adapters.identity.oidc import Oidc
from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput, BrimfulError, Refused
from brimful.language import LANGUAGES, Number, Quoted, choose, say
from brimful.server.api.errors import add_error_handlers, failed, status_of
from brimful.server.api.gate import Gate, shown_by
from brimful.server.api.reservations import ReserveVerbs
from brimful.server.api.router import make_router
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Access
from brimful.server.console.actions import add_actions
from brimful.server.console.fit_page import add_fit_page
from brimful.server.console.job_routes import add_job_page
from brimful.server.console.jobs_page import add_jobs_page
from brimful.server.console.kept_shares import KeptShares
from brimful.server.console.operate_page import Operate, add_operate_page
from brimful.server.console.overview import Overview, add_overview
from brimful.server.console.own_tokens import add_own_tokens
from brimful.server.console.pages import Pages, chosen_language, make_console
from brimful.server.console.reserve_forms import add_reserve_forms
from brimful.server.console.sign_in import add_sign_in
from brimful.server.console.submit_page import Submit, add_submit_page
from brimful.server.fitting.fitter import Fitter
from brimful.server.metrics import Metrics, make_metrics
from brimful.server.service.service import Service
from brimful.units import integer_from_text

log = logging.getLogger("brimful.http")

MAX_BODY_BYTES = 1 << 20
MAX_AT_ONCE = 24  # requests per token, since all share the answering threads. Streams have a separate limit
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
UNKNOWN = b"Bearer brim_0000000000000000_" + b"0" * 43  # a token of the right form that nobody has
HSTS = {"strict-transport-security": "max-age=31536000"}


def make_app(
    service: Service,
    access: Access,
    *,
    hosts: Collection[str] = LOOPBACK,
    secure: bool = False,
    oidc: Oidc | None = None,
    open_fit: bool = False,
) -> Middleware:
    """The whole server as one ASGI application, answering to these host names; `secure`: served over TLS.

    `open_fit`: Fit answers anyone, without a token.
    """
    # The interactive docs pages load scripts from other hosts; the schema itself is enough.
    app = FastAPI(
        title="brimful", version=__version__, openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None
    )
    reader = service.reader
    metrics, fitter = Metrics(reader, service.notifier), Fitter()
    app.include_router(make_router(service, access, fitter, open_fit=open_fit))
    app.include_router(make_metrics(metrics, access), include_in_schema=False)
    pages = Pages(reader, provider=oidc.provider if oidc else "", secure=secure)
    ways = APIRouter()
    if oidc is not None:
        add_sign_in(ways, access, pages, oidc, secure=secure)
    if secure:
        add_own_tokens(ways, access, pages)
    verbs = Verbs(reader, service.submissions, Gate(access), service.code)
    add_jobs_page(ways, access, pages, reader, verbs)
    add_job_page(ways, access, pages, reader, verbs, fitter=fitter, forecaster=service.forecaster)
    add_actions(ways, access, pages, reader, verbs)
    overview = Overview(reader, service.hindsight, service.rehearser, Gate(access))
    add_overview(ways, access, pages, overview, verbs)
    add_reserve_forms(
        ways, access, pages, overview.market, ReserveVerbs(reader, service.submissions, Gate(access))
    )
    operate = Operate(reader, access, verbs, service.rehearser, secure=secure)
    add_operate_page(ways, access, pages, operate)
    submit = Submit(reader, access, verbs, fitter, service.forecaster, secure=secure)
    add_submit_page(ways, access, pages, submit)
    add_fit_page(ways, access, pages, fitter, open_to_all=open_fit)
    app.include_router(ways, include_in_schema=False)
    app.include_router(
        make_console(pages, reader, access, kept=KeptShares(service.hindsight), secure=secure),
        include_in_schema=False,
    )
    add_error_handlers(app)
    headers = HEADERS | (HSTS if secure else {})

    def warm_up() -> None:
        pages.warm_up()
        access.warm_up()
        anyio.run(_ask_once, app)

    return Middleware(app, metrics, hosts=hosts, headers=headers, warm_up=warm_up)


async def _ask_once(app: ASGIApp) -> None:
    """A request of nobody's: FastAPI prepares all routes at the first one it gets, which takes 0.2 s.

    The console's router is the last, so that every router is asked.
    """

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Message) -> None:
        pass

    names: dict[str, object] = {
        "method": "GET",
        "path": "/console/live",
        "scheme": "http",
        "http_version": "1.1",
    }
    lists: dict[str, object] = {
        "headers": [(b"authorization", UNKNOWN)],
        "query_string": b"",
        "root_path": "",
    }
    await app({"type": "http", **names, **lists}, receive, send)


class Middleware:
    """Rejects what no honest client sends, before anything reads it; counts and names every request.

    A web page that the user visits can make the browser call loopback, under the page's own host name (DNS
    rebinding) or with a large body; such a request names a host that is not ours, or declares its size.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        hosts: Collection[str],
        headers: dict[str, str],
        warm_up: Callable[[], None],
    ) -> None:
        """`warm_up`: what the server does once it is up, so that nobody's first page is slow."""
        self.warm_up = warm_up
        self._app, self._metrics, self._hosts = app, metrics, frozenset(hosts)
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._under_way: Counter[str] = Counter()  # requests by their credential

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, request_id, status = time.perf_counter(), secrets.token_hex(8), 500

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Appended: the framework sets none of our headers.
                message["headers"] = [
                    *message.get("headers", ()),
                    *self._headers,
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            headers = Headers(scope=scope)
            choose(_asked_language(chosen_language(headers) or headers.get("accept-language", "")))
            most = _most_bytes(scope)
            error = self._refusal(headers, most)
            if error is not None:
                await failed(status_of(error), error)(scope, receive, send_marked)
            elif scope["path"].endswith("/stream"):
                await self._app(scope, _limited(receive, most), send_marked)
            else:
                shown, _kind = shown_by(HTTPConnection(scope))
                await self._in_turn(shown, scope, _limited(receive, most), send_marked)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.count(scope["method"], route, status, time.perf_counter() - began)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s %s %d %s", scope["method"], route, status, request_id)

    async def _in_turn(self, shown: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A client that floods us gets an error and blocks no thread for others."""
        yours = self._under_way[shown]
        if yours >= MAX_AT_ONCE and shown:
            said = say("server.too_many_requests", yours=yours, most=MAX_AT_ONCE)
            await failed(429, Refused(said, code="too_many"))(scope, receive, send)
            return
        self._under_way[shown] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[shown] -= 1
            if not self._under_way[shown]:
                del self._under_way[shown]

    def _refusal(self, headers: Headers, most: int) -> BrimfulError | None:
        hosts = len(headers.getlist("host"))
        if hosts > 1:  # a proxy before us may have checked the other one
            return BadInput(say("server.two_hosts", hosts=hosts), code="two_hosts")
        host = re.sub(r":\d+$", "", headers.get("host", "")).strip("[]")
        if host not in self._hosts:
            hint = say("server.hint_use_host", host=min(self._hosts))
            return Refused(say("server.wrong_host", host=Quoted(host[:100])), hint=hint, code="wrong_host")
        length = headers.get("content-length", "0")
        if integer_from_text(length, low=0, high=most) is None:
            return too_large(most)
        return None


def _asked_language(header: str) -> str:
    """The first language that the client asks for and we support; otherwise English."""
    asked = (part.strip()[:2].lower() for part in header.split(","))
    return next((code for code in asked if code in LANGUAGES), "en")


def _most_bytes(scope: Scope) -> int:
    """Code is large, and read only from clients that may send it."""
    is_code = scope["method"] == "POST" and scope["path"].startswith("/v1/code/")
    return MAX_PACKED_BYTES if is_code else MAX_BODY_BYTES


def too_large(most: int = MAX_BODY_BYTES) -> BadInput:
    hint = say("server.hint_large_in_file")
    return BadInput(say("server.body_too_large", most=Number(most)), hint=hint, code="too_large")


def _limited(receive: Receive, most: int) -> Receive:
    """A body without a declared length is cut off at the limit too."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(413, too_large(most).problem)
        return message

    return limited
