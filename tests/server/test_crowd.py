"""A crowd at the door: idle sockets, a full table of streams, a flood of requests. The work goes on."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from brimful.errors import Refused
from brimful.language import words
from brimful.server import app
from brimful.server.api.stream import MAX_OF_ONE, MAX_STREAMS, Streams
from brimful.server.app import MAX_AT_ONCE
from brimful.server.auth import Principal
from tests.patience import PATIENCE_S
from tests.server.live import Live, live, wait_for

IDLE = 1_000


@contextmanager
def room_for(files: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, files)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(server: Live, said: bytes = b"") -> socket.socket:
    url = urlsplit(json.loads((server.data / "server.json").read_text())["url"])
    line = socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S)
    line.sendall(said)
    return line


def stream(server: Live, token: str) -> tuple[socket.socket, str]:
    """A stream of events that was asked for, and the status it was answered with."""
    head = f"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    line = dial(server, head.encode())
    return line, line.recv(12).decode()


def test_a_thousand_idle_sockets_and_a_full_table_of_streams_harm_nobody(tmp_path: Path) -> None:
    with ExitStack() as open_lines, room_for(IDLE + MAX_STREAMS + 500), live(tmp_path / "data") as server:
        table: list[socket.socket] = []

        def streams(token: str, count: int) -> set[str]:
            made = [stream(server, token) for _ in range(count)]
            for line, status in made:
                table.append(open_lines.enter_context(line))
                if status != "HTTP/1.1 200":
                    table.pop()
            return {status for _, status in made}

        for i in range(MAX_STREAMS // MAX_OF_ONE):
            made = server.ask("admin", "tokens", "add", f"reader-{i}", "--tenant", "t", "--role", "viewer")
            assert streams(made["secret"], MAX_OF_ONE) == {"HTTP/1.1 200"}
        refused = server.ask("admin", "tokens", "add", "late", "--tenant", "t", "--role", "viewer")
        assert streams(refused["secret"], 1) == {"HTTP/1.1 429"}, "the table is full"
        operator = (server.data / "token").read_text().strip()
        assert streams(operator, 1) == {"HTTP/1.1 200"}, "the operator still sees what goes on"
        for _ in range(IDLE):
            open_lines.enter_context(dial(server))
        job = server.submit("--tenant", "t", command=("true",))
        wait_for(lambda: server.show(job)["phase"] == "finished")
        assert server.ready()["healthy"]
        assert len(server.ask("jobs")["jobs"]) == 1
        assert len(table) == MAX_STREAMS + 1
        for line in table:  # nobody was dropped: each sees the job come and end
            told = b""
            while b"event: JobSubmitted" not in told or b"event: LeaseEnded" not in told:
                piece = line.recv(1 << 16)
                assert piece, "a stream was closed"
                told += piece


def test_a_token_that_floods_us_is_told_and_others_are_not_harmed() -> None:
    begun, go = threading.Semaphore(0), asyncio.Event()
    seen: list[tuple[str, int]] = []

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        begun.release()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    class Uncounted:
        def count(self, *_facts: object) -> None: ...

    guard = app.Middleware(slow, Uncounted(), hosts=["here"], headers={}, warm_up=list)  # type: ignore[arg-type]

    async def ask(token: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append((token, message["status"]))
            elif message["type"] == "http.response.body" and b"error" in message.get("body", b""):
                said = json.loads(message["body"])["error"]
                assert said["code"] == "too_many"
                told = words("server.too_many_requests", yours=MAX_AT_ONCE, most=MAX_AT_ONCE)
                assert said["problem"] == told

        headers = [(b"host", b"here"), (b"authorization", token.encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/jobs", "headers": headers}
        await guard(scope, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type, return-value]

    async def crowd() -> None:
        ways = ["Bearer flood", "bEARER  flood"]  # one token, however it is written
        flood = [asyncio.create_task(ask(ways[i % 2])) for i in range(MAX_AT_ONCE + 5)]
        other = asyncio.create_task(ask("Bearer other"))
        await asyncio.sleep(0)
        await asyncio.gather(*flood[MAX_AT_ONCE:])
        assert [status for _, status in seen] == [429] * 5
        go.set()
        await asyncio.gather(*flood, other)
        await ask("Bearer flood")  # those that were answered count no more

    asyncio.run(crowd())
    flood = [status for token, status in seen if token.endswith("flood")]
    assert flood.count(200) == MAX_AT_ONCE + 1
    assert ("Bearer other", 200) in seen


def test_of_streams_that_come_at_once_no_more_are_opened_than_may_be() -> None:
    who = Principal(token="one", name="ann", roles={"red": "viewer"})
    streams, answers = Streams(None), list[int]()  # type: ignore[arg-type]

    async def for_ever() -> AsyncIterator[str]:
        while True:
            yield "data: x\n\n"
            await asyncio.sleep(3600)

    async def ask() -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answers.append(message["status"])

        async def receive() -> dict[str, str]:
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await streams.answer(None, who, for_ever)(scope, receive, send)  # type: ignore[arg-type]

    async def crowd() -> None:
        asked = [asyncio.create_task(ask()) for _ in range(MAX_OF_ONE + 5)]
        while len(answers) + sum(each.done() for each in asked) < len(asked):
            await asyncio.sleep(0.01)
        assert [type(each.exception()) for each in asked if each.done()] == [Refused] * 5
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(crowd())
    assert answers == [200] * MAX_OF_ONE
    assert not streams.open, "those that have ended count no more"
