"""The console's routes: the page, its live part, and the three files it loads."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException

from brimful.server.console.shown import live
from brimful.server.service import Service
from brimful.server.words import printable
from brimful.units import show_bytes, show_seconds, show_usd

MEDIA_TYPES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HTML = "text/html; charset=utf-8"


def make_console(service: Service) -> APIRouter:
    router = APIRouter()
    templates = make_templates()
    page, part = templates.get_template("page.html"), templates.get_template("live.html")
    assets = {name: (files(__package__) / name).read_bytes() for name in MEDIA_TYPES}
    # A page left open over an upgrade sees another build and loads itself anew.
    build = _digest(b"".join(assets.values()))

    @router.get("/")
    def console(request: Request) -> Response:
        html = page.render(**live(service), now_s=service.now_s(), build=build)
        return _answer(request, html.encode(), HTML)

    @router.get("/console/live")
    def live_part(request: Request) -> Response:
        return _answer(request, part.render(**live(service), build=build).encode(), HTML)

    @router.get("/console/{name}")
    def asset(request: Request, name: str) -> Response:
        if name not in assets:
            raise HTTPException(404, f"the console has no file {name[:100]!r}")
        return _answer(request, assets[name], MEDIA_TYPES[name])

    return router


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
        duration=_duration,
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


def _duration(seconds: int) -> str:
    """The log counts whole seconds; '8.0 s' or '0 ms' would say more than it knows."""
    return f"{seconds} s" if seconds < 60 else show_seconds(seconds)


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """The body, or 304 where the browser has it already; always asked for, since it may have changed."""
    headers = {"etag": f'"{_digest(body)}"', "cache-control": "no-cache"}
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:20]
