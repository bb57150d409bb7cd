"""A proxy before an S3 server that lets blocks pass only when several of them are under way at once."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.patience import PATIENCE_S

OWN = {"connection", "expect", "transfer-encoding"}  # of one hop


class Gate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, *, together: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind, self.barrier = port, threading.Barrier(together)
        self.passed: list[str] = []  # the methods of blocks that went through


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/blocks/" in self.path:
            self.server.barrier.wait(PATIENCE_S)
            self.server.passed.append(self.command)
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=PATIENCE_S)
        with contextlib.closing(behind):
            given = {name: text for name, text in self.headers.items() if name.lower() not in OWN}
            behind.request(self.command, self.path, body=body, headers=given)
            answer = behind.getresponse()
            data = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, text in answer.getheaders():
            if name.lower() not in OWN | {"content-length"}:
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - as its base calls them

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def a_gate(port: int, *, together: int) -> Iterator[Gate]:
    with Gate(port, together=together) as made:
        serves = threading.Thread(target=made.serve_forever)
        serves.start()
        try:
            yield made
        finally:
            made.barrier.abort()
            made.shutdown()
            serves.join()
