"""Whoever connects and says nothing keeps nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from brimful.server.run import connections
from brimful.server.run.connections import PatientProtocol
from tests.builders import eventually
from tests.patience import PATIENCE_S

WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
END = b"well\r\n0\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/mine":
        scope["state"]["who"] = "ann"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-kind", b"test")]})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await asyncio.sleep(3600)
    await send({"type": "http.response.body", "body": b"well"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[uvicorn.Server]:
    monkeypatch.setattr(connections, "OWED_S", 0.2)
    monkeypatch.setattr(connections, "most_connections", lambda: 20)
    made = uvicorn.Server(
        uvicorn.Config(app, port=0, http=PatientProtocol, log_config=None, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    eventually(lambda: made.started)
    yield made
    while LINES:
        LINES.pop().close()
    made.should_exit = True
    thread.join(PATIENCE_S)


LINES: list[socket.socket] = []  # closed with the server they were made to


def dial(server: uvicorn.Server, said: bytes = b"") -> socket.socket:
    line = socket.create_connection(server.servers[0].sockets[0].getsockname(), timeout=PATIENCE_S)
    LINES.append(line)
    line.sendall(said)
    return line


def answer(line: socket.socket, awaited: bytes = END) -> bytes:
    heard = b""
    while awaited not in heard and (more := line.recv(4096)):
        heard += more
    return heard


def answered(server: uvicorn.Server, path: bytes = b"/", awaited: bytes = END) -> socket.socket:
    """A line whose first request was answered; tried again if this thread was too slow to send it in time."""
    while True:
        try:
            line = dial(server, WHOLE.replace(b"/ ", path + b" "))
            if awaited in answer(line, awaited):
                return line
        except ConnectionError:
            pass


def until_closed(line: socket.socket) -> bytes:
    heard = b""
    try:
        while more := line.recv(4096):
            heard += more
    except ConnectionResetError:
        pass
    return heard


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: here\r\nX: ", BODY + b"half"])
def test_a_request_that_never_becomes_whole_is_hung_up_on(server: uvicorn.Server, said: bytes) -> None:
    assert b"200" not in until_closed(dial(server, said))


def test_the_second_request_on_a_line_has_to_become_whole_too(server: uvicorn.Server) -> None:
    line = answered(server)
    line.sendall(b"GET / HT")
    assert until_closed(line) == b""


def test_a_stream_and_a_line_that_owe_nothing_are_left_alone(server: uvicorn.Server) -> None:
    stream = answered(server, b"/stream", b"first")
    for _ in range(3):  # each is closed when its time is over, which is time enough for the stream
        until_closed(dial(server))
    eventually(lambda: len(server.server_state.connections) == 1)
    stream.setblocking(False)
    with pytest.raises(BlockingIOError):  # open, with nothing more to read; a closed one would say so
        stream.recv(4096)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"a" * (1 << 20),
        b"GET / HTTP/1.1\r\nHost: here\r\n" + b"x: a\r\n" * (1 << 18),
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: a\r\n" * (1 << 18),
    ],
    ids=["long", "many", "trailers"],
)
def test_headers_without_end_are_refused_long_before_they_fill_memory(
    server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "OWED_S", 1e6)
    line = dial(server)
    with contextlib.suppress(ConnectionError):  # it hangs up while we go on
        line.sendall(said)
    assert b"200" not in until_closed(line)
    assert b"well" in answer(dial(server, WHOLE))


def test_a_large_body_may_come_in_the_smallest_chunks(server: uvicorn.Server) -> None:
    head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    chunks = b"1\r\na\r\n" * (1 << 16)
    assert b"well" in answer(dial(server, head + chunks + b"0\r\n\r\n"))


def test_a_body_may_take_longer_while_it_comes(
    server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_BYTES_PER_S", 1)
    line = dial(server, b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2000\r\n\r\n" + b"a" * 1000)
    for _ in range(3):  # each is closed when its time is over
        until_closed(dial(server))
    line.sendall(b"a" * 1000)
    assert b"well" in answer(line)


def test_the_one_who_waits_longest_makes_room(
    server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "OWED_S", 1e6)
    idle = [dial(server) for _ in range(60)]
    for _ in range(5):
        assert b"well" in answer(dial(server, WHOLE))
    eventually(lambda: len(server.server_state.connections) <= 20)
    assert until_closed(idle[0]) == b""


def test_lines_that_are_kept_alive_without_a_credential_keep_nobody_out(server: uvicorn.Server) -> None:
    """Before, a newcomer was refused 20 of 20 times: nobody owed anything, so the newest was closed."""
    over, most = threading.Event(), 20

    def ask_again_and_again() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                line = dial(server)
                while not over.is_set():
                    line.sendall(WHOLE)
                    if END not in answer(line):
                        break

    crowd = [threading.Thread(target=ask_again_and_again, daemon=True) for _ in range(most)]
    for each in crowd:
        each.start()
    eventually(lambda: len(server.server_state.connections) >= most)
    try:
        let_in = 0
        for _ in range(most):
            with contextlib.suppress(ConnectionError):
                let_in += b"well" in answer(dial(server, WHOLE))
    finally:
        over.set()
        for each in crowd:
            each.join(PATIENCE_S)
    assert let_in >= most - 1, f"{let_in} of {most}"


def test_a_line_with_a_credential_stays_while_one_without_can_go(
    server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "OWED_S", 1e6)
    user, stream = answered(server, b"/mine"), answered(server, b"/stream", b"first")
    others = [answered(server) for _ in range(18)]
    for _ in range(30):
        assert b"well" in answer(dial(server, WHOLE))
    assert until_closed(others[0]) == b""
    user.sendall(WHOLE)
    assert b"well" in answer(user)
    stream.setblocking(False)
    with pytest.raises(BlockingIOError):
        stream.recv(4096)


def test_idle_lines_of_users_make_room_for_each_other(server: uvicorn.Server) -> None:
    first = answered(server, b"/mine")
    for _ in range(25):
        answered(server, b"/mine")
    assert until_closed(first) == b""


def test_some_descriptors_are_kept_back_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 768), (64, 32), (1 << 20, 2_000), (-1, 2_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, soft=soft: (soft, soft))
        assert connections.most_connections() == most
