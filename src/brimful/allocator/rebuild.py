"""The allocator's state before a recording began, rebuilt from its end and its events.

A recording usually starts in the middle of a run. Walking its events backwards from the final segments gives
what was live and mapped at the start. For a block that was freed meanwhile only the requested size is known;
its real size follows from its neighbours, with one exception (`_size`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from brimful.allocator.blocks import DEFAULT_POOL, FREE, PENDING, USED, Block, PoolId
from brimful.allocator.caching import MIN_BLOCK, SMALL_MAX, SMALL_SEGMENT, Allocator
from brimful.allocator.settings import LARGE_SEGMENT
from brimful.allocator.snapshot import Event, Segment
from brimful.units import GIB

# If the device's size is unknown, address space up to this is assumed to belong to the segment before it.
_VA_BYTES = 1024 * GIB
# How many of the first pages of an unmapped range are checked for their earlier contents.
_LOOKED_AT = 64


@dataclass(slots=True)
class Held:
    """An allocation from before the recording."""

    requested: int
    nbytes: int | None  # None: freed during the recording, so its block is not in the final state
    pending: bool
    label: str
    freed_at: int | None = None  # the event that gave it back
    stream: int = 0
    owner: PoolId = DEFAULT_POOL


@dataclass(slots=True)
class Span:
    """Device memory at the start: an ordinary segment, or adjacent mapped pages of an expandable one."""

    low: int
    high: int
    stream: int
    small: bool
    owner: PoolId

    @property
    def kind(self) -> tuple[int, bool, PoolId]:
        return (self.stream, self.small, self.owner)


@dataclass(slots=True)
class Before:
    """The state a recording started from."""

    held: dict[int, Held] = field(default_factory=dict)
    segments: dict[int, Span] = field(default_factory=dict)
    mapped: list[Span] = field(default_factory=list)
    moved: dict[int, Span] = field(default_factory=dict)  # event -> the pages that it maps or unmaps


@dataclass(slots=True)
class Unsure:
    """A free block that may begin up to `slack` later: the block before it may keep that much as its rest."""

    used: Block
    free: Block
    slack: int

    def possible(self) -> bool:
        """The boundary still exists."""
        return self.free.before is self.used and self.used.state != FREE

    def shrink(self, allocator: Allocator, nbytes: int) -> bool:
        """Move the boundary so that the free block has `nbytes`, if the slack allows."""
        by = self.free.size - nbytes
        if not 0 < by <= self.slack:
            return False
        self.slack -= by
        self.free.pool.discard(self.free)
        self.free.address += by
        self.free.size -= by
        self.free.pool.add(self.free)
        self.used.size += by
        if self.used.state == USED:
            allocator.allocated_bytes += by
        return True


def before(segments: Sequence[Segment], events: Sequence[Event], large_page: int = LARGE_SEGMENT) -> Before:
    """Walk `events` backwards from the final `segments`."""
    state = Before()
    for segment in segments:
        low, high = segment.address, segment.address + segment.nbytes
        span = Span(low, high, segment.stream, segment.small, segment.owner)
        if segment.expandable:
            state.mapped.append(span)
        else:
            state.segments[low] = span
        for block in segment.blocks:
            if block.state != "inactive":
                pending = block.state != "active_allocated"
                state.held[block.address] = Held(block.requested, block.nbytes, pending, block.label)
    state.moved = _moved(state.mapped, events, large_page)
    # A program may record without one of the two (skip_actions); then the other is the whole free.
    actions = {event.action for event in events}
    last = "free_completed" if "free_completed" in actions else "free_requested"
    waits = {"free_completed", "free_requested"} <= actions
    for i in range(len(events) - 1, -1, -1):
        _undo(state, events[i], i, last=last, waits=waits)
    return state


def _undo(state: Before, event: Event, i: int, *, last: str, waits: bool) -> None:
    action, address = event.action, event.address
    if action == "alloc":
        state.held.pop(address, None)
    elif action == last:
        state.held[address] = Held(event.nbytes, None, pending=waits, label=event.label, freed_at=i)
    elif action == "free_requested":
        if address in state.held:
            state.held[address].pending = False
    elif action == "segment_alloc":
        state.segments.pop(address, None)
    elif action == "segment_free":
        state.segments[address] = _span(event, *_kind(event))
    elif action == "segment_map":
        state.mapped = list(_without(state.mapped, address, address + event.nbytes))
    elif action == "segment_unmap":
        state.mapped.append(state.moved[i])


def _span(event: Event, small: bool, owner: PoolId) -> Span:
    return Span(event.address, event.address + event.nbytes, event.stream, small, owner)


def _kind(event: Event) -> tuple[bool, PoolId]:
    """Small or large, and its owner. Only small segments and pages have 2 MiB: large ones exceed 10."""
    return event.nbytes == SMALL_SEGMENT, event.owner or DEFAULT_POOL


def _moved(mapped: Sequence[Span], events: Sequence[Event], large_page: int) -> dict[int, Span]:
    """The range that each event maps or unmaps, and its kind; `mapped` is the final state."""
    moved: dict[int, Span] = {}
    for i, event in enumerate(events):
        if event.action == "segment_map":
            small, owner = _kind(event)
            for span in mapped:  # the final state knows the owner if the event does not
                if span.low <= event.address < span.high and span.small == small:
                    owner = span.owner
            moved[i] = _span(event, small, owner)
    known = [*mapped, *moved.values()]
    lay: dict[int, bool] = {}  # page -> whether the last block there was small
    for i, event in enumerate(events):
        if event.action in ("alloc", "free_completed"):
            lay[event.address // SMALL_SEGMENT] = event.nbytes <= SMALL_MAX
            lay[(event.address + event.nbytes) // SMALL_SEGMENT] = event.nbytes <= SMALL_MAX
        elif event.action == "segment_unmap":
            small, owner = _nearest(known, event, large_page)
            first, pages = event.address // SMALL_SEGMENT, event.nbytes // SMALL_SEGMENT
            kinds = (lay.get(page) for page in range(first, first + min(pages, _LOOKED_AT)))
            small = next((kind for kind in kinds if kind is not None), small)
            moved[i] = _span(event, small, owner)
    return moved


def _nearest(spans: Sequence[Span], event: Event, large_page: int) -> tuple[bool, PoolId]:
    """The kind of an unmapped range: many small pages can look like a large one, but not vice versa.

    If its size is not conclusive, it is that of the closest range on its stream: small only if that is close,
    since the pages of a small segment are all near its beginning.
    """
    small = event.nbytes % large_page != 0
    same = [span for span in spans if span.stream == event.stream and (span.small or not small)]
    if not same:
        return small, event.owner or DEFAULT_POOL
    distance, near = min(
        ((max(span.low - event.address, event.address - span.high, 0), span) for span in same),
        key=lambda found: found[0],
    )
    return small or (near.small and distance < GIB), event.owner or near.owner


def _without(spans: Sequence[Span], low: int, high: int) -> Iterator[Span]:
    for span in spans:
        if span.high <= low or span.low >= high:
            yield span
            continue
        if span.low < low:
            yield Span(span.low, low, span.stream, span.small, span.owner)
        if span.high > high:
            yield Span(high, span.high, span.stream, span.small, span.owner)


# Into the allocator.


def restore(allocator: Allocator, state: Before, events: Sequence[Event]) -> list[Unsure]:
    """Restore blocks and counters from before the recording; returns the uncertain boundaries."""
    builder = _Builder(allocator, state, events)
    plain_owners = {span.owner for span in state.segments.values() if span.owner != DEFAULT_POOL}
    for owner in plain_owners:
        for pool in allocator.pools_of(owner):
            pool.expandable = False
    for span in state.segments.values():
        builder.chain([span], va=None, low=span.low, high=span.high)
    for low, high, spans in _address_spaces(allocator, state, events):
        builder.chain(spans, va=low, low=low, high=high)
    allocator.peak_reserved_bytes = allocator.reserved_bytes
    allocator.peak_allocated_bytes = allocator.allocated_bytes
    allocator.peak_requested_bytes = allocator.requested_bytes
    return builder.unsure


def _address_spaces(
    allocator: Allocator, state: Before, events: Sequence[Event]
) -> Iterator[tuple[int, int, list[Span]]]:
    """Mapped ranges grouped into expandable segments: same kind, nothing of another kind in between.

    A segment begins at the lowest address it ever mapped: lower ones would have been used first.
    """
    others = sorted(span.low for span in state.segments.values())
    anchors = sorted([*state.mapped, *_grown(state, events)], key=lambda span: span.low)
    groups: list[list[Span]] = []
    for span in anchors:
        last = groups[-1][-1] if groups else None
        if last is None or last.kind != span.kind or span.low - groups[-1][0].low >= _VA_BYTES:
            groups.append([])
        groups[-1].append(span)
    starts = [*(group[0].low for group in groups), 1 << 63]
    va_bytes = (allocator.capacity_bytes or _VA_BYTES) * 9 // 8
    for number, group in enumerate(groups):
        low = group[0].low
        i = bisect_left(others, low)
        limit = min(starts[number + 1], others[i] if i < len(others) else 1 << 63)
        high = min(low + va_bytes, limit)
        inside = [span for span in state.mapped if low <= span.low < limit and span.kind == group[0].kind]
        if inside:
            yield low, max(high, *(span.high for span in inside)), _joined(inside)


def _grown(state: Before, events: Sequence[Event]) -> Iterator[Span]:
    """What was mapped later into the segments that existed before.

    Once all of a segment is unmapped its address space is gone: a later mapping begins another one.
    """
    held: Counter[tuple[int, bool, PoolId]] = Counter()
    for span in state.mapped:
        held[span.kind] += span.high - span.low
    for i, span in sorted(state.moved.items()):
        if held[span.kind] <= 0:
            continue
        if events[i].action == "segment_map":
            held[span.kind] += span.high - span.low
            yield span
        else:
            held[span.kind] -= span.high - span.low


def _joined(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.low):
        if joined and span.low <= joined[-1].high:
            joined[-1].high = max(joined[-1].high, span.high)
        else:
            joined.append(Span(span.low, span.high, span.stream, span.small, span.owner))
    return joined


class _Builder:
    def __init__(self, allocator: Allocator, state: Before, events: Sequence[Event]) -> None:
        self.allocator = allocator
        self.unsure: list[Unsure] = []
        self.held = state.held
        self.addresses = sorted(state.held)
        # Where and when memory was handed out during the recording, by address.
        self.handed_out = sorted((e.address, i) for i, e in enumerate(events) if e.action == "alloc")
        self.given = [address for address, _ in self.handed_out]

    def chain(self, spans: Sequence[Span], *, va: int | None, low: int, high: int) -> None:
        """The blocks of one segment from `low` to `high`, of which `spans` are mapped."""
        last: Block | None = None
        at = low
        for span in spans:
            if span.low > at:
                last = self._unmapped(at, span.low, span, va, last)
            last = self._span(span, va, last)
            at = span.high
            self.allocator.reserved_bytes += span.high - span.low
        if at < high:
            self._unmapped(at, high, spans[-1], va, last)

    def _unmapped(self, low: int, high: int, span: Span, va: int | None, last: Block | None) -> Block:
        block = self._block(low, high - low, span, va, last)
        block.mapped = False
        block.pool.add_unmapped(block)
        return block

    def _span(self, span: Span, va: int | None, last: Block | None) -> Block | None:
        at = span.low
        first = bisect_left(self.addresses, span.low)
        inside = self.addresses[first : bisect_left(self.addresses, span.high)]
        unsure: Block | None = None  # a block just before `at` whose end is a guess
        for i, address in enumerate([*inside, span.high]):
            if address > at:
                last = self._free(at, address, span, va, last)
                if unsure is not None:
                    self.unsure.append(
                        Unsure(unsure, last, min(SMALL_MAX, last.size - SMALL_MAX - MIN_BLOCK))
                    )
            if address == span.high:
                break
            held = self.held[address]
            held.stream, held.owner = span.stream, span.owner
            room = (inside[i + 1] if i + 1 < len(inside) else span.high) - address
            exact = span.small or va is not None
            nbytes, sure = (
                (held.nbytes, True) if held.nbytes is not None else self._size(address, held, room, exact)
            )
            last = self._block(address, min(nbytes, room), span, va, last)
            self._hold(last, held)
            unsure = None if sure else last
            at = address + last.size
        return last

    def _size(self, address: int, held: Held, room: int, exact: bool) -> tuple[int, bool]:
        """The size of a block of which only the request is known, with `room` until the next one in use.

        Small and expandable blocks are split exactly. A large block keeps a rest of up to 1 MiB, and a free
        large block is always larger than that: so a gap of at most 1 MiB belongs to it. In a wider gap the
        first block handed out there, before this one is freed, shows where the free part began. If there was
        none, the size is a guess (False): that it keeps no rest. The walk corrects it if it must (`Unsure`).
        """
        rounded = self.allocator.round_size(held.requested)
        gap = room - rounded
        if exact or gap <= 0:
            return rounded, True
        max_split = self.allocator.settings.max_split_bytes
        if gap <= SMALL_MAX or (max_split is not None and rounded >= max_split):
            return room, True
        start = address + rounded
        first, last = bisect_left(self.given, start), bisect_left(self.given, start + SMALL_MAX + 1)
        until = 1 << 63 if held.freed_at is None else held.freed_at
        shown = [(at, given) for given, at in self.handed_out[first:last] if at < until]
        return (min(shown)[1] - address, True) if shown else (rounded, False)

    def _block(self, address: int, nbytes: int, span: Span, va: int | None, last: Block | None) -> Block:
        small, large = self.allocator.pools_of(span.owner)
        block = Block(address, nbytes, span.stream, small if span.small else large, va)
        block.link(last, None)
        return block

    def _free(self, low: int, high: int, span: Span, va: int | None, last: Block | None) -> Block:
        block = self._block(low, high - low, span, va, last)
        block.pool.add(block)
        return block

    def _hold(self, block: Block, held: Held) -> None:
        allocator = self.allocator
        block.requested = held.requested
        allocator.requested_bytes += held.requested
        if held.pending:
            block.state = PENDING
            allocator.pending[block.address] = block
        else:
            block.state = USED
            allocator.live[block.address] = block
            allocator.allocated_bytes += block.size
