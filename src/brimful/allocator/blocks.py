"""Blocks, and the ordered sets of free ones that the allocator searches."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

# A block's state. PENDING: freed by the program, still used by another stream (`record_stream`).
FREE, USED, PENDING = 0, 1, 2

# Keys sort by size, then address, and compare as one number: a third of the time of comparing tuples.
_ADDRESS_BITS = 64


class Block:
    """A piece of a segment; `before` and `after` are its neighbours in it."""

    __slots__ = (
        *("address", "size", "stream", "pool", "state", "requested"),
        *("before", "after", "mapped", "va", "born"),
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool, va: int | None = None) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.state = FREE
        self.requested = 0
        self.before: Block | None = None
        self.after: Block | None = None
        self.mapped = True
        self.va = va  # start of its expandable segment; None in an ordinary segment
        self.born = 0  # the pool's search count when it became free: its age for garbage collection

    @property
    def alone(self) -> bool:
        """It is a whole segment."""
        return self.before is None and self.after is None

    def link(self, before: Block | None, after: Block | None) -> None:
        self.before, self.after = before, after
        if before is not None:
            before.after = self
        if after is not None:
            after.before = self


class FreeBlocks:
    """The free blocks of one pool on one stream, by size and then address."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        i = bisect_left(self.keys, key)
        self.keys.insert(i, key)
        self.blocks.insert(i, block)

    def discard(self, block: Block) -> None:
        i = bisect_left(self.keys, block.size << _ADDRESS_BITS | block.address)
        assert self.blocks[i] is block
        del self.keys[i], self.blocks[i]

    def first_at_least(self, size: int) -> int:
        """The index of the smallest block of `size` or more; the length if there is none."""
        return bisect_left(self.keys, size << _ADDRESS_BITS)

    def take(self, i: int) -> Block:
        del self.keys[i]
        return self.blocks.pop(i)


class Pool:
    """Free blocks of one kind and owner. Blocks never change stream or pool."""

    __slots__ = ("expandable", "free", "owner", "searches", "small", "unmapped")

    def __init__(self, *, small: bool, owner: PoolId = DEFAULT_POOL) -> None:
        self.small = small
        self.owner = owner
        self.expandable = True  # False: a MemPool with its own allocator never grows segments
        self.free: dict[int, FreeBlocks] = {}
        # Address space of expandable segments without memory behind it, by stream, in address order.
        self.unmapped: dict[int, list[Block]] = {}
        self.searches = 0

    def add(self, block: Block) -> None:
        block.born = self.searches
        free = self.free.get(block.stream)
        if free is None:
            free = self.free[block.stream] = FreeBlocks()
        free.add(block)

    def discard(self, block: Block) -> None:
        self.free[block.stream].discard(block)

    def add_unmapped(self, block: Block) -> None:
        ranges = self.unmapped.setdefault(block.stream, [])
        insort(ranges, block, key=attrgetter("address"))

    def discard_unmapped(self, block: Block) -> None:
        self.unmapped[block.stream].remove(block)

    def in_order(self) -> Iterator[Block]:
        """Every free block at this moment: by stream, size, address."""
        for stream in sorted(self.free):
            yield from tuple(self.free[stream].blocks)
