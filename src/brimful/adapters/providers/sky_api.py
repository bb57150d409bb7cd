"""SkyPilot's API server over HTTP: our requests, and its answers as plain values.

It answers every POST with a request id and carries the request out by itself; we poll for the outcome. A
machine's address comes in a pickle, which is read here without importing or calling anything.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import io
import json
import os
import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from brimful.adapters.engines.ssh.command import ADDRESS
from brimful.errors import WorldFailed
from brimful.language import os_words, say, verbatim

API_VERSION = 62  # of SkyPilot 0.14.1: a server that no longer supports it refuses with a reason
ANSWER_S = 30.0
MOST_BYTES = 16 << 20
SAID = 300  # characters of its message that we pass on: the end, where the reason is
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FIELDS = ("request_id", "name", "status", "created_at", "cluster_name")
_STRANGE = (ValueError, TypeError, KeyError, AttributeError, IndexError)


class Door(NamedTuple):
    """How to reach a machine by ssh."""

    host: str
    port: int
    user: str
    key: str  # the private key itself


class Cluster(NamedTuple):
    name: str
    status: str  # INIT, UP or STOPPED
    door: Door | None  # None: not known yet, or not reachable by plain ssh


class Asked(NamedTuple):
    """A request known to the server."""

    request: str
    kind: str  # launch, down, ...
    status: str
    cluster: str

    @property
    def is_active(self) -> bool:
        return self.status not in ("SUCCEEDED", "FAILED", "CANCELLED")


class _StaysHere(HTTPRedirectHandler):
    def redirect_request(self, *_asked: object) -> None:
        """The token goes only to this server."""
        return


class SkyApi:
    def __init__(self, address: str, *, user: str, token_env: str = "") -> None:
        """`user`: eight hex digits that own what we launch. `token_env`: the variable with the token."""
        self.address, self._token_env = address.rstrip("/"), token_env
        self._env = {"SKYPILOT_USER_ID": user, "SKYPILOT_USER": "brimful"}
        self._opener = build_opener(ProxyHandler({}), _StaysHere())

    # -- what is asked -----------------------------------------------------------------------------------

    def launch(self, cluster: str, task: Mapping[str, Any]) -> str:
        return self._post("/launch", task=json.dumps(task), cluster_name=cluster)  # JSON is YAML

    def down(self, cluster: str) -> str:
        return self._post("/down", cluster_name=cluster)

    def cancel(self, requests: Collection[str]) -> None:
        self._post("/api/cancel", request_ids=sorted(requests))

    def version(self) -> str:
        found = self._json("/api/health")
        return str(found.get("version", "?")) if isinstance(found, dict) else "?"

    def clusters(self, prefix: str) -> list[Cluster]:
        """Clusters whose name starts so, as the server last saw them: it refreshes every minute."""
        request = self._post("/status", all_users=True, include_credentials=True)
        status, answer = self._ask(f"/api/get?{urlencode({'request_id': request})}")
        if status != 200:
            raise self._failed(_reason(answer))
        try:
            rows = json.loads(answer["return_value"])
            return [_cluster(row) for row in rows if str(row["name"]).startswith(prefix)]
        except _STRANGE as error:
            raise self._failed(str(error)) from error

    def requests(self, prefix: str) -> list[Asked]:
        """Requests in progress for clusters whose name starts with the prefix."""
        return [each for each in self._requests() if each.cluster.startswith(prefix)]

    def requests_of(self, cluster: str) -> list[Asked]:
        """Everything it remembers about one cluster, newest first."""
        return self._requests(("cluster_name", cluster), ("all_status", "true"))

    def why(self, request: str) -> str:
        """What went wrong with a finished request."""
        _, answer = self._ask(f"/api/get?{urlencode({'request_id': request})}")
        return _reason(answer)

    # -- how ---------------------------------------------------------------------------------------------

    def _requests(self, *more: tuple[str, str]) -> list[Asked]:
        rows = self._json(f"/api/status?{urlencode([*(('fields', each) for each in _FIELDS), *more])}")
        try:
            rows = sorted(rows, key=lambda row: -float(row["created_at"]))
            return [
                Asked(
                    str(row["request_id"]),
                    str(row["name"]).removeprefix("sky."),
                    str(row["status"]),
                    str(row["cluster_name"] or ""),
                )
                for row in rows
            ]
        except _STRANGE as error:
            raise self._failed(str(error)) from error

    def _post(self, path: str, **body: Any) -> str:  # noqa: ANN401 - JSON
        status, answer = self._ask(path, {"env_vars": self._env, "override_skypilot_config": {}, **body})
        if status != 200 or not isinstance(answer, str):
            raise self._failed(_reason(answer))
        return answer

    def _json(self, path: str) -> Any:  # noqa: ANN401 - what the server says
        status, answer = self._ask(path)
        if status != 200:
            raise self._failed(_reason(answer))
        return answer

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The answer to a GET; for a POST, the id of the new request."""
        headers = {"X-SkyPilot-API-Version": str(API_VERSION), "Content-Type": "application/json"}
        if token := os.environ.get(self._token_env, "") if self._token_env else "":
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}{path}", data=data, headers=headers)  # noqa: S310 - http(s), checked
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                if body is not None:
                    return 200, answer.headers.get("X-SkyPilot-Request-ID")
                return 200, json.loads(answer.read(MOST_BYTES))
        except HTTPError as error:
            with error:
                return error.code, _told(error)
        except (URLError, OSError, http.client.HTTPException) as error:
            said = os_words(error) if isinstance(error, OSError) else verbatim(str(error))
            raise WorldFailed(say("adapters.sky_silent", address=self.address, why=said)) from error
        except ValueError as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> WorldFailed:
        return WorldFailed(say("adapters.sky_failed", address=self.address, why=verbatim(why[-SAID:])))


def _told(error: HTTPError) -> Any:  # noqa: ANN401 - what the server says
    try:
        told = json.loads(error.read(MOST_BYTES))
    except (ValueError, OSError, http.client.HTTPException):
        return f"HTTP {error.code}"
    return told.get("detail", told) if isinstance(told, dict) else told


def _reason(answer: Any) -> str:  # noqa: ANN401 - what the server says
    """The message of a failed request, in one line without colours; or whatever else was said."""
    told: object = answer
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        try:
            error = json.loads(answer["error"]) or {}
            told = error.get("message") or answer.get("status")
        except _STRANGE:
            told = answer["error"]
    words = " ".join(_COLOUR.sub("", str(told)).split()) or "-"
    return words if len(words) <= SAID else f"…{words[-SAID:]}"


def _cluster(row: Mapping[str, Any]) -> Cluster:
    return Cluster(str(row["name"]), str(row["status"]), _door(row))


def _door(row: Mapping[str, Any]) -> Door | None:
    """None for anything but a public address, a user and a key: this goes into an ssh config."""
    with_key = row.get("credentials") or {}
    try:
        handle = _plain(base64.b64decode(row["handle"], validate=True))
        (_, host), *_ = handle["stable_internal_external_ips"]
        door = Door(
            str(host),
            int((handle["stable_ssh_ports"] or [22])[0]),
            str(with_key["ssh_user"]),
            str(with_key["ssh_private_key_content"]).strip() + "\n",
        )
    except (*_STRANGE, binascii.Error, pickle.UnpicklingError, EOFError):
        return None
    is_plain = ADDRESS.fullmatch(door.host) and "@" not in door.host and USER.fullmatch(door.user)
    is_key = door.key.startswith("-----BEGIN ") and 0 < door.port < 65536
    return door if is_plain and is_key and not with_key.get("ssh_proxy_command") else None


class _Inert:
    """Stands in for every SkyPilot object: it keeps what it was given and does nothing."""

    def __init__(self, *_given: object) -> None:
        self.kept: object = None

    def __new__(cls, *_given: object) -> _Inert:
        made = object.__new__(cls)
        made.kept = None
        return made

    def __setstate__(self, state: object) -> None:
        self.kept = state

    def __setitem__(self, _key: object, _value: object) -> None:
        """For dict subclasses."""

    def append(self, _each: object) -> None:
        """For list subclasses."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> type[_Inert]:
        return _Inert


def _plain(data: bytes) -> Mapping[str, Any]:
    """The fields of the pickled object."""
    found = _Unpickler(io.BytesIO(data)).load()
    fields: Sequence[Any] | Mapping[str, Any] | None = getattr(found, "kept", None)
    if not isinstance(fields, dict):
        raise TypeError(type(found).__name__)
    return fields
