"""PyTorch's CUDA caching allocator, rule by rule.

Every rule is a method that a test can break. The rules come from c10/cuda/CUDACachingAllocator.cpp (2.5 and
later) and hold for every event of the recordings we have; docs/explanation/allocator.md says which rule is
proven by recordings and which is from the source alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brimful.allocator.blocks import DEFAULT_POOL, FREE, PENDING, USED, Block, FreeBlocks, Pool, PoolId
from brimful.allocator.settings import Settings, divisions_for
from brimful.errors import Refused
from brimful.language import Size, say
from brimful.units import GIB, MIB

MIN_BLOCK = 512  # all sizes are multiples: alignment for any kernel
SMALL_MAX = MIB  # the largest rounded size that the small pool serves
SMALL_SEGMENT = 2 * MIB  # small requests share segments of this size
MIN_LARGE = 10 * MIB  # from here on a request gets its own segment ...
LARGE_STEP = 2 * MIB  # ... rounded up to this
# An expandable segment reserves 9/8 of the device's memory as address space, so that pages freed below can be
# mapped again at its end.
VA_PARTS = (9, 8)
# If no capacity is given: address space for a device larger than any.
_UNLIMITED_VA = 1024 * GIB
# Where simulated segments are placed. Only their order matters (ties go to the lowest address).
_FIRST_ADDRESS = 0x7F00_0000_0000

# (action, address, bytes, stream), as PyTorch records them.
SegmentEvent = tuple[str, int, int, int]


class OutOfMemory(Refused):
    """The request that PyTorch would fail on, and the numbers in its message."""

    code = "out_of_memory"

    def __init__(self, allocator: Allocator, *, requested_bytes: int, segment_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes  # PyTorch's "tried to allocate"
        self.capacity_bytes = allocator.capacity_bytes
        self.allocated_bytes = allocator.allocated_bytes
        self.reserved_bytes = allocator.reserved_bytes
        self.limit_bytes = allocator.limit_bytes
        self.free_bytes = max(
            0, (allocator.capacity_bytes or 0) - allocator.reserved_bytes - allocator.other_bytes
        )
        cached = allocator.reserved_bytes - allocator.allocated_bytes
        allowed = "" if self.limit_bytes is None else say("allocator.allowed", limit=Size(self.limit_bytes))
        super().__init__(
            say(
                "allocator.out_of_memory",
                requested=Size(requested_bytes),
                segment=Size(segment_bytes),
                free=Size(self.free_bytes),
                capacity=Size(self.capacity_bytes or 0),
                allowed=allowed,
                allocated=Size(self.allocated_bytes),
                cached=Size(cached),
            )
        )


class Allocator:
    """One device's memory as PyTorch manages it.

    `other_bytes` is memory on the device outside PyTorch (CUDA context, other processes). `address_of` places
    new segments (replaying a recording); by default they follow one another.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        capacity_bytes: int | None = None,
        *,
        other_bytes: int = 0,
        address_of: Callable[[int], int] | None = None,
        log: list[SegmentEvent] | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.capacity_bytes = capacity_bytes
        self.other_bytes = other_bytes
        self.limit_bytes = (
            int(settings.memory_fraction * capacity_bytes)
            if settings.memory_fraction is not None
            and settings.memory_fraction < 1
            and capacity_bytes is not None
            else None
        )
        self.log = log
        self.pools: dict[PoolId, tuple[Pool, Pool]] = {}  # small, large
        self.small, self.large = self.pools_of(DEFAULT_POOL)
        self.releasable: list[PoolId] = []  # private pools whose graph is gone
        self.live: dict[int, Block] = {}
        self.pending: dict[int, Block] = {}
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.retries = 0
        self._address_of = address_of
        self._next_address = _FIRST_ADDRESS
        self.expandable = settings.expandable_segments  # a program may switch it at run time
        self._max_split = 1 << 62 if settings.max_split_bytes is None else settings.max_split_bytes
        self._collects = self.limit_bytes is not None and settings.garbage_collection_threshold > 0
        self._rounding = settings.max_non_split_rounding_bytes or settings.large_segment_bytes
        self._splits_all = settings.max_split_bytes is None

    # What a program can ask for.

    def malloc(self, nbytes: int, stream: int = 0, owner: PoolId = DEFAULT_POOL) -> int:
        """The address of `nbytes` on `stream`. Raises OutOfMemory; 0 bytes are the null pointer.

        `owner` is the private pool it goes to: that of a CUDA graph capture, or a MemPool.
        """
        if nbytes <= 0:
            assert nbytes == 0
            return 0
        if owner in self.releasable:
            self.releasable.remove(owner)
        size = self.round_size(nbytes)
        pool = self.pool_of(owner, size)
        block = self.find_free(pool, size, stream)
        if block is None:
            block = self._obtain(pool, size, stream, nbytes)
        rest = block.size - size
        if rest and self.should_split(pool, size, rest):
            block = self._split(block, size)
        block.state = USED
        block.requested = nbytes
        self.live[block.address] = block
        size = block.size
        self.allocated_bytes = allocated = self.allocated_bytes + size
        if allocated > self.peak_allocated_bytes:  # noqa: PLR1730  max() costs a tenth of the whole call
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + nbytes
        if requested > self.peak_requested_bytes:  # noqa: PLR1730
            self.peak_requested_bytes = requested
        return block.address

    def free(self, address: int) -> None:
        if not address:
            return
        block = self.live.pop(address)
        self.allocated_bytes -= block.size
        self._give_back(block)

    def request_free(self, address: int) -> None:
        """Free a block that another stream still uses: it is active until `complete`."""
        block = self.live.pop(address)
        self.allocated_bytes -= block.size
        block.state = PENDING
        self.pending[address] = block

    def complete(self, address: int) -> None:
        """The other streams are done with a freed block."""
        self._give_back(self.pending.pop(address))

    def synchronize(self) -> None:
        """Every other stream is done with every freed block."""
        for address in tuple(self.pending):
            self.complete(address)

    def empty_cache(self) -> None:
        """Return every completely free segment (or page) to the device."""
        self.synchronize()
        for pool in self.emptied():
            self._release_pool(pool)

    def emptied(self) -> Iterator[Pool]:
        """The pools that emptying the cache goes through, in its order."""
        yield from (self.large, self.small)
        for owner in self.releasable:
            yield from self.pools_of(owner)

    def release_pool(self, owner: PoolId) -> None:
        """The graph is gone: from now on its free segments may be returned."""
        if owner not in self.releasable:
            self.releasable.append(owner)

    def pools_of(self, owner: PoolId) -> tuple[Pool, Pool]:
        found = self.pools.get(owner)
        if found is None:
            found = self.pools[owner] = (Pool(small=True, owner=owner), Pool(small=False, owner=owner))
        return found

    def pool_of(self, owner: PoolId, size: int) -> Pool:
        small, large = self.pools_of(owner)
        return small if size <= SMALL_MAX else large

    # Rules: sizes.

    def round_size(self, nbytes: int) -> int:
        """Up to 512 B; with roundup_power2_divisions d, up to the next of d steps between powers of two."""
        if self.settings.divisions:
            divisions = divisions_for(self.settings.divisions, nbytes)
            if divisions > 1 and nbytes > MIN_BLOCK * divisions:
                step = (1 << nbytes.bit_length() - 1) // divisions
                return -(-nbytes // step) * step
        return -(-nbytes // MIN_BLOCK) * MIN_BLOCK

    def segment_size(self, size: int) -> int:
        """How much to request from the device, to serve a rounded `size`."""
        if size <= SMALL_MAX:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.settings.large_segment_bytes
        return -(-size // LARGE_STEP) * LARGE_STEP

    def page_size(self, pool: Pool) -> int:
        """Expandable segments map this much at a time."""
        return SMALL_SEGMENT if pool.small else self.settings.large_segment_bytes

    # Rules: search and split.

    def find_free(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Best fit: the smallest free block of this pool and stream that suffices, lowest address first."""
        if self._collects:
            pool.searches += 1
        free = pool.free.get(stream)
        if free is None:
            return None
        i = free.first_at_least(size)
        if i == len(free.keys):
            return None
        if self._splits_all and free.blocks[i].va is None:
            return free.take(i)
        return self._find_with_settings(pool, free, i, size)

    def _find_with_settings(self, pool: Pool, free: FreeBlocks, i: int, size: int) -> Block | None:
        blocks = free.blocks
        if blocks[i].va is not None:
            if self.expandable and pool.expandable:
                # An expandable block counts with the size it could grow to: prefer one that cannot grow.
                while blocks[i].va is not None and i + 1 < len(blocks):
                    if _size_if_grown(blocks[i + 1]) >= _size_if_grown(blocks[i]):
                        break
                    i += 1
            else:  # the setting was switched off: only blocks of ordinary segments
                while i < len(blocks) and blocks[i].va is not None:
                    i += 1
                if i == len(blocks):
                    return None
        found = blocks[i].size
        if size < self._max_split <= found:
            return None  # oversize blocks are kept whole for oversize requests
        if size >= self._max_split and found >= size + self._rounding:
            return None  # ... and not wasted on much smaller ones
        return free.take(i)

    def should_split(self, pool: Pool, size: int, rest: int) -> bool:
        if pool.small or (self.expandable and pool.expandable):
            return rest >= MIN_BLOCK
        return size < self._max_split and rest > SMALL_MAX

    def _split(self, block: Block, size: int) -> Block:
        """Hand out the low end; the rest stays free."""
        part = Block(block.address, size, block.stream, block.pool, block.va)
        part.link(block.before, block)
        block.address += size
        block.size -= size
        block.pool.add(block)
        return part

    # Rules: giving back.

    def _give_back(self, block: Block) -> None:
        block.state = FREE
        self.requested_bytes -= block.requested
        self._merge(block, block.before)
        self._merge(block, block.after)
        block.pool.add(block)

    def _merge(self, block: Block, other: Block | None) -> None:
        """Absorb a free neighbour of the same kind (both mapped, or both only address space)."""
        if other is None or other.state != FREE or other.mapped != block.mapped:
            return
        if other.mapped:
            block.pool.discard(other)
        else:
            block.pool.discard_unmapped(other)
        if block.before is other:
            block.address = other.address
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.size += other.size

    # Rules: more memory from the device, in this order.

    def _obtain(self, pool: Pool, size: int, stream: int, nbytes: int) -> Block:
        if self._collects:
            self._collect_garbage()
        block = self._new(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new(pool, size, stream)
        if block is None and pool.owner == DEFAULT_POOL:  # during a capture nothing may be returned
            self.empty_cache()
            self.retries += 1
            block = self._new(pool, size, stream)
        if block is None:
            raise OutOfMemory(self, requested_bytes=nbytes, segment_bytes=self.segment_size(size))
        return block

    def _new(self, pool: Pool, size: int, stream: int) -> Block | None:
        segment = self.segment_size(size)
        if self.limit_bytes is not None and self.reserved_bytes + segment > self.limit_bytes:
            return None
        if self.expandable and pool.expandable:
            return self._expand(pool, size, stream)
        if not self._reserve(segment):
            return None
        block = Block(self._place(segment), segment, stream, pool)
        self._note("segment_alloc", block.address, segment, stream)
        return block

    def _reserve(self, nbytes: int) -> bool:
        if (
            self.capacity_bytes is not None
            and self.reserved_bytes + self.other_bytes + nbytes > self.capacity_bytes
        ):
            return False
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _place(self, nbytes: int) -> int:
        if self._address_of is not None:
            return self._address_of(nbytes)
        address = self._next_address
        self._next_address += nbytes
        return address

    def _note(self, action: str, address: int, nbytes: int, stream: int) -> None:
        if self.log is not None:
            self.log.append((action, address, nbytes, stream))

    # Rules: expandable segments.

    def _expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Map pages at the lowest place with room for `size`; None if the device is full.

        What was mapped before a later page failed stays mapped, as in PyTorch.
        """
        block = self._lowest_room(pool, size, stream)
        if not block.mapped and not self.map_pages(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None
            assert not after.mapped
            if not self.map_pages(after, min(size - block.size, after.size)):
                return None
            block = after  # it has absorbed the block before it
        pool.discard(block)
        return block

    def _lowest_room(self, pool: Pool, size: int, stream: int) -> Block:
        for unmapped in pool.unmapped.get(stream, ()):
            start = unmapped
            if start.before is not None and start.before.state == FREE:
                start = start.before
            room, block = 0, start
            while room < size:
                room += block.size
                if block.after is None or block.after.state != FREE:
                    break
                block = block.after
            if room >= size:
                return start
        page = self.page_size(pool)
        memory = self.capacity_bytes or _UNLIMITED_VA
        va_bytes = -(-(memory * VA_PARTS[0] // VA_PARTS[1]) // page) * page
        address = self._place(va_bytes)
        segment = Block(address, va_bytes, stream, pool, address)
        segment.mapped = False
        pool.add_unmapped(segment)
        return segment

    def map_pages(self, block: Block, size: int) -> bool:
        page = self.page_size(block.pool)
        nbytes = -(-size // page) * page
        if not self._reserve(nbytes):
            return False
        block.pool.discard_unmapped(block)
        block.mapped = True
        address = block.address
        if nbytes < block.size:
            rest = Block(address + nbytes, block.size - nbytes, block.stream, block.pool, block.va)
            rest.mapped = False
            rest.link(block, block.after)
            block.size = nbytes
            block.pool.add_unmapped(rest)
        self._merge(block, block.before)
        self._merge(block, block.after)
        block.pool.add(block)
        self._note("segment_map", address, nbytes, block.stream)
        return True

    def _unmap(self, block: Block) -> None:
        """Return the whole pages inside a free block; its partial pages at both ends stay mapped and free."""
        assert block.va is not None
        page = self.page_size(block.pool)
        low = block.va - (block.va - block.address) // page * page
        high = block.va + (block.address + block.size - block.va) // page * page
        if high <= low:
            return
        block.pool.discard(block)
        if low > block.address:
            head = Block(block.address, low - block.address, block.stream, block.pool, block.va)
            head.link(block.before, block)
            block.pool.add(head)
        end = block.address + block.size
        if high < end:
            tail = Block(high, end - high, block.stream, block.pool, block.va)
            tail.link(block, block.after)
            block.pool.add(tail)
        block.address, block.size, block.mapped = low, high - low, False
        self.reserved_bytes -= block.size
        self._note("segment_unmap", low, high - low, block.stream)
        self._merge(block, block.before)
        self._merge(block, block.after)
        if not block.alone:  # otherwise nothing of this segment is mapped: drop its address space too
            block.pool.add_unmapped(block)

    # Rules: returning memory to the device.

    def release(self, block: Block) -> None:
        block.pool.discard(block)
        self.reserved_bytes -= block.size
        self._note("segment_free", block.address, block.size, block.stream)

    def _release_pool(self, pool: Pool) -> None:
        """Every completely free segment by stream, size, address; then the free pages of expandable ones."""
        expandable = []
        for block in pool.in_order():
            if block.va is not None:
                expandable.append(block)
            elif block.alone:
                self.release(block)
        for block in expandable:
            self._unmap(block)

    def oversize(self, pool: Pool, size: int, stream: int) -> list[Block]:
        """With max_split_size_mb: one oversize block that suffices, or the largest ones until it is
        enough."""
        free = pool.free.get(stream)
        if self.settings.max_split_bytes is None or free is None:
            return []
        wanted = max(size, self._max_split)
        i = free.first_at_least(wanted)
        if i < len(free.blocks) and free.blocks[i].va is None:
            return [free.blocks[i]]
        chosen, total = [], 0
        for block in reversed(free.blocks[:i]):
            if total >= wanted or block.size < self._max_split:
                break
            if block.va is None:
                total += block.size
                chosen.append(block)
        return chosen

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Return such blocks, even if they are not enough; returns whether they are."""
        blocks = self.oversize(pool, size, stream)
        for block in blocks:
            self.release(block)
        return bool(blocks) and sum(block.size for block in blocks) >= max(size, self._max_split)

    def _collect_garbage(self) -> None:
        """Above the threshold, return whole large blocks of at least mean age, until below it."""
        assert self.limit_bytes is not None
        excess = self.reserved_bytes - int(self.settings.garbage_collection_threshold * self.limit_bytes)
        if excess <= 0:
            return
        ages = {block: self.large.searches - block.born for block in self.large.in_order() if block.alone}
        total, released, freed = sum(ages.values()), 0, True
        while released < excess and freed and ages:
            mean, freed = total / len(ages), False
            for block, age in tuple(ages.items()):
                if age >= mean and block.va is None:
                    freed = True
                    released += block.size
                    total -= age
                    del ages[block]
                    self.release(block)


def _size_if_grown(block: Block) -> int:
    """A block's size if it grew into the address space after it."""
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
