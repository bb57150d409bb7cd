"""Ray as a site: our end of the pipe to the bridge, and what must be kept here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.code import CodeStore
from brimful.adapters.engines.lease_folders import LeaseFolders, facts, failing
from brimful.adapters.engines.ray.bridge import Settings
from brimful.adapters.files import identity, write_json
from brimful.adapters.objects.store import below
from brimful.adapters.sites import Site, Surroundings, needs_extra, options_of
from brimful.errors import BadInput, Said, WorldFailed
from brimful.fleet.state import Node
from brimful.language import say, verbatim
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

BEGIN_S = 90.0  # for a bridge to find the cluster
ANSWER_S = 90.0
STRAY_S = 60.0  # a record of a lease that nobody has asked about for this long is removed
READ_S = 5.0  # for a turn of who reads a log: each waits in a thread that others need


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Keys of a site with `engine = "ray"`."""

    gpu: str = ""  # GPU type on nodes without an accelerator type
    folder: str = "~/.brimful/ray"  # on each node: leases, logs, checkpoints
    python: str = ""  # with Ray and brimful, to talk to the cluster; empty: the server's own
    node_ip: str = ""  # our address as the cluster sees it; empty: Ray detects it


class RayEngine(LeaseFolders):
    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        python: str = "",
        store: str = "",
        store_env: Mapping[str, str] | None = None,
        code: CodeStore | None = None,
        through: Sequence[str] = (),
    ) -> None:
        """`through`: a command that runs the bridge elsewhere, such as in a network namespace."""
        super().__init__(
            folder,
            site=settings.node.site,
            log_bytes=0,  # each node's agent gets it in its settings
            code=code,
            runs_as=None,
            store=store,
            store_env=store_env,
        )
        self._settings = settings
        self._python = python or sys.executable
        self._command = [
            *through,
            self._python,
            "-P",
            "-m",
            "brimful.adapters.engines.ray.bridge",
        ]
        self._lock, self._reading = threading.RLock(), threading.Lock()
        self._pipe: Connection | None = None
        self._told: Settings | None = None  # what the bridge was started with
        self._process: subprocess.Popen[bytes] | None = None
        self._last: list[Node] = []
        self._closed: Mapping[str, Said] = {}

    def nodes(self) -> Sequence[Node]:
        found, self._closed = self._ask("nodes")
        used, wanted = self._used_folder(), self._settings.folder
        if used != wanted:
            self._closed = {**self._closed, "": say("adapters.ray_folder_waits", used=used, wanted=wanted)}
        if found != self._last:
            self._last = found
        return self._last

    def start(self, starts: Sequence[Start]) -> Failures:
        failed: dict[str, Any] = {}
        asked = []
        for each in starts:
            try:
                asked.append((each, self._kept_env(each.job), self._archive(each.job)))
            except CannotStart as error:
                failed[each.lease] = error
        for each, *_ in asked:
            with failing("adapters.cannot_keep_environment", job=each.job.job):
                self._placed(each.lease).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                facts = {"nodes": [node for node, _ in each.parts], "folder": self._used_folder()}
                write_json(self._placed(each.lease), facts)
        return {**failed, **(self._ask("start", asked, dict(self._store_env)) if asked else {})}

    def _placed(self, lease: str) -> Path:
        """The file that records a lease's nodes: a head that lost its memory cannot tell."""
        return self._root / ".placed" / f"{lease}.json"

    def _used_folder(self) -> str:
        """Leases stay where they began: a new `folder` counts once none of them is left."""
        for path in sorted(self._placed("x").parent.glob("*.json")):
            if folder := (facts(path) or {}).get("folder"):
                return str(folder)
        return self._settings.folder

    def _forget_strays(self, leases: Collection[str]) -> None:
        """Records of leases that ended without an observation; one just ordered may not be asked for yet."""
        for path in self._placed("x").parent.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if path.stem not in leases and time.time() - path.stat().st_mtime > STRAY_S:
                    path.unlink()

    def _nodes_of(self, lease: str) -> list[str]:
        return [str(each) for each in (facts(self._placed(lease)) or {}).get("nodes", ())]

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        found: Failures = self._ask("stop", list(leases), grace_s)
        return found

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        found: list[Observation] = self._ask("observe", {lease: self._nodes_of(lease) for lease in leases})
        for each in found:
            if each.state == "ended":
                self._placed(each.lease).unlink(missing_ok=True)
        self._forget_strays(leases)
        return found

    def complaints(self) -> Mapping[str, Said]:
        return self._closed

    def warn(self, lease: str, *, until_s: int | None) -> None:
        self._ask("warn", lease, until_s)

    def checkpoints(self, job: str) -> str:
        """Without a store, only sites that share the nodes' folder can fetch it."""
        return below(self._store, job) if self._store else f"{self._used_folder()}/.checkpoints/{job}"

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        found: LogPiece | None = self._read("log", lease, rank, offset, limit)
        if found is None:
            raise WorldFailed(say("adapters.ray_no_log", lease=lease, site=self.site))
        return found

    def sample(self, lease: str) -> bytes | None:
        found: bytes | None = self._read("sample", lease)
        return found

    # -- the pipe ----------------------------------------------------------------------------------------

    def _read(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """For people, one at a time: the site's worker never waits for more than one log reader."""
        if not self._reading.acquire(timeout=READ_S):
            raise self._failed(f"no answer within {READ_S:.0f} s")
        try:
            return self._ask(method, *arguments, turn_s=READ_S)
        finally:
            self._reading.release()

    def _ask(self, method: str, *arguments: object, turn_s: float = -1) -> Any:  # noqa: ANN401 - the bridge method's result
        """`turn_s`: how long to wait for the pipe, which the worker and log readers share."""
        if not self._lock.acquire(timeout=turn_s):
            raise self._failed(f"no answer within {turn_s:.0f} s")
        try:
            settings = self._settings._replace(folder=self._used_folder())
            if settings != self._told:
                self.close()
            if self._pipe is None:
                self._begin(settings)
            assert self._pipe is not None
            try:
                self._pipe.send((method, arguments))
            except OSError as error:
                self.close()
                raise self._failed(str(error)) from error
            kind, found = self._answer(ANSWER_S)
            if kind == "failed":
                raise self._failed(found)
            return found
        finally:
            self._lock.release()

    def _begin(self, settings: Settings) -> None:
        ours, theirs = Pipe()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise self._failed(str(error)) from error
        self._pipe, self._told = ours, settings
        with contextlib.suppress(BrokenPipeError):  # it has ended: its last words say why
            self._pipe.send(settings)
        kind, why = self._answer(BEGIN_S)
        if kind == "failed":
            self.close()
            raise self._failed(why)

    def _answer(self, within_s: float) -> tuple[str, Any]:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(within_s):
                raise EOFError(f"no answer within {within_s:.0f} s")
            found: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.close()
            ended = say("adapters.ray_bridge_ended", python=self._python)
            raise self._failed(str(error) or ended) from error
        return found

    def _failed(self, why: str | Said) -> WorldFailed:
        said = verbatim(why) if isinstance(why, str) else why
        values = {"site": self.site, "address": self._settings.address, "why": said}
        return WorldFailed(say("adapters.ray_failed", **values), code="ray_failed")

    def close(self) -> None:
        """Ends the bridge; the cluster and its jobs keep running."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def ray_site(site: Site, given: Surroundings) -> RayEngine:
    options = options_of(site, RayOptions)
    if not site.address:
        raise BadInput(say("adapters.ray_needs_address", site=site.site))
    if not options.python:
        needs_extra(site, "ray")
    given.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # holds its identity
    node = Node(
        site=site.site,
        node="",
        gpu=options.gpu,
        gpus=0,
        microusd_per_gpu_hour=given.price_of(site),
        declared=False,
        tier=site.tier,
        owner=site.owner,
        chosen_by="count",
        microusd_per_gib=site.microusd_per_gib,
    )
    settings = Settings(
        site.address,
        f"brimful-{identity(given.folder)[:12]}",
        options.folder,
        node,
        {"log_bytes": given.log_bytes, "store": site.checkpoints, "notices": site.notices},
        options.node_ip,
    )
    return RayEngine(
        given.folder,
        settings,
        python=options.python,
        store=site.checkpoints,
        store_env=given.store_env_of(site),
        code=given.code,
    )
