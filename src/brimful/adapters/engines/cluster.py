"""Shared by engines on top of another cluster manager: GPUs by count, and other users beside us."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict, Unpack

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.job_users.users import JobUsers
from brimful.adapters.engines.lease_folders import LeaseFolders
from brimful.adapters.sites import Site
from brimful.errors import Said
from brimful.fleet.state import Node

HELD_S = 60.0  # a node where a lease was kept waiting is not offered again for this long


class Given(TypedDict, total=False):
    """What the server passes to each of them."""

    microusd_per_gpu_hour: Required[int]
    code: CodeStore | None
    store_env: Mapping[str, str]
    clock: Callable[[], float]


class ClusterEngine(LeaseFolders):
    def __init__(
        self,
        root: Path,
        *,
        site: Site,
        log_bytes: int,
        runs_as: JobUsers | None = None,
        **given: Unpack[Given],
    ) -> None:
        super().__init__(
            root,
            site=site.site,
            log_bytes=log_bytes,
            code=given.get("code"),
            runs_as=runs_as,
            store=site.checkpoints,
            store_env=given.get("store_env"),
            notices=site.notices,
        )
        self._described, self._price = site, given["microusd_per_gpu_hour"]
        self._clock = given.get("clock", time.monotonic)
        self._nodes: Sequence[Node] = []
        self._held: dict[str, float] = {}  # until when a node is not offered
        self._closed: dict[str, Said] = {}

    def _offer(self, node: str, *, gpu: str, gpus: int, foreign: int, ours: int, rack: str) -> Node:
        """`foreign`: GPUs that others hold there, as far as the cluster says."""
        taken = min(gpus, foreign)
        if self._held.get(node, 0.0) > self._clock():
            taken = max(0, gpus - ours)  # they are in use, whatever the cluster reports as free
        return Node(
            site=self.site,
            node=node,
            gpu=gpu,
            gpus=gpus,
            microusd_per_gpu_hour=self._price,
            declared=False,
            rack=rack,
            tier=self._described.tier,
            owner=self._described.owner,
            microusd_per_gib=self._described.microusd_per_gib,
            taken=tuple(range(taken)),
            chosen_by="count",
        )

    def _kept(self, found: Sequence[Node]) -> Sequence[Node]:
        """Returning the same list object as before means that nothing has changed."""
        if found != self._nodes:
            self._nodes = found
        return self._nodes

    def _gpu_at(self, node: str) -> str:
        return next((each.gpu for each in self._nodes if each.node == node), "")

    def complaints(self) -> Mapping[str, Said]:
        return {**self._closed, **self._complaints}
