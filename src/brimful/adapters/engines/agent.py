"""The local engine on one node of a cluster: it runs this node's part of every lease.

Ray keeps it in an actor; the ssh engine keeps it at the far end of a connection. Lease folders and runners
outlive it, so the next agent on the node finds everything that happened.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines.devices import MOST_GPUS
from brimful.adapters.engines.lease_folders import facts
from brimful.adapters.engines.local import LocalEngine, starting
from brimful.adapters.files import make_folder, write_json
from brimful.errors import BrimfulError, Said
from brimful.files import write_whole
from brimful.fleet.events import MALFORMED
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.language.record import said_by_anybody
from brimful.scheduler.ports import Observation, Start

MOST_RANKS = 4096


class Part(NamedTuple):
    """One rank of a lease: everything its node must know about it."""

    start: Start  # its `parts` holds only this rank
    rank: int
    ranks: int
    devices: tuple[int, ...]  # in the node's numbering
    master: tuple[str, int]
    env: Mapping[str, str]  # the job's own; values may be secrets
    archive: bytes | None = None  # packed code
    store_env: Mapping[str, str] = {}
    skew_s: float = 0.0  # how far ahead this node's clock is


class Seen(NamedTuple):
    rank: int
    ranks: int
    devices: tuple[int, ...]
    observation: Observation


class Place(NamedTuple):
    """Where a lease's rank is in its gang, as its folder says."""

    rank: int
    ranks: int
    devices: tuple[int, ...]
    skew_s: float


class Greeting(NamedTuple):
    port: int  # a free port
    at_s: float  # by this node's clock


class _NodeEngine(LocalEngine):
    """Runs one rank, whose place in the gang was set by the caller."""

    parts: dict[str, Part]

    def _local_order(self, start: Start) -> dict[str, Any]:
        order: dict[str, Any] = super()._local_order(start)
        part = self.parts[start.lease]
        address, port = part.master
        order["env"] |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        order["env"]["BRIMFUL_WORLD_SIZE"] = str(part.ranks)
        rank = {**order["ranks"][0], "BRIMFUL_RANK": str(part.rank)}
        rank["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, part.devices))
        if part.ranks > 1:
            order["env"]["WORLD_SIZE"] = str(part.ranks)
            rank |= {"RANK": str(part.rank), "LOCAL_RANK": "0"}
        order["ranks"] = [rank]
        order["store_env"] = dict(part.store_env)
        if part.rank:
            order["store"] = ""  # the first rank's node sends; the others fetch what they find
            if self._store and not order["checkpoints_from"]:
                order["checkpoints_from"] = self.checkpoints(start.job.job)
        return order

    def checkpoint_folder(self, job: str) -> Path:
        """Without a store, nodes share checkpoints through a shared disk."""
        return super().checkpoint_folder(job) if self._store else self._root.parent / ".checkpoints" / job

    def _kept_env(self, job: Job) -> Mapping[str, str]:
        return next(part.env for part in self.parts.values() if part.start.job is job)

    def _code_of(self, job: Job) -> dict[str, str] | None:
        if not job.code:
            return None
        return {"archive": str(self._root / ".code" / f"{job.code}.tar"), "code": job.code}


class NodeAgent:
    """Every call is idempotent."""

    def __init__(self, root: str, node: Node, settings: Mapping[str, Any]) -> None:
        os.environ["BRIMFUL_DETACH"] = "1"  # the agent's parent may kill its children when it exits
        self._root = Path(root).expanduser() / node.node
        self._engine = _NodeEngine(self._root, [node], site=node.site, **settings)
        self._engine.parts = {}
        self.asked = time.monotonic()  # when an engine last called

    def greet(self) -> Greeting:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return Greeting(probe.getsockname()[1], time.time())

    def start(self, part: Part) -> BrimfulError | None:
        lease, folder = part.start.lease, self._root / part.start.lease
        try:
            with starting(lease, folder):
                make_folder(folder)
                if self._place(lease) is None:
                    own = {"rank": part.rank, "ranks": part.ranks, "devices": part.devices}
                    write_json(folder / "part.json", own | {"skew_s": part.skew_s})
        except BrimfulError as error:
            return error
        if part.archive is not None:
            (self._root / ".code").mkdir(exist_ok=True, mode=0o700)
            write_whole(self._root / ".code" / f"{part.start.job.code}.tar", part.archive, mode=0o600)
        self._engine.parts = {lease: part}
        failed = self._engine.start([part.start])
        self._engine.parts = {}
        return failed.get(lease)

    def begun(self, leases: Collection[str]) -> list[str]:
        """Leases that a start no longer changes: begun here, if only just, or told to stop."""
        return [lease for lease in leases if self._engine.has_begun(lease)]

    def stop(self, leases: Collection[str], grace_s: int) -> Mapping[str, BrimfulError]:
        return dict(self._engine.stop(list(leases), grace_s=grace_s))

    def leave(self, lease: str, grace_s: int, why: object) -> None:
        """The engine evicts the lease, if it has begun here. `why`: as for `give_up`."""
        if (self._root / lease / "part.json").exists():
            self.give_up(lease, grace_s, why)

    def give_up(self, lease: str, grace_s: int, why: object) -> None:
        """End it like a stop, but count it neither as ours nor as the job's failure. Later starts do nothing.

        `why`: the reason, as a record.
        """
        folder = self._root / lease
        if not (folder / "stop.json").exists():
            folder.mkdir(exist_ok=True, mode=0o700)
            write_json(folder / "given_up.json", {"why": why})
            self._engine.stop([lease], grace_s=grace_s)

    def observe(self, leases: Collection[str]) -> tuple[list[Seen], list[str], Said | None]:
        """News of the leases here; which leases live here at all; why nothing new should start here."""
        self.asked = time.monotonic()
        here = {lease: found for lease in leases if (found := self._place(lease)) is not None}
        # A lease that is still starting is not reported, but whoever assembles the gang needs it.
        told = {lease: Observation(lease=lease, state="waiting") for lease in here}
        told |= {each.lease: each for each in self._engine.observe(list(here))}
        seen = [self._seen(here[each.lease], each) for each in told.values()]
        return seen, self._engine.living(), self.under_notice()

    def under_notice(self) -> Said | None:
        """Why nothing new should start here."""
        return self._engine.under_notice()

    def _place(self, lease: str) -> Place | None:
        """None where it has none here, or what is there cannot be: its job may have written it."""
        said = facts(self._root / lease / "part.json") or {}
        try:
            rank, ranks, devices = int(said["rank"]), int(said["ranks"]), said.get("devices", ())
            found = Place(rank, ranks, tuple(map(int, devices)), float(said.get("skew_s", 0.0)))
        except MALFORMED:
            return None
        is_one = 0 <= rank < ranks <= MOST_RANKS and len(found.devices) <= MOST_GPUS
        return found if is_one and abs(found.skew_s) < 1 << 32 else None

    def _seen(self, part: Place, told: Observation) -> Seen:
        told, folder = replace(told, skew_s=part.skew_s), self._root / told.lease
        if told.state == "absent" and (folder / "stop.json").exists():  # its start comes too late
            told.state, told.cause = "ended", "stopped_by_us"
        given_up = facts(folder / "given_up.json")
        if given_up is not None and told.cause == "stopped_by_us":
            told.cause, told.exit_code = "preempted_by_engine", told.exit_code or None
            told.problem = said_by_anybody(given_up.get("why"))
        return Seen(part.rank, part.ranks, part.devices, told)

    def warn(self, lease: str, until_s: int | None) -> None:
        self._engine.warn(lease, until_s=until_s)

    def rank_of(self, lease: str) -> int | None:
        found = self._place(lease)
        return None if found is None else found.rank

    def log(self, lease: str, offset: int, limit: int) -> LogPiece:
        return self._engine.log(lease, offset=offset, limit=limit)

    def sample(self, lease: str) -> bytes | None:
        return self._engine.sample(lease)
