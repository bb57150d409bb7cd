"""The console's routes: the way in, the pages, their live parts, and the files they load."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from brimful import __version__
from brimful.errors import NotFound
from brimful.language import Quoted, words
from brimful.language.printable import printable
from brimful.server.api.gate import cookie_name, principal_of
from brimful.server.api.jobs import job_for
from brimful.server.auth import SESSION_S, Access, Principal, form_key
from brimful.server.console.page_data import job_page, live_page
from brimful.server.service.reader import Reader
from brimful.units import show_bytes, show_seconds, show_usd

MEDIA_TYPES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HTML = "text/html; charset=utf-8"


class Pages:
    """Renders, with what every page needs."""

    def __init__(self, reader: Reader, *, provider: str = "", secure: bool = False) -> None:
        """`provider`: where people sign in with their organisation's account, if anywhere."""
        self._reader, self._always = reader, {"provider": provider, "secure": secure}
        self._templates = make_templates()
        self.assets = {name: (files(__package__) / name).read_bytes() for name in MEDIA_TYPES}
        # A page left open over an upgrade sees another build and loads itself anew.
        self._build = _digest(b"".join(self.assets.values()))

    def answer(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401
        shown = {"now_s": self._reader.now_s(), "version": __version__, "build": self._build, **values}
        shown |= self._always
        shown["form_key"] = form_key(request.cookies.get(cookie_name(request), ""))
        html = self._templates.get_template(name).render(**shown)
        return answered(request, html.encode(), HTML, status)

    def sign_in(self, request: Request, problem: str = "") -> Response:
        return self.answer(request, "enter.html", 401, problem=problem)


def make_console(pages: Pages, reader: Reader, access: Access, *, secure: bool = False) -> APIRouter:
    router = APIRouter()
    add_way_in(router, access, pages, secure=secure)

    def shown(who: Principal, name: str) -> dict[str, Any]:
        return job_page(reader, reader.measure(job_for(reader, who, name)))

    async def known(request: Request) -> Principal:
        who = await principal_of(access, request)
        if who is None:
            raise HTTPException(401, words("server.session_over"))
        return who

    @router.get("/")
    async def console(request: Request) -> Response:
        who = await principal_of(access, request)
        if who is None:
            return pages.sign_in(request)
        return pages.answer(request, "page.html", who=who, **await run_in_threadpool(live_page, reader, who))

    @router.get("/console/live")
    async def live_part(request: Request) -> Response:
        who = await known(request)
        return pages.answer(request, "live.html", who=who, **await run_in_threadpool(live_page, reader, who))

    @router.get("/jobs/{name}")
    async def job(request: Request, name: str) -> Response:
        who = await principal_of(access, request)
        if who is None:
            return pages.sign_in(request)
        try:
            found = await run_in_threadpool(shown, who, name)
        except NotFound as error:
            return pages.answer(request, "missing.html", 404, who=who, problem=error.problem)
        return pages.answer(request, "job.html", who=who, **found)

    @router.get("/jobs/{name}/live")
    async def job_part(request: Request, name: str) -> Response:
        who = await known(request)
        return pages.answer(request, "job_live.html", who=who, **await run_in_threadpool(shown, who, name))

    add_assets(router, pages)
    return router


def add_assets(router: APIRouter, pages: Pages) -> None:
    @router.get("/console/{name}")
    async def asset(request: Request, name: str) -> Response:
        if name not in pages.assets:
            raise HTTPException(404, words("server.no_console_file", name=Quoted(name[:100])))
        return answered(request, pages.assets[name], MEDIA_TYPES[name])


def add_way_in(router: APIRouter, access: Access, pages: Pages, *, secure: bool) -> None:
    """A ticket or a token becomes a session, which the browser keeps and no script can read.

    A link only asks: whoever looks at links in a mail before its reader does uses up nothing, and the cookie,
    which no other site's page may cause to be sent, is set by a form of our own.
    """

    async def enter(request: Request, text: str, problem: str) -> Response:
        session = await run_in_threadpool(access.session, text)
        if session is None:
            return pages.sign_in(request, problem)
        answer = RedirectResponse("/", status_code=303, headers={"cache-control": "no-store"})
        name = cookie_name(request)
        answer.set_cookie(name, session, max_age=SESSION_S, httponly=True, samesite="strict", secure=secure)
        return answer

    @router.get("/console/enter")
    async def by_ticket(request: Request, ticket: str = "") -> Response:
        name = await run_in_threadpool(access.ticket_for, ticket)
        if name is None:
            return pages.sign_in(request, words("server.link_used") if ticket else "")
        return pages.answer(request, "confirm.html", person=name, ticket=ticket)

    @router.post("/console/enter")
    async def by_form(request: Request) -> Response:
        form = await form_of(request)
        if "ticket" in form:
            return await enter(request, form["ticket"], words("server.link_used"))
        return await enter(request, form.get("token", ""), words("server.token_invalid"))

    @router.post("/console/leave")
    async def leave(request: Request) -> Response:
        session = request.cookies.get(cookie_name(request), "")
        check_form(await form_of(request), session)
        await run_in_threadpool(access.end_session, session)
        answer = RedirectResponse("/", status_code=303)
        answer.delete_cookie(cookie_name(request))
        return answer


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, which must be on a page of ours."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, words("server.form_from_elsewhere"))
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    except ValueError as error:
        raise HTTPException(400, words("server.not_the_form")) from error
    return {name: values[0].strip() for name, values in fields.items()}


def check_form(form: Mapping[str, str], session: str) -> None:
    """Whether it is one that we gave to this session."""
    given, wanted = form.get("form_key", "").encode(), form_key(session).encode()
    if not session or not secrets.compare_digest(given, wanted):
        raise HTTPException(403, words("server.form_from_elsewhere"))


def make_templates() -> Environment:
    """Escaped, strict, and with one word for what nobody knows."""
    templates = Environment(
        loader=PackageLoader("brimful.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        usd=show_usd,
        duration=show_seconds,
        size=show_bytes,
        percent=lambda frac: f"{frac:.0%}",
        iso=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        utc=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC",
    )
    return templates


def _written(value: object) -> object:
    """How a value is put on the page: None is "unknown", and what would not print is shown as a mark."""
    if value is None:
        return "unknown"
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def answered(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """The body, or 304 where the browser has it already; always asked for, since it may have changed."""
    headers = {"etag": f'"{_digest(body)}"', "cache-control": "no-cache"}
    if status == 200 and headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers, status_code=status)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:20]
