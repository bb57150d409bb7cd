"""A real OpenID Connect provider in a process of its own, which insists on PKCE and a nonce.

    python oidc_provider.py '{"alice": {"email": "alice@example.org", "groups": ["gpu-vision"]}}'

oidc-provider-mock checks codes and redirect addresses and signs the ID tokens. It leaves PKCE out, so that is
added around it here: a code is good only with the verifier of its challenge.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import oidc_provider_mock
import werkzeug.serving


class WithPkce:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._challenges: dict[str, str] = {}  # by code

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        path, asked = environ["PATH_INFO"], parse_qs(environ.get("QUERY_STRING", ""))
        if path == "/oauth2/authorize":
            if asked.get("code_challenge_method") != ["S256"] or "nonce" not in asked:
                return self._refuse(start)

            def remember(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
                there = urlsplit(dict(headers).get("Location", ""))
                for code in parse_qs(there.query).get("code", []):
                    self._challenges[code] = asked["code_challenge"][0]
                return start(status, headers, *more)

            return self._app(environ, remember)
        if path == "/oauth2/token":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            form = parse_qs(body.decode())
            digest = hashlib.sha256(form.get("code_verifier", [""])[0].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if self._challenges.pop(form.get("code", [""])[0], None) != challenge:
                return self._refuse(start)
        return self._app(environ, start)

    @staticmethod
    def _refuse(start: Any) -> list[bytes]:
        start("400 Bad Request", [("content-type", "application/json")])
        return [b'{"error": "invalid_request"}']


if __name__ == "__main__":
    users = [
        oidc_provider_mock.User(sub=sub, claims=claims) for sub, claims in json.loads(sys.argv[1]).items()
    ]
    app = oidc_provider_mock.app(require_nonce=True, user_claims=users)
    server = werkzeug.serving.make_server("127.0.0.1", 0, WithPkce(app), threaded=True)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
