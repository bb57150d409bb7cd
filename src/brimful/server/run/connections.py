"""Slow connections must not lock others out.

A client that connects and sends nothing, or half a request, holds a file descriptor, and the loop needs some
too. So a request must arrive within a time limit, and when the connection limit is reached, another one makes
room for the next: first idle ones on which nobody has shown a valid credential, then those that owe the rest
of a request, then idle ones of users. An idle client only has to connect again. Headers are held in memory
before we know who sends them, so they are limited too.
"""

from __future__ import annotations

import asyncio
import resource
import time

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OWED_S = 10.0  # time for a request to arrive; longer only while its body keeps up this rate:
BODY_BYTES_PER_S = 1 << 14  # packed code is large, and networks are slow
HEAD_BYTES = 1 << 16  # per request, to within one read; includes the framing of its body
FRAMED = 8  # bytes sent per byte of body: chunks of a single byte take six
KEPT_BACK = 256  # file descriptors for the loop: the database, logs, lease folders, runners
MOST = 2_000
FEWEST = 32


def most_connections() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(FEWEST, min(MOST, soft - KEPT_BACK))


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with time limits. uvicorn itself handles connections idle between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made = time.monotonic()
        self._begun = False  # a request has started, but its head is incomplete
        self._since = time.monotonic()
        self._sent = self._body = 0  # bytes of the request, and of its body
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
        """Whether a request is expected or incomplete. Between two requests nothing is owed."""
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

    def _rank(self) -> tuple[int, float] | None:
        """The lowest makes room first; None: it is busy, or a stream."""
        if self._owes():
            return 1, self._until()
        assert self.cycle is not None, "it would owe a request"
        if "who" in self.cycle.scope["state"]:  # set where the credential is checked
            is_idle = self.cycle.response_complete and not self.transport.get_write_buffer_size()
            return (2, self._made) if is_idle else None
        # A client that never reads its answers would be busy forever.
        is_idle = self.cycle.response_complete or self.flow.write_paused
        return (0, self._made) if is_idle else None

    def _make_room(self) -> None:
        """Closes the connection that is needed least; if all others are busy, the newest one."""
        # A closing connection stays in the set until its event loop handles it.
        others = [
            each
            for each in self.connections
            if isinstance(each, PatientProtocol) and each is not self and not each.transport.is_closing()
        ]
        if len(others) < most_connections():
            return
        ranked = [(rank, each) for each in others if (rank := each._rank()) is not None]
        _, goes = min(ranked, key=lambda pair: pair[0], default=(None, self))
        goes.transport.abort()
