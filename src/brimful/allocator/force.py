"""What a recording did at a point where the rules alone cannot say: done to the simulation by hand.

A recording tells neither how large the GPU was nor which memory fraction was set, so whether a request failed
at first, and whether garbage was collected, has to be taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from brimful.allocator.blocks import Block, Pool
from brimful.allocator.caching import Allocator


def pools(allocator: Allocator) -> Iterator[Pool]:
    """Those that emptying the cache goes through, in its order."""
    yield from (allocator.large, allocator.small)
    for owner in allocator.releasable:
        yield from allocator.private[owner]


def whole_free(allocator: Allocator) -> list[Block]:
    """The ordinary segments that emptying the cache would return, in its order."""
    return [
        block for pool in pools(allocator) for block in pool.in_order() if block.whole and block.va is None
    ]


def whole_free_at(allocator: Allocator, address: int) -> Block | None:
    return next((block for block in whole_free(allocator) if block.address == address), None)


def release_at(allocator: Allocator, address: int) -> bool:
    """Return the segment at `address`, if all of it is free."""
    block = whole_free_at(allocator, address)
    if block is not None:
        allocator.release(block)
    return block is not None


def map_at(allocator: Allocator, address: int, nbytes: int) -> bool:
    """Map pages at `address`, if that is where address space begins that has none."""
    for pool in (allocator.small, allocator.large, *(p for pair in allocator.private.values() for p in pair)):
        for ranges in pool.unmapped.values():
            for block in ranges:
                if block.address == address and block.size >= nbytes:
                    return allocator.map_pages(block, nbytes)
    return False
