"""Requests to the API server through the official client; its errors become ours.

Answers stay JSON: with thousands of Pods, the client's own classes cost more than the request.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from brimful.errors import WorldFailed
from brimful.language import say, verbatim

LEAST = (1, 27)  # the first with scheduling gates enabled by default
CONNECT_S, ANSWER_S = 3.0, 15.0
PAGE = 500
GONE, CONFLICT, INVALID = 404, 409, 422
REJECTED = (400, 403, INVALID)
# For a log: the Pod has not started, does not exist, or its node does not answer.
NO_LOG = (400, GONE, 500, 502, 503, 504)

Thing = dict[str, Any]  # a Kubernetes object
Query = Sequence[tuple[str, str]]


class Rejected(WorldFailed):
    """The server understood the request and refused it: a quota, a policy or an invalid object."""


class Api:
    """One namespace of one cluster. Connects on first use."""

    def __init__(self, *, site: str, kubeconfig: str, context: str, namespace: str) -> None:
        self._site, self._kubeconfig, self._context = site, kubeconfig, context
        self.namespace = namespace
        self._lock = threading.Lock()
        self._client: Any = None

    # -- verbs -------------------------------------------------------------------------------------------

    def nodes(self) -> list[Thing]:
        return self._all("/api/v1/nodes")

    def bound_pods(self) -> list[Thing]:
        """Everyone's Pods that are bound to a node and not over."""
        which = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        return self._all("/api/v1/pods", [("fieldSelector", which)])

    def everybodys_pods(self) -> list[Thing]:
        return self._all("/api/v1/pods")

    def pods(self, selector: str) -> list[Thing]:
        return self._all(self._path("pods"), [("labelSelector", selector)])

    def records(self, selector: str) -> list[Thing]:
        return self._all(self._path("configmaps"), [("labelSelector", selector)])

    def record(self, name: str) -> Thing | None:
        return self._json("GET", self._path("configmaps", name), none_on=(GONE,))

    def create(self, thing: Thing) -> Thing | None:
        """None: the name already exists."""
        return self._json("POST", self._path(f"{thing['kind'].lower()}s"), body=thing, none_on=(CONFLICT,))

    def replace_record(self, thing: Thing) -> Thing | None:
        """None: it was changed in the meantime."""
        path = self._path("configmaps", thing["metadata"]["name"])
        return self._json("PUT", path, body=thing, none_on=(GONE, CONFLICT))

    def patch_pod(self, name: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """A JSON patch: the other kinds merge lists instead of shortening them. 422: already applied."""
        kind, done = "application/json-patch+json", (GONE, CONFLICT, INVALID)
        self._json("PATCH", self._path("pods", name), body=list(steps), content=kind, none_on=done)

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> None:
        query = [] if grace_s is None else [("gracePeriodSeconds", str(grace_s))]
        self._json("DELETE", self._path(kind, name), query=query, none_on=(GONE, CONFLICT))

    def log(self, pod: str, *, since: str, limit_bytes: int) -> bytes:
        """Lines with timestamps; empty if there is no log."""
        query = [("timestamps", "true"), ("limitBytes", str(limit_bytes))]
        query += [("sinceTime", since)] if since else []
        return self._ask("GET", f"{self._path('pods', pod)}/log", query=query, none_on=NO_LOG) or b""

    # -- how ---------------------------------------------------------------------------------------------

    def _path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def _all(self, path: str, query: Query = ()) -> list[Thing]:
        """In pages, which the server keeps consistent."""
        found: list[Thing] = []
        at = ""
        while True:
            paged = [*query, ("limit", str(PAGE)), *([("continue", at)] if at else [])]
            answer = self._json("GET", path, query=paged) or {}
            found += answer.get("items") or []
            at = (answer.get("metadata") or {}).get("continue") or ""
            if not at:
                return found

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content: str = "application/json",
        none_on: Sequence[int] = (),
    ) -> Thing | None:
        found = self._ask(method, path, query=query, body=body, content=content, none_on=none_on)
        if found is None:
            return None
        try:
            answer: Thing = json.loads(found)
        except ValueError as error:
            raise self._failed(f"not JSON: {found[:80]!r}") from error
        return answer

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content: str = "application/json",
        none_on: Sequence[int] = (),
    ) -> bytes | None:
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._send(self._connected(), method, path, query=query, body=body, content=content)
            found: bytes = answer.data or b""
        except ConfigException as error:
            said = say("kubernetes.no_config", site=self._site, why=verbatim(str(error)[:300]))
            raise WorldFailed(said, code="kubernetes_failed") from error
        except (HTTPError, OSError, ValueError) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if answer.status in none_on:
            return None
        if not 200 <= answer.status < 300:
            kind = Rejected if answer.status in REJECTED else WorldFailed
            raise self._failed(f"{answer.status} {_message_of(found)}", kind)
        return found

    @staticmethod
    def _send(
        client: Any,  # noqa: ANN401 - the official client has no types
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content: str = "application/json",
    ) -> Any:  # noqa: ANN401
        """Uses the client's pool and credentials, which it renews. Its higher layers differ by release."""
        from urllib3 import Timeout

        headers = {"Accept": "application/json, */*", "Content-Type": content}
        for each in client.configuration.auth_settings().values():
            if each["in"] == "header":
                headers[each["key"]] = each["value"]
        return client.rest_client.pool_manager.request(
            method,
            client.configuration.host + path + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers=headers,
            timeout=Timeout(connect=CONNECT_S, read=ANSWER_S),
            retries=False,  # the site's worker retries by itself
        )

    def _connected(self) -> Any:  # noqa: ANN401
        with self._lock:
            if self._client is None:
                made = self._connect()
                answer = self._send(made, "GET", "/version")
                if answer.status != 200:
                    raise self._failed(f"{answer.status} /version")
                self._refuse_old(json.loads(answer.data))
                self._client = made
            return self._client

    def _connect(self) -> Any:  # noqa: ANN401
        from kubernetes import client, config

        settings = client.Configuration()
        own = {"client_configuration": settings}
        if self._kubeconfig or self._context:
            file, context = self._kubeconfig or None, self._context or None
            config.load_kube_config(file, context=context, persist_config=False, **own)
        else:
            try:
                config.load_incluster_config(**own)
            except config.ConfigException:
                config.load_kube_config(persist_config=False, **own)
        return client.ApiClient(settings)

    def _refuse_old(self, version: Mapping[str, Any]) -> None:
        digits = [re.match(r"\d+", str(version.get(key, ""))) for key in ("major", "minor")]
        found = tuple(int(each[0]) for each in digits if each)
        if len(found) < 2 or found < LEAST:
            said = say(
                "kubernetes.too_old",
                site=self._site,
                version=verbatim(str(version.get("gitVersion"))[:40]),
                least=".".join(map(str, LEAST)),
            )
            raise WorldFailed(said, code="kubernetes_too_old")

    def _failed(self, why: str, kind: type[WorldFailed] = WorldFailed) -> WorldFailed:
        said = say("kubernetes.failed", site=self._site, why=verbatim(why[:300]))
        return kind(said, code="kubernetes_failed")


def _message_of(answer: bytes) -> str:
    """What the server said was wrong."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
