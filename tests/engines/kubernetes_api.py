"""An API server of Kubernetes in memory, for the engine's real client.

kmock takes the requests apart and serves what is the same for all. What the engine relies on beyond that is
here, as the API's documentation has it: versions of objects and conflicts, JSON patches whose tests fail with
422, selectors, pages, finalizers, a Pod's grace, what of a Pod may be changed, and logs. Every object that is
created must pass the published schema of a release.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp.web
import jsonpatch
import kmock
import kubernetes_validate

from tests.patience import PATIENCE_S

Thing = dict[str, Any]
NAMESPACED = ("pods", "configmaps", "secrets", "services")
OVER = ("Succeeded", "Failed")


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message
        super().__init__(message)


def moment(ahead_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


class World:
    """The objects, by kind, namespace and name. Whoever changes one takes the lock."""

    def __init__(self, *, version: str = "1.28") -> None:
        self.version = version
        self.lock = threading.RLock()
        self.things: dict[tuple[str, str, str], Thing] = {}
        self.away = False
        self.logs: Callable[[str, str], bytes] = lambda _pod, _since: b""
        self._last = 0

    # -- what the API does -------------------------------------------------------------------------------

    def create(self, kind: str, space: str, thing: Thing) -> Thing:
        name = thing["metadata"]["name"]
        with self.lock:
            if (kind, space, name) in self.things:
                raise Refused(409, f'{kind} "{name}" already exists')
            try:
                kubernetes_validate.validate(thing, self.version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Refused(422, str(error.message)) from error
            made = copy.deepcopy(thing)
            stamped = {"namespace": space, "uid": str(uuid.uuid4()), "creationTimestamp": moment()}
            made["metadata"] |= {key: value for key, value in stamped.items() if value}
            if kind == "pods":
                made.setdefault("status", {})["phase"] = "Pending"
            return self._store(kind, space, made)

    def _store(self, kind: str, space: str, thing: Thing) -> Thing:
        self._last += 1
        thing["metadata"]["resourceVersion"] = str(self._last)
        self.things[kind, space, thing["metadata"]["name"]] = thing
        return copy.deepcopy(thing)

    def get(self, kind: str, space: str, name: str) -> Thing:
        with self.lock:
            if (kind, space, name) not in self.things:
                raise Refused(404, f'{kind} "{name}" not found')
            return self.things[kind, space, name]

    def replace(self, kind: str, space: str, name: str, thing: Thing) -> Thing:
        with self.lock:
            old = self.get(kind, space, name)
            if thing["metadata"].get("resourceVersion", "") != old["metadata"]["resourceVersion"]:
                raise Refused(
                    409, "the object has been modified; please apply your changes to the latest version"
                )
            kept = {key: old["metadata"][key] for key in ("uid", "creationTimestamp", "namespace")}
            return self._store(
                kind, space, {**copy.deepcopy(thing), "metadata": {**thing["metadata"], **kept}}
            )

    def patch(self, kind: str, space: str, name: str, steps: object) -> Thing:
        if not isinstance(steps, list):
            raise Refused(415, "only JSON patches are served here")
        with self.lock:
            old = self.get(kind, space, name)
            try:
                new = jsonpatch.apply_patch(copy.deepcopy(old), steps)
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                raise Refused(422, str(error)) from error
            if kind == "pods" and _fixed(new) != _fixed(old):
                raise Refused(422, "pod updates may not change fields other than ...")
            if len(_gates(new)) > len(_gates(old)):
                raise Refused(422, "only deletion of scheduling gates is allowed")
            found = self._store(kind, space, new)
            self.collect(kind, space, name)
            return found

    def delete(self, kind: str, space: str, name: str, *, grace_s: int | None = None) -> Thing:
        with self.lock:
            thing = self.get(kind, space, name)
            if kind == "pods":
                asked = thing["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
                idle = not thing["spec"].get("nodeName") or thing["status"].get("phase") in OVER
                grace_s = 0 if idle else asked
                before = thing["metadata"].get("deletionGracePeriodSeconds")
                if before is None or grace_s < before:
                    thing["metadata"]["deletionTimestamp"] = moment(grace_s)
                    thing["metadata"]["deletionGracePeriodSeconds"] = grace_s
                    thing["kill_at"] = time.monotonic() + grace_s
            else:
                thing["metadata"]["deletionTimestamp"] = moment()
            found = self._store(kind, space, thing)
            self.collect(kind, space, name)
            return found

    def collect(self, kind: str, space: str, name: str) -> None:
        """Take it away once it is deleted, nothing holds it, and nothing of it can run."""
        thing = self.get(kind, space, name)
        meta = thing["metadata"]
        may_run = (
            kind == "pods" and thing["spec"].get("nodeName") and thing["status"].get("phase") not in OVER
        )
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not may_run:
            del self.things[kind, space, name]

    def list(self, kind: str, space: str, query: dict[str, str]) -> Thing:
        with self.lock:
            found = [copy.deepcopy(thing) for thing in self.all(kind, space)]
        found = [thing for thing in found if _selected(thing, query)]
        first, most = int(query.get("continue", 0)), int(query.get("limit", len(found) or 1))
        rest = len(found) > first + most
        at = {"continue": str(first + most)} if rest else {}
        return {
            "kind": "List",
            "metadata": {"resourceVersion": "1", **at},
            "items": found[first : first + most],
        }

    def all(self, kind: str, space: str = "") -> Iterator[Thing]:
        for (its_kind, its_space, _), thing in list(self.things.items()):
            if its_kind == kind and space in ("", its_space):
                yield thing

    def touch(self, thing: Thing) -> None:
        """It was changed by a part of the cluster."""
        self._last += 1
        thing["metadata"]["resourceVersion"] = str(self._last)


def _gates(pod: Thing) -> list[Thing]:
    return pod.get("spec", {}).get("schedulingGates") or []


def _fixed(pod: Thing) -> Thing:
    """Of a Pod what its owner may never change, as far as anybody here tries."""
    return {key: value for key, value in pod["spec"].items() if key not in ("schedulingGates", "nodeName")}


def _selected(thing: Thing, query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
    if any(labels.get(key) != value for key, value in wanted):
        return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        path, differs, value = part.partition("!=")
        assert differs, part
        found: Any = thing
        for key in path.split("."):
            found = (found or {}).get(key)
        if (found or "") == value:
            return False
    return True


class ApiServer(kmock.KubernetesScaffold):  # type: ignore[misc]  # it is not typed here
    """Answers the official client from a `World`."""

    world: World
    asked: set[tuple[str, str, str]]  # namespace, kind and verb of every request, as RBAC knows them

    async def _handle(self, request: Any) -> aiohttp.web.StreamResponse:
        world, raw = self.world, request._raw_request
        if world.away:
            raw.transport.abort()
            return aiohttp.web.Response(status=503)
        if request.resource is None or request.resource.plural is None:
            answer: aiohttp.web.StreamResponse = await super()._handle(request)
            return answer
        kind, space, name = request.resource.plural, request.namespace or "", request.name or ""
        assert not name or space or kind == "nodes", "only lists go over all namespaces"
        self._note(request, kind, space, name)
        try:
            if request.subresource == "log":
                world.get(kind, space, name)
                since = request.params.get("sinceTime", "")
                most = int(request.params.get("limitBytes", 1 << 30))
                return aiohttp.web.Response(body=world.logs(name, since)[:most], content_type="text/plain")
            return aiohttp.web.json_response(self._answer(request, kind, space, name))
        except Refused as error:
            body = {"kind": "Status", "code": error.status, "message": error.message}
            return aiohttp.web.json_response(body, status=error.status)

    def _note(self, request: Any, kind: str, space: str, name: str) -> None:
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        read = "get" if name else "list"
        of = f"{kind}/{request.subresource}" if request.subresource else kind
        self.asked.add((space, of, verbs.get(str(request.method.value), read)))

    def _answer(self, request: Any, kind: str, space: str, name: str) -> Thing:
        world, method = self.world, str(request.method.value)
        if method == "GET":
            return (
                copy.deepcopy(world.get(kind, space, name))
                if name
                else world.list(kind, space, request.params)
            )
        if method == "POST":
            return world.create(kind, space, request.data)
        if method == "PUT":
            return world.replace(kind, space, name, request.data)
        if method == "PATCH":
            assert request.headers["Content-Type"] == "application/json-patch+json"
            return world.patch(kind, space, name, request.data)
        assert method == "DELETE", method
        grace = request.params.get("gracePeriodSeconds")
        return world.delete(kind, space, name, grace_s=None if grace is None else int(grace))


class Served:
    """The server in a thread of its own, on loopback."""

    def __init__(self, world: World, *, version: str = "v1.28.0") -> None:
        self.url = ""
        self.asked: set[tuple[str, str, str]] = set()
        self._version = version
        self._loop = asyncio.new_event_loop()
        self._up, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(world,), daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE_S)

    def _run(self, world: World) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(world))
        self._loop.close()

    async def _serve(self, world: World) -> None:
        handler = ApiServer()
        handler.world, handler.asked = world, self.asked
        major, minor = self._version.removeprefix("v").split(".")[:2]
        handler["get /version"] << {"major": major, "minor": minor, "gitVersion": self._version}
        async with kmock.Server(handler) as server:
            self.url = str(server.url)
            self._up.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
