"""Server-sent events: the event log and a job's output, as they grow."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from brimful.errors import BrimfulError, Refused
from brimful.language import say, told
from brimful.server.api.answers import Failed
from brimful.server.api.errors import COMMON
from brimful.server.api.gate import Gate, principal_of
from brimful.server.api.jobs import JobName, Rank
from brimful.server.api.seen import job_for
from brimful.server.auth import Access, Principal, unauthorized
from brimful.server.service.reader import Reader
from brimful.server.views.events import events_for
from brimful.server.views.logs import log_piece

LOOK_S = 0.25
QUIET_S = 15.0  # a comment now and then, so that no proxy closes the connection
MAX_STREAMS = 200
MAX_OF_ONE = 50  # per token, so that none locks the others out
CHECK_S = 2.0  # how long a stream may outlive its token
PIECE_BYTES = 1 << 16
STILL_HERE = ": still here\n\n"
RESPONSES: dict[int | str, dict[str, Any]] = {
    **COMMON,
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "as it grows"},
    429: {"model": Failed, "description": "too many streams are open"},
}


class Streams:
    """How many are open: each holds a connection, and connections are limited."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.open: Counter[str] = Counter()  # by token

    def answer(
        self, request: Request, who: Principal, parts: Callable[[], AsyncIterator[str]]
    ) -> StreamingResponse:
        is_full = self.open.total() >= MAX_STREAMS and not who.may("operator")  # operators must always get in
        if is_full or self.open[who.token] >= MAX_OF_ONE:
            raise Refused(
                say(
                    "server.too_many_streams",
                    total=self.open.total(),
                    yours=self.open[who.token],
                    most=MAX_STREAMS,
                    most_yours=MAX_OF_ONE,
                ),
                code="too_many",
            )
        return _Counted(self._checked(request, who, parts), self.open, who.token)

    async def _checked(
        self, request: Request, who: Principal, parts: Callable[[], AsyncIterator[str]]
    ) -> AsyncIterator[str]:
        sent = checked = time.monotonic()
        try:
            async for part in parts():
                now = time.monotonic()
                if now - checked > CHECK_S:
                    # A revoked or expired token must not keep reading.
                    if await principal_of(self._access, request) != who:
                        raise unauthorized()
                    checked = now
                if part or now - sent > QUIET_S:
                    yield part or STILL_HERE
                    sent = now
        except BrimfulError as error:
            yield _part("error", error.as_dict(told))


class _Counted(StreamingResponse):
    """Counts from the moment it starts: of many at once, each is counted before the next is let in."""

    def __init__(self, parts: AsyncIterator[str], those: Counter[str], token: str) -> None:
        super().__init__(parts, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._those, self._token = those, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._those[self._token] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._those[self._token] -= 1
            if not self._those[self._token]:
                del self._those[self._token]


def _part(kind: str, data: Any, place: str = "") -> str:  # noqa: ANN401 - JSON
    head = f"id: {place}\n" if place else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


async def _events(reader: Reader, who: Principal, place: int) -> AsyncIterator[str]:
    """As they come; yields nothing, repeatedly, while there are none."""
    while True:
        if place < 0 or reader.fleet.seq > place:
            page = await run_in_threadpool(events_for, reader, who, after=place, limit=500)
            place = page["next_after"]
            for event in page["events"]:
                yield _part(event["kind"], event, str(event["seq"]))
            if reader.fleet.seq > place:
                continue
        yield ""
        await asyncio.sleep(LOOK_S)


async def _log(reader: Reader, name: str, lease: str | None, place: int, rank: int) -> AsyncIterator[str]:
    while True:
        piece = await run_in_threadpool(
            log_piece, reader, name, lease, rank=rank, offset=place, limit=PIECE_BYTES
        )
        lease, place = piece["lease"], piece["next_offset"]
        if piece["text"]:
            yield _part("log", {"lease": lease, "text": piece["text"], "next_offset": place})
        if piece["over"] and place >= piece["size"]:
            yield _part("over", {"phase": piece["phase"]})
            return
        if not piece["text"]:
            yield ""
            await asyncio.sleep(LOOK_S)


def add_stream_routes(router: APIRouter, reader: Reader, access: Access, gate: Gate) -> None:
    viewer = gate.needs("viewer")
    streams = Streams(access)

    @router.get("/events/stream", response_class=StreamingResponse, responses=RESPONSES)
    async def events(
        request: Request,
        after: Annotated[int, Query(ge=-1_000_000, le=1 << 60)] = 0,
        last_event_id: Annotated[str | None, Header(max_length=20, pattern=r"^[0-9]+$")] = None,
        who: Principal = viewer,
    ) -> Response:
        begin = int(last_event_id) if last_event_id else after
        return streams.answer(request, who, lambda: _events(reader, who, begin))

    @router.get("/jobs/{name}/log/stream", response_class=StreamingResponse, responses=RESPONSES)
    async def log(
        request: Request,
        name: JobName,
        *,
        lease: Annotated[str | None, Query(max_length=100)] = None,
        offset: Annotated[int, Query(ge=-(1 << 30), le=1 << 40)] = 0,
        rank: Rank = 0,
        who: Principal = viewer,
    ) -> Response:
        await run_in_threadpool(job_for, reader, who, name)
        return streams.answer(request, who, lambda: _log(reader, name, lease, offset, rank))
