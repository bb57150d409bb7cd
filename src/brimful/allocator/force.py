"""What a recording did at a point where the rules alone cannot say: done to the simulation by hand.

A recording tells neither how large the GPU was nor which memory fraction was set, so whether a request failed
at first, and whether garbage was collected, has to be taken from it.
"""

from __future__ import annotations

from brimful.allocator.blocks import Block
from brimful.allocator.caching import Allocator


def free_segments(allocator: Allocator) -> list[Block]:
    """The ordinary segments that emptying the cache would return, in its order."""
    free = (block for pool in allocator.emptied() for block in pool.in_order())
    return [block for block in free if block.alone and block.va is None]


def release_at(allocator: Allocator, address: int) -> bool:
    """Return the segment at `address`, if all of it is free."""
    for block in free_segments(allocator):
        if block.address == address:
            allocator.release(block)
            return True
    return False


def map_at(allocator: Allocator, address: int, nbytes: int) -> bool:
    """Map pages at `address`, if that is where address space begins that has none."""
    for pool in (pool for pair in allocator.pools.values() for pool in pair):
        for ranges in pool.unmapped.values():
            for block in ranges:
                if block.address == address and block.size >= nbytes:
                    return allocator.map_pages(block, nbytes)
    return False
