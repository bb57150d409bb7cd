"""How commands talk to a running brimful: its public API, over loopback, with the owner's token."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from brimful.errors import BadInput, BrimfulError, NotFound, Refused, WorldFailed
from brimful.server.settings import Settings, read_settings
from brimful.server.words import printable

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
    """One server. Found by BRIMFUL_URL, else by what the server that holds the data folder wrote into it.

    The token goes to nobody else: a server that has ended leaves its address behind, and whoever listens
    there next may be anybody.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or read_settings()
        named = os.environ.get("BRIMFUL_URL", "").rstrip("/")
        announced = None if named else _announced_url(self._settings)
        self._is_ours = bool(named or announced)
        self.url = named or announced or f"http://{self._settings.host}:{self._settings.port}"
        if not self.url.startswith(("http://", "https://")):
            raise BadInput(f"BRIMFUL_URL is {self.url[:100]!r}", hint="write it as http://127.0.0.1:8642")
        # A proxy from the environment has no business between us and loopback.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, path: str, *, as_owner: bool = False, **query: object) -> Any:  # noqa: ANN401 - JSON
        url = f"{self.url}{path}{'?' + urlencode(query) if query else ''}"
        return self._call(Request(url, headers=self._owner() if as_owner else {}))  # noqa: S310

    def post(self, path: str, body: dict[str, object] | None = None) -> Any:  # noqa: ANN401 - JSON
        headers = {"content-type": "application/json", **self._owner()}
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

    def _owner(self) -> dict[str, str]:
        token = os.environ.get("BRIMFUL_TOKEN") or (self._kept_token() if self._is_ours else "")
        if not token.isascii() or not token.isprintable():
            raise BadInput("the token holds characters that no token has", hint="check BRIMFUL_TOKEN")
        return {"authorization": f"Bearer {token}"} if token else {}

    def _kept_token(self) -> str:
        try:
            return self._settings.token_file.read_text("utf-8").strip()
        except (OSError, ValueError):
            return ""  # the server will say what is missing


def _announced_url(settings: Settings) -> str | None:
    """Where the server is that holds our data folder; None where none does, whatever an old file says."""
    try:
        told = json.loads(settings.server_file.read_text(encoding="utf-8"))
        url, pid = str(told["url"]), int(told["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if _is_held(settings.lock_file) and _is_alive(pid) else None


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return pid > 0


def job_path(name: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(name, safe='')}{rest}"


def _refusal(error: HTTPError) -> BrimfulError:
    """The server's own words, as the same kind of error they were there."""
    try:
        told = json.load(error)["error"]
        problem, hint, code = (printable(str(told[key])) for key in ("problem", "hint", "code"))
    except (ValueError, KeyError, TypeError):
        problem, hint, code = f"the server answered {error.code} {error.reason}", "", "server_failed"
    if error.code == 401:
        hint = hint or "run the CLI as the user who started the server, or set BRIMFUL_TOKEN"
    return BY_STATUS.get(error.code, WorldFailed)(problem, hint=hint, code=code)
