"""How commands talk to a running brimful: its public API, over loopback, with the owner's token."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from brimful.errors import BadInput, BrimfulError, NotFound, Refused, WorldFailed
from brimful.server.settings import Settings, read_settings

TIMEOUT_S = 30
BY_STATUS: dict[int, type[BrimfulError]] = {
    400: BadInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    409: Refused,
    422: BadInput,
}


class Client:
    """One server. Found by BRIMFUL_URL, else by what a server wrote into the data folder."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or read_settings()
        self.url = os.environ.get("BRIMFUL_URL", "").rstrip("/") or self._announced_url()
        if not self.url.startswith(("http://", "https://")):
            raise BadInput(f"BRIMFUL_URL is {self.url[:100]!r}", hint="write it as http://127.0.0.1:8642")
        # A proxy from the environment has no business between us and loopback.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 - JSON
        return self._call(Request(f"{self.url}{path}{'?' + urlencode(query) if query else ''}"))  # noqa: S310

    def post(self, path: str, body: dict[str, object] | None = None) -> Any:  # noqa: ANN401 - JSON
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token()}"}
        payload = json.dumps(body or {}).encode()
        return self._call(Request(f"{self.url}{path}", data=payload, headers=headers, method="POST"))  # noqa: S310

    def _call(self, request: Request) -> Any:  # noqa: ANN401 - JSON
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise _refusal(error) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise WorldFailed(
                f"no brimful answers at {self.url} ({reason})",
                hint="start one with `make run` or `brimful up`, or set BRIMFUL_URL to where one runs",
                code="no_server",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise WorldFailed(
                f"what answers at {self.url} is not brimful", hint="set BRIMFUL_URL", code="no_server"
            ) from error

    def _announced_url(self) -> str:
        try:
            return str(json.loads(self._settings.server_file.read_text(encoding="utf-8"))["url"])
        except (OSError, ValueError, KeyError):
            return f"http://{self._settings.host}:{self._settings.port}"

    def _token(self) -> str:
        try:
            return os.environ.get("BRIMFUL_TOKEN") or self._settings.token_file.read_text("utf-8").strip()
        except OSError:
            return ""  # the server will say what is missing


def job_path(name: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(name, safe='')}{rest}"


def _refusal(error: HTTPError) -> BrimfulError:
    """The server's own words, as the same kind of error they were there."""
    try:
        told = json.load(error)["error"]
        problem, hint, code = str(told["problem"]), str(told["hint"]), str(told["code"])
    except (ValueError, KeyError, TypeError):
        problem, hint, code = f"the server answered {error.code} {error.reason}", "", "server_failed"
    if error.code == 401:
        hint = hint or "run the CLI as the user who started the server, or set BRIMFUL_TOKEN"
    return BY_STATUS.get(error.code, WorldFailed)(problem, hint=hint, code=code)
