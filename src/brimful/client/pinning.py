"""https to the one server whose certificate we know.

A server writes the hash of its certificate into its data folder, which only its owner can read. With that,
the certificate needs no authority and no matching name: a self-signed one for any name will do.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
from typing import Any
from urllib.request import HTTPSHandler, Request

from brimful.errors import WorldFailed
from brimful.language import say


class PinnedHandler(HTTPSHandler):
    """Talks only to that certificate; any other gets not a single byte."""

    def __init__(self, sha256: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # identity is checked in `connect`, and more strictly
        super().__init__(context=context)
        self._pinned_context, self._sha256 = context, sha256

    def https_open(self, req: Request) -> Any:  # noqa: ANN401 - urllib's own type
        def connection(host: str, **more: Any) -> _Pinned:  # noqa: ANN401
            return _Pinned(host, sha256=self._sha256, context=self._pinned_context, **more)

        return self.do_open(connection, req)


class _Pinned(http.client.HTTPSConnection):
    def __init__(self, host: str, *, sha256: str, **more: Any) -> None:  # noqa: ANN401
        super().__init__(host, **more)
        self._sha256 = sha256

    def connect(self) -> None:
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).hexdigest() != self._sha256:
            self.close()
            url = f"https://{self.host}:{self.port}"
            raise WorldFailed(say("client.other_certificate", url=url), code="no_server")
