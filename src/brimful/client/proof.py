"""Checks that whoever answers at an address is our server, before anything of ours is sent.

With https the certificate proves it (pinning.py if the data folder names it, otherwise a trusted authority).
Without https, on loopback only, the server must return a keyed hash of a random number, keyed with the
SHA-256 of our token's secret: only the server that made the token has that. The token itself stays here.

Leaves out: an attacker who can reach our server and relays its answer. TLS protects against that.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, Request

from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput, Refused, WorldFailed
from brimful.language import Plain, Quoted, say

TOKEN = re.compile(r"brim_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
MAX_ANSWER_BYTES = 10_000


def check_url(url: str) -> None:
    """Only https leaves this machine."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.username is None and (parts.port or 1) > 0
    except ValueError:
        named = False
    if not named or parts.scheme not in ("http", "https"):
        raise BadInput(say("client.bad_url", url=Quoted(url[:100])))
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise BadInput(say("client.url_needs_tls", url=Quoted(url[:100])), code="not_loopback")


class StaysHere(HTTPRedirectHandler):
    """Follows no redirect: it is treated like any other unexpected answer."""

    def redirect_request(self, *_asked: object) -> None:
        return None


class ProvenHandler(HTTPHandler):
    """Talks to a server that knows our token; any other gets only the question."""

    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def http_open(self, req: Request) -> Any:  # noqa: ANN401 - urllib's own type
        def connection(host: str, **more: Any) -> _Proven:  # noqa: ANN401
            return _Proven(host, token=self._token(), **more)

        return self.do_open(connection, req)


class _Proven(http.client.HTTPConnection):
    """Checked on every connection: who listens on a port may change while a command runs."""

    def __init__(self, host: str, *, token: str, **more: Any) -> None:  # noqa: ANN401
        super().__init__(host, **more)
        self._bearer = token

    def connect(self) -> None:
        super().connect()
        try:
            self._prove()
        except BaseException:
            self.close()
            raise

    def _prove(self) -> None:
        url = f"http://{self.host}:{self.port}"
        match = TOKEN.fullmatch(self._bearer)
        name, nonce = match[1] if match else "0" * 16, os.urandom(32).hex()
        asked = f"GET /v1/proof?token={name}&nonce={nonce} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n"
        self.sock.sendall(asked.encode("ascii"))
        given = ""
        with contextlib.closing(http.client.HTTPResponse(self.sock, method="GET")) as answer:
            answer.begin()
            body = answer.read(MAX_ANSWER_BYTES)
            if answer.status >= 500:
                said = say("client.server_answered", status=Plain(answer.status), reason=answer.reason)
                raise WorldFailed(said, code="server_failed")
        with contextlib.suppress(ValueError, LookupError, TypeError):  # none of our servers answers like this
            given = str(json.loads(body)["data"]["proof"])
        if match is None:
            raise Refused(say("client.no_token", url=url), code="unauthorized")
        digest = hashlib.sha256(match[2].encode()).hexdigest()
        if not hmac.compare_digest(given.encode("utf-8", "replace"), proof_of(digest, nonce).encode()):
            raise WorldFailed(say("client.not_ours", url=url), code="no_server")


def proof_of(digest: str, nonce: str) -> str:
    """The server's answer: `digest` is what it stores of a token's secret."""
    return hmac.digest(digest.encode(), f"proof {nonce}".encode(), "sha256").hex()
