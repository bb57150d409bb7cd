"""Run a list of requests through the allocator: the fast path of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brimful.allocator.blocks import DEFAULT_POOL, PoolId
from brimful.allocator.caching import Allocator, OutOfMemory
from brimful.allocator.settings import Settings

MALLOC, FREE, EMPTY_CACHE = "malloc", "free", "empty_cache"
# A free in two parts, if another stream still used the block: it is active until COMPLETE.
REQUEST_FREE, COMPLETE = "request_free", "complete"


class Request(NamedTuple):
    """One request of a program. `key` names the allocation, independent of its address."""

    op: str
    key: int = 0
    nbytes: int = 0
    stream: int = 0
    owner: PoolId = DEFAULT_POOL
    label: str = ""  # who asked; ignored by the allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one setting gives for one list of requests."""

    settings: Settings
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    out_of_memory: OutOfMemory | None  # why it stopped, if it did
    failed_at: int | None  # the index of the request at which it stopped


def run(
    requests: Sequence[Request],
    settings: Settings | None = None,
    capacity_bytes: int | None = None,
    *,
    other_bytes: int = 0,
) -> Outcome:
    """Replay `requests` on an empty device. A failed request ends the run, as it ends most programs."""
    allocator = Allocator(settings, capacity_bytes, other_bytes=other_bytes)
    addresses: dict[int, int] = {}
    malloc, free = allocator.malloc, allocator.free
    failure, at = None, None
    for i, (op, key, nbytes, stream, owner, _) in enumerate(requests):
        if op == MALLOC:
            try:
                addresses[key] = malloc(nbytes, stream, owner)
            except OutOfMemory as error:
                failure, at = error, i
                break
        elif op == FREE:
            free(addresses.pop(key))
        elif op == REQUEST_FREE:
            allocator.request_free(addresses[key])
        elif op == COMPLETE:
            address = addresses.pop(key)
            if address in allocator.pending:  # otherwise running out of memory has already waited for it
                allocator.complete(address)
        else:
            assert op == EMPTY_CACHE, op
            allocator.empty_cache()
    return Outcome(
        settings=allocator.settings,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        retries=allocator.retries,
        out_of_memory=failure,
        failed_at=at,
    )
