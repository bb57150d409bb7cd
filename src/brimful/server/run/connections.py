"""Connections that owe us bytes do not keep others out.

Whoever connects and says nothing, or half a request, holds a file descriptor, and the loop needs some too. So
a request has to be whole within a while, and where there are as many connections as there may be, the one
that has owed us for longest makes room for the next. Headers are kept in memory before anybody knows who
sends them: they have a limit too.
"""

from __future__ import annotations

import asyncio
import resource
import time

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OWED_S = 10.0  # how long a request may take to arrive, and longer only while its body comes at
BODY_BYTES_PER_S = 1 << 14  # packed code is large, and lines are slow
HEAD_BYTES = 1 << 16  # of one request, to within what is read at once; what frames its body included
FRAMED = 8  # bytes that a byte of the body may take: chunks of a single one take six
KEPT_BACK = 256  # file descriptors for the loop: the database, logs, lease folders, runners
MOST = 2_000
FEWEST = 32


def most_connections() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(FEWEST, min(MOST, soft - KEPT_BACK))


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, with an end to its patience. uvicorn itself looks after those idle between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begun = False  # a request has begun, and its head is not here yet
        self._since = time.monotonic()
        self._sent = self._body = 0  # bytes of the request, and those of its body
        self._due = self.loop.call_later(OWED_S, self._look)
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        between = before is None or before.response_complete
        if between and before is not None and not self._begun:
            self._since = time.monotonic()
        self._sent += len(data)
        super().data_received(data)
        self._begun = between and self.cycle is before
        if self._sent > HEAD_BYTES + FRAMED * self._body and not self.transport.is_closing():
            self.send_400_response("Request header fields too large.")

    def on_message_begin(self) -> None:
        self._sent = self._body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def _owes(self) -> bool:
        """Whether a request is awaited or on its way. Between two requests nothing is owed."""
        cycle = self.cycle
        return cycle is None or self._begun or (cycle.more_body and not cycle.response_complete)

    def _until(self) -> float:
        return self._since + OWED_S + self._body / BODY_BYTES_PER_S

    def _look(self) -> None:
        left_s = self._until() - time.monotonic()
        if left_s <= 0 and self._owes():
            self.transport.close()
            return
        self._due = self.loop.call_later(left_s if left_s > 0 else OWED_S, self._look)

    def _make_room(self) -> None:
        """The connection that has owed for longest goes; if no other owes anything, the newest one."""
        # A connection that is being closed stays in the set until its loop comes round.
        others = [
            each
            for each in self.connections
            if isinstance(each, PatientProtocol) and each is not self and not each.transport.is_closing()
        ]
        if len(others) < most_connections():
            return
        owing = [each for each in others if each._owes()]
        min(owing, key=lambda each: each._until(), default=self).transport.abort()
