"""What a fleet is made of: sites hold racks, racks hold nodes, nodes hold NVLink domains of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Tier = Literal["owned", "reserved", "on_demand", "spot"]
TIERS: tuple[Tier, ...] = get_args(Tier)


class Pool(NamedTuple):
    """GPUs of one type at one site and tier: they have one price."""

    site: str
    gpu: str
    tier: Tier = "owned"


class OfPool:  # mixin for what concerns one pool
    __slots__ = ()
    site: str
    gpu: str
    tier: Tier

    @property
    def pool(self) -> Pool:
        return Pool(self.site, self.gpu, self.tier)


def node_key(site: str, name: str, known: Mapping[str, Node]) -> str:
    """The fleet's name for a site's node: its own name, with the site if another site has that name too."""
    key = f"{name}@{site}"
    other = known.get(name)
    is_shared = other is not None and other.site != site
    return key if key in known or is_shared or name.endswith(f"@{site}") else name


def bare_name(site: str, key: str) -> str:
    """The site's own name for the node."""
    return key.removesuffix(f"@{site}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    site: str
    node: str
    gpu: str
    gpus: int
    microusd_per_gpu_hour: int
    declared: bool
    rack: str = ""  # empty: unknown, and all such nodes of a site count as one rack
    nvlink_gpus: int = 0  # GPUs per NVLink domain; 0: the whole node is one
    cpu_milli: int | None = None  # None: not counted, so they never run out
    memory_mib: int | None = None
    tier: Tier = "owned"
    holes: tuple[int, ...] = ()  # indices of GPUs that are present but bad
    owner: str = ""  # the tenant that sells its hours; empty: the operator's own
    # Indices of GPUs not held by our leases but by others; by count: only the number matters.
    taken: tuple[int, ...] = ()
    microusd_per_gib: int = 0  # for data that a lease here moves to and from a checkpoint store
    # With "count" the engine picks, and our indices mean nothing to it.
    chosen_by: Literal["index", "count"] = "index"

    @property
    def pool(self) -> Pool:
        return Pool(self.site, self.gpu, self.tier)

    @property
    def good_gpus(self) -> int:
        return self.gpus - len(self.holes)

    @property
    def offered_gpus(self) -> int:
        """Good GPUs that our leases may hold now."""
        return max(0, self.good_gpus - len(self.taken))

    def offers(self, gpu: int) -> bool:
        """Whether a lease may hold the GPU of this index."""
        is_taken = self.chosen_by == "index" and gpu in self.taken
        return gpu < self.gpus and gpu not in self.holes and not is_taken

    @property
    def largest_domain(self) -> int:
        """Good GPUs of the largest NVLink domain."""
        if not self.nvlink_gpus:
            return self.good_gpus
        good = [0] * -(-self.gpus // self.nvlink_gpus)
        for gpu in range(self.gpus):
            good[gpu // self.nvlink_gpus] += gpu not in self.holes
        return max(good, default=0)
