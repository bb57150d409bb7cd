"""The console's routes: sign-in, the pages, their live parts, and static files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlencode

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser

from brimful import __version__
from brimful.errors import BrimfulError
from brimful.language import Quoted, Several, told, tongue, words
from brimful.server.api.errors import status_of
from brimful.server.api.gate import cookie_name, principal_of
from brimful.server.auth import EVERYBODY, SESSION_S, Access, Principal, forbidden, form_key
from brimful.server.console.kept_shares import KeptShares
from brimful.server.console.page_data import live_page
from brimful.server.console.templating import LANGUAGE_NAMES, templates_here, warm_up
from brimful.server.service.reader import Reader

MEDIA_TYPES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "submit.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
LANGUAGE_COOKIE = "brimful_language"
YEAR_S = 366 * 86400
HTML = "text/html; charset=utf-8"
ANYTHING = Principal(token="", name="", roles={EVERYBODY: "operator"})  # may see every page
MOST_FIELDS = 250
MOST_KEPT = 100  # live parts: one per set of teams and language


class Pages:
    """Renders, with what every page needs."""

    def __init__(self, reader: Reader, *, provider: str = "", secure: bool = False) -> None:
        """`provider`: where people sign in with their organisation's account, if configured."""
        self._reader, self._always = reader, {"provider": provider, "secure": secure}
        self.assets = {name: (files(__package__) / name).read_bytes() for name in MEDIA_TYPES}
        self._turns = CapacityLimiter(2)  # one renders, the next one waits for it
        self._rendering, self._live = threading.Lock(), dict[tuple[object, ...], tuple[object, bytes]]()
        # A page left open during an upgrade sees a new build and reloads.
        self._build = _digest(b"".join(self.assets.values()))
        self.parts: list[tuple[str, Show]] = []  # made once before anybody asks

    def warm_up(self) -> None:
        """Make every live part once, so that nobody's first page is slow.

        That compiles templates and statements, reads catalogs and groups the jobs that views count.
        """
        warm_up()
        for body, show in self.parts:
            with contextlib.suppress(BrimfulError):  # the database does not answer: whoever asks is told
                shown = {"page_from": "/", "here": "/", **show(ANYTHING, {})}
                self._render(body, who=ANYTHING, form_key="", **shown)

    async def in_turn(self, part: Callable[[], bytes]) -> bytes:
        """Live parts share two threads: however many tabs poll, the others serve users who do something."""
        return await to_thread.run_sync(part, limiter=self._turns)

    def live(self, reader: Reader, who: Principal, kept: KeptShares | None = None) -> bytes:
        """The live part of the first page."""
        return self.packed(
            "live.html", who, "", lambda: live_page(reader, who, None if kept is None else kept.of(who))
        )

    def packed(self, body: str, who: Principal, asked: str, make: Callable[[], dict[str, Any]]) -> bytes:
        """The live part of a page: rendered once for everyone who sees the same data and asks for the same.

        The forms' key is left out, because it is one browser's secret; the page puts in its own.
        """
        reader = self._reader
        trouble, problems = reader.health.trouble(), reader.problems()
        version = (reader.fleet.seq, reader.now_s(), trouble and told(trouble), str(problems))
        key = (body, asked, frozenset(who.roles.items()), tongue().code)
        with self._rendering:
            if key not in self._live or self._live[key][0] != version:
                if len(self._live) >= MOST_KEPT:
                    self._live.clear()
                values = make()
                html = self._render(body, who=who, form_key="", **values)
                # The other process may finish without a new event or second: do not reuse.
                kept = None if values.get("counting") else version
                # It contains no browser's secret, so its compressed size reveals nothing.
                self._live[key] = (kept, gzip.compress(html.encode(), 5, mtime=0))
            return self._live[key][1]

    def forget(self) -> None:
        """Drop what was rendered: somebody has just done something that no event in the log shows."""
        with self._rendering:
            self._live.clear()

    def _render(self, name: str, **values: Any) -> str:  # noqa: ANN401
        shown = {"now_s": self._reader.now_s(), "version": __version__, "build": self._build, "here": "/"}
        shown |= {"pages_of": pages_of, **values}
        return templates_here().get_template(name).render(**shown, **self._always)

    def answer(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401
        key = form_key(request.cookies.get(cookie_name(request), ""))
        shown = {"form_key": key, "here": request.url.path, "body": name} | values
        html = self._render(name, **shown)
        return answered(request, html.encode(), HTML, status)

    def packed_answer(self, request: Request, packed: bytes) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return answered(request, gzip.decompress(packed), HTML)
        answer = answered(request, packed, HTML)
        answer.headers["content-encoding"] = "gzip"
        return answer

    def sign_in(self, request: Request, problem: str = "") -> Response:
        return self.answer(request, "enter.html", 401, problem=problem)


def make_console(
    pages: Pages,
    reader: Reader,
    access: Access,
    *,
    kept: KeptShares,
    secure: bool = False,
) -> APIRouter:
    router = APIRouter()
    add_way_in(router, access, pages, secure=secure)
    pages.parts.append(("live.html", lambda who, _asked: live_page(reader, who)))

    @router.get("/")
    async def console(request: Request) -> Response:
        who = await principal_of(access, request)
        if who is None:
            return pages.sign_in(request)
        found = await run_in_threadpool(lambda: live_page(reader, who, kept.of(who)))
        return pages.answer(request, "page.html", who=who, body="live.html", **found)

    @router.get("/console/live")
    async def live_part(request: Request) -> Response:
        who = await signed_in(access, request)
        return pages.packed_answer(request, await pages.in_turn(partial(pages.live, reader, who, kept)))

    add_language(router)
    add_assets(router, pages)
    return router


async def signed_in(access: Access, request: Request) -> Principal:
    """Who asks for a live part."""
    who = await principal_of(access, request)
    if who is None:
        raise HTTPException(401, words("server.session_over"))
    return who


# Pages in navigation order, and the role that each needs; "" means none.
PAGES = (
    ("home", "/", ""),
    ("jobs", "/jobs", "viewer"),
    ("submit", "/submit", "submitter"),
    ("fit", "/fit", ""),
    ("fleet", "/fleet", "viewer"),
    ("market", "/market", "viewer"),
    ("teams", "/teams", "viewer"),
    ("audit", "/audit", "viewer"),
    ("operate", "/operate", "admin"),
)


def pages_of(who: Principal | None) -> list[tuple[str, str]]:
    return [
        (path, words(f"console.nav_{name}"))
        for name, path, role in PAGES
        if not role or (who is not None and who.may(role))
    ]


Show = Callable[[Principal, Mapping[str, str]], dict[str, Any]]


def add_page(
    router: APIRouter,
    access: Access,
    pages: Pages,
    *,
    path: str,
    body: str,
    show: Show,
    role: str = "viewer",
) -> None:
    """A page whose live part is the template `body`; `?live=1` returns that part alone."""
    if path != "/audit":  # would start to read the whole log
        pages.parts.append((body, show))

    @router.get(path)
    async def page(request: Request) -> Response:
        asked = {**request.query_params, **request.path_params}
        is_live = asked.pop("live", "") != ""
        who = await principal_of(access, request)
        if who is None:
            if is_live:
                raise HTTPException(401, words("server.session_over"))
            return pages.sign_in(request)
        if not who.may(role):
            return pages.answer(request, "missing.html", 403, who=who, problem=forbidden(who, role).problem)
        there = request.url.path + "?" + urlencode({**asked, "live": "1"})

        def shown() -> dict[str, Any]:
            return {"page_from": there, "here": request.url.path, **show(who, asked)}

        try:
            if is_live:
                key = f"{there} {who.name}"
                packed = await pages.in_turn(partial(pages.packed, body, who, key, shown))
                return pages.packed_answer(request, packed)
            found = await run_in_threadpool(shown)
        except BrimfulError as error:
            problem = told(error.said)
            return pages.answer(request, "missing.html", status_of(error), who=who, problem=problem)
        return pages.answer(request, "page.html", who=who, body=body, **found)


def problem_of(error: BrimfulError) -> str:
    """What a page says of what was refused: the problem, and the way out where there is one."""
    return told(error.said if error.way_out is None else Several((error.said, error.way_out), "; "))


def chosen_language(headers: Headers) -> str:
    """The reader's choice on a page; empty: what the browser asks for."""
    cookies = cookie_parser(headers.get("cookie", ""))
    return cookies.get(LANGUAGE_COOKIE, "")


def add_language(router: APIRouter) -> None:
    @router.get("/console/language/{code}")
    async def speak(code: str, to: str = "/") -> Response:
        there = to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
        answer = RedirectResponse(there, status_code=303, headers={"cache-control": "no-store"})
        if code in LANGUAGE_NAMES:
            answer.set_cookie(LANGUAGE_COOKIE, code, max_age=YEAR_S, httponly=True, samesite="strict")
        return answer


def add_assets(router: APIRouter, pages: Pages) -> None:
    @router.get("/console/{name}")
    async def asset(request: Request, name: str) -> Response:
        if name not in pages.assets:
            raise HTTPException(404, words("server.no_console_file", name=Quoted(name[:100])))
        return answered(request, pages.assets[name], MEDIA_TYPES[name])


def add_way_in(router: APIRouter, access: Access, pages: Pages, *, secure: bool) -> None:
    """A ticket or a token becomes a session, which the browser keeps and no script can read.

    Following a link only asks: a mail scanner that opens it uses nothing up. The cookie, which no other
    site's page can cause to be sent, is set by our own form.
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
    """The fields of a form, each once."""
    return {name: values[0].strip() for name, values in (await fields_of(request)).items()}


async def fields_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form, which must be on one of our pages."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, words("server.form_from_elsewhere"))
    try:
        return parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(400, words("server.not_the_form")) from error


def check_form(form: Mapping[str, str], session: str) -> None:
    """Whether it is a form that we gave to this session."""
    given, wanted = form.get("form_key", "").encode(), form_key(session).encode()
    if not session or not secrets.compare_digest(given, wanted):
        raise HTTPException(403, words("server.form_from_elsewhere"))


def answered(request: Request, body: bytes, media_type: str, status: int = 200) -> Response:
    """The body, or 304 if the browser already has it; always revalidated, since it may have changed."""
    headers = {"etag": f'"{_digest(body)}"', "cache-control": "no-cache", "vary": "accept-encoding"}
    if status == 200 and headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers, status_code=status)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:20]


async def signed_form(access: Access, request: Request) -> tuple[Principal, dict[str, str]]:
    """Who sent one of our forms from their own page, and its fields."""
    who, fields = await signed_fields(access, request)
    return who, {name: values[0].strip() for name, values in fields.items()}


async def signed_fields(access: Access, request: Request) -> tuple[Principal, dict[str, list[str]]]:
    """The same, where a field may occur several times."""
    session, fields = request.cookies.get(cookie_name(request), ""), await fields_of(request)
    check_form({name: values[0].strip() for name, values in fields.items()}, session)
    who = await run_in_threadpool(access.look_up, session, "session")
    if who is None:
        raise HTTPException(401, words("server.session_over"))
    return who, fields
