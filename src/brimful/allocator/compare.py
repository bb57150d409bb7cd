"""Walk the events of a recording and compare each one with the simulation."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from brimful.allocator.blocks import DEFAULT_POOL, Block, PoolId
from brimful.allocator.caching import MIN_BLOCK, Allocator, SegmentEvent
from brimful.allocator.rebuild import Before, before, restore
from brimful.allocator.run import COMPLETE, EMPTY_CACHE, FREE, MALLOC, REQUEST_FREE, Request
from brimful.allocator.snapshot import Event, Segment, Snapshot
from brimful.language import Number, Plain, Sentence, Several, Size, say

POINTS = 400  # of a curve over the recording; more cannot be distinguished
SHOWN_DIFFERENCES = 20
# Segments that only the simulation takes are placed far from all recorded ones.
_INVENTED_ADDRESS = 1 << 62
_RETURNS = ("segment_free", "segment_unmap")
_TAKES = ("segment_alloc", "segment_map")

Taken = list[tuple[str, int, int]]  # action, address, bytes


@dataclass(slots=True)
class Tally:
    right: int = 0
    wrong: int = 0

    def add(self, *, right: int, of: int) -> None:
        self.right += right
        self.wrong += of - right


@dataclass(frozen=True, slots=True)
class Point:
    """The most that was held during one slice of the recording."""

    event: int
    request: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(slots=True, kw_only=True)
class Compared:
    """What the walk found. `requests` is the recording as a program's requests, without addresses."""

    alloc: Tally = field(default_factory=Tally)
    segment_alloc: Tally = field(default_factory=Tally)
    segment_free: Tally = field(default_factory=Tally)
    held_before_bytes: int = 0
    held_before: int = 0  # this many of the first requests existed before the recording
    peak_at: int = 0  # the event after which most was allocated; 0 is the start
    peak_request: int = 0  # and how many requests had been made by then
    retries: int = 0
    retry_reserved_bytes: int = 0  # what the device held when it was first full
    ooms: list[Event] = field(default_factory=list)
    lost_frees: int = 0
    differences: list[Sentence] = field(default_factory=list)
    other_actions: Counter[str] = field(default_factory=Counter)
    curve: list[Point] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def compare(snapshot: Snapshot, device: int, make: type[Allocator] = Allocator) -> tuple[Allocator, Compared]:
    """Replay one device under its own settings; returns the final allocator and the findings."""
    walk = _Walk(snapshot, device, make)
    walk.go()
    return walk.allocator, walk.found


class _Walk:
    def __init__(self, snapshot: Snapshot, device: int, make: type[Allocator]) -> None:
        segments = [segment for segment in snapshot.segments if segment.device == device]
        self.events: Sequence[Event] = snapshot.traces[device] if device < len(snapshot.traces) else ()
        self.log: list[SegmentEvent] = []
        self.feed: list[int] = []  # addresses of the recording's new segments
        self.allocator = make(snapshot.settings, address_of=self._place, log=self.log)
        state = before(segments, self.events, snapshot.settings.large_segment_bytes)
        self.unsure = {unsure.free: unsure for unsure in restore(self.allocator, state, self.events)}
        self.owners = _Owners(segments, state, self.events)
        self.found = Compared(held_before_bytes=self.allocator.allocated_bytes)
        self.fresh: list[Event] = []  # segments the recording took for the next allocation
        self.where: dict[int, int] = {}  # recorded address -> simulated one, if they differ
        self.keys: dict[int, int] = {}  # recorded address -> the request that holds it
        self.waiting: set[int] = set()  # requests freed in two parts
        self.whole_frees = "free_completed" not in {event.action for event in self.events}
        self.invented = _INVENTED_ADDRESS
        self.cut_off = False
        self._start(state)

    def _place(self, nbytes: int) -> int:
        if self.feed:
            return self.feed.pop(0)
        self.invented += nbytes
        return self.invented - nbytes

    def _start(self, state: Before) -> None:
        """What existed before goes first into the list of requests, in address order."""
        first_us = self.events[0].time_us if self.events else 0
        for address, held in sorted(state.held.items()):
            event = Event("alloc", address, held.requested, held.stream, first_us, held.label, held.owner)
            self._request(MALLOC, event)
            if held.pending:
                self._request(REQUEST_FREE, event)
        self.found.held_before = len(self.found.requests)

    def _request(self, op: str, event: Event) -> None:
        requests = self.found.requests
        if op == MALLOC:
            self.keys[event.address] = len(requests)
        key = self.keys.get(event.address)
        if key is None:
            return
        if op == REQUEST_FREE:
            self.waiting.add(key)
        elif op == FREE:
            del self.keys[event.address]
            if key in self.waiting:
                self.waiting.discard(key)
                op = COMPLETE
        requests.append(
            Request(op, key, event.nbytes, event.stream, event.owner or DEFAULT_POOL, event.label)
        )

    def go(self) -> None:
        allocator, found = self.allocator, self.found
        curve = _Curve(allocator, len(self.events))
        curve.note(0, len(found.requests))
        most, i = allocator.allocated_bytes, 0
        found.peak_request = len(found.requests)
        while i < len(self.events):
            event = self.events[i]
            if event.action in _RETURNS:
                i = self._returned(i)
            else:
                self._step(i, event)
                i += 1
            if allocator.allocated_bytes > most:
                most = allocator.allocated_bytes
                found.peak_at, found.peak_request = i, len(found.requests)
            curve.note(i, len(found.requests))
        found.curve = curve.points()

    def _step(self, i: int, event: Event) -> None:
        action = event.action
        if action == "alloc" and event.nbytes:
            self._allocated(i, event)
        elif action == "free_completed" or (action == "free_requested" and self.whole_frees):
            self._freed(event)
        elif action == "free_requested":
            self._free_requested(i, event)
        elif action in _TAKES:
            self.fresh.append(event)
            self.owners.took(i, event)
        else:
            if action == "oom":
                self.found.ooms.append(event)
                self._map_failed_pages()
            self.found.other_actions[action] += 1

    # Taking.

    def _allocated(self, i: int, event: Event) -> None:
        wanted: Taken = [(taken.action, taken.address, taken.nbytes) for taken in self.fresh]
        self.fresh.clear()
        self.feed[:] = [address for _, address, _ in wanted]
        self.log.clear()
        owner = event.owner or self.owners.of(event.address)
        if self.unsure:
            self._settle(event, owner)
        if owner == DEFAULT_POOL:
            if wanted:  # a program may switch expandable segments on and off as it runs
                self.allocator.expandable = wanted[0][0] == "segment_map"
            elif i == 0:
                self._cut_off(event)
        address = self.allocator.malloc(event.nbytes, event.stream, owner)
        self._request(MALLOC, event._replace(owner=owner))
        if address != event.address:
            self.where[event.address] = address
        got: Taken = [(action, at, nbytes) for action, at, nbytes, _ in self.log]
        if self.cut_off:
            got, self.cut_off = [], False
        same = sum(1 for a, b in zip(wanted, got, strict=False) if a == b)
        self.found.segment_alloc.add(right=same, of=max(len(wanted), len(got)))
        good = address == event.address and wanted == got
        self.found.alloc.add(right=int(good), of=1)
        if not good:
            self._differs(
                say(
                    "allocator.alloc_differs",
                    event=Plain(i),
                    size=Number(event.nbytes),
                    label=event.label or "-",
                    recorded=f"{event.address:#x}",
                    simulated=f"{address:#x}",
                    recorded_taken=_taken(wanted),
                    simulated_taken=_taken(got),
                )
            )

    def _settle(self, event: Event, owner: PoolId) -> None:
        """The recording skipped a free block whose size is a guess: so it is smaller than the request."""
        allocator = self.allocator
        size = allocator.round_size(event.nbytes)
        pool = allocator.pool_of(owner, size)
        while (block := allocator.find_free(pool, size, event.stream)) is not None:
            pool.add(block)
            guess = self.unsure.get(block)
            if block.address == event.address or guess is None:
                break
            if not guess.possible():
                del self.unsure[block]
                break
            if not guess.shrink(allocator, size - MIN_BLOCK):
                break

    def _cut_off(self, event: Event) -> None:
        """The first event is the second half of a request whose new segment was taken just before it."""
        allocator = self.allocator
        size = allocator.round_size(event.nbytes)
        pool = allocator.pool_of(DEFAULT_POOL, size)
        found = allocator.find_free(pool, size, event.stream)
        if found is not None:
            pool.add(found)
        elif release_at(allocator, event.address):
            self.feed[:] = [event.address]
            allocator.peak_reserved_bytes = allocator.reserved_bytes
            self.cut_off = True

    def _differs(self, said: Sentence) -> None:
        if len(self.found.differences) < SHOWN_DIFFERENCES:
            self.found.differences.append(said)

    # Giving back.

    def _free_requested(self, i: int, event: Event) -> None:
        address = self.where.get(event.address, event.address)
        if address not in self.allocator.live:
            return  # it was already waiting when the recording began
        self.allocator.request_free(address)
        after = self.events[i + 1] if i + 1 < len(self.events) else event
        if after.action != "free_completed" or after.address != event.address:
            self._request(REQUEST_FREE, event)

    def _freed(self, event: Event) -> None:
        address = self.where.pop(event.address, event.address)
        if address in self.allocator.live:
            self.allocator.request_free(address)
        if address not in self.allocator.pending:
            self.found.lost_frees += 1
            return
        self.allocator.complete(address)
        self._request(FREE, event)

    def _returned(self, i: int) -> int:
        """A run of returned segments from event `i` on: the cache was emptied, or some made room."""
        end = i
        while end < len(self.events) and self.events[end].action in _RETURNS:
            end += 1
        returned = self.events[i:end]
        for event in returned:  # a private pool's segments are returned only once its graph is gone
            owner = event.owner or self.owners.of(event.address)
            if owner != DEFAULT_POOL:
                self.allocator.release_pool(owner)
            self.owners.returned(event)
        wanted: Taken = [(event.action, event.address, event.nbytes) for event in returned]
        self._note_cause(i, end)
        self._map_failed_pages()
        got = self._return(wanted, end)
        same = sum(1 for a, b in zip(wanted, got, strict=False) if a == b)
        self.found.segment_free.add(right=same, of=max(len(wanted), len(got)))
        if wanted != got:
            counts = {"recorded": len(wanted), "simulated": len(got), "same": same}
            self._differs(say("allocator.return_differs", first=Plain(i), last=Plain(end - 1), **counts))
        return end

    def _map_failed_pages(self) -> None:
        """Pages that were mapped for a request before the GPU turned out to be full stay mapped."""
        for event in self.fresh:
            if event.action == "segment_map":
                map_at(self.allocator, event.address, event.nbytes)
        self.fresh.clear()

    def _return(self, wanted: Taken, end: int) -> Taken:
        """What the simulation returns at this point: oversize blocks first, then all that is free.

        Which blocks garbage collection takes depends on the memory fraction, which is in no recording: with a
        threshold set, whole free segments are returned as recorded if the other rules do not explain them.
        """
        allocator = self.allocator
        self.log.clear()
        # One request may wait for other streams and return more before it is served.
        while end < len(self.events) and self.events[end].action in (*_TAKES, *_RETURNS, "free_completed"):
            end += 1
        after = self.events[end] if end < len(self.events) else None
        if after is not None and after.action in ("alloc", "oom"):
            size = allocator.round_size(after.nbytes)
            pool = allocator.pool_of(after.owner or DEFAULT_POOL, size)
            oversize = allocator.oversize(pool, size, after.stream)
            if oversize and [block.address for block in oversize] == [
                at for _, at, _ in wanted[: len(oversize)]
            ]:
                for block in oversize:
                    allocator.release(block)
        rest = [address for _, address, _ in wanted[len(self.log) :]]
        collects = allocator.settings.garbage_collection_threshold > 0
        if rest and collects and rest != [block.address for block in free_segments(allocator)]:
            for address in rest:
                release_at(allocator, address)
        elif rest:
            allocator.empty_cache()
        return [(action, at, nbytes) for action, at, nbytes, _ in self.log]

    def _note_cause(self, i: int, end: int) -> None:
        """Did the program empty the cache (then it would with other settings too), or was the GPU full?

        Full: the same stack goes on to take more, or to fail. Without stacks only a failure shows it.
        """
        event = self.events[i]
        after = self.events[end] if end < len(self.events) else None
        goes_on = after is not None and after.action in _TAKES and after.label == event.label != ""
        if (goes_on and "empty_cache" not in event.label) or (after is not None and after.action == "oom"):
            self.found.retries += 1
            self.found.retry_reserved_bytes = self.found.retry_reserved_bytes or self.allocator.reserved_bytes
        else:
            self.found.requests.append(Request(EMPTY_CACHE))


class _Owners:
    """The owner of an address's segment, if the events do not say (older versions)."""

    def __init__(self, segments: Sequence[Segment], state: Before, events: Sequence[Event]) -> None:
        self.private = any(segment.owner != DEFAULT_POOL for segment in segments)
        self.final = sorted((s.address, s.address + s.nbytes, s.owner) for s in segments)
        self.begins = {(s.address, s.nbytes) for s in segments}
        self.now = sorted((s.low, s.high, s.owner) for s in (*state.segments.values(), *state.mapped))
        # The final state shows at an address only what was taken there last.
        self.last = {event.address: i for i, event in enumerate(events) if event.action in _TAKES}

    def of(self, address: int) -> PoolId:
        if not self.private:
            return DEFAULT_POOL
        return _at(self.now, address) or DEFAULT_POOL

    def took(self, i: int, event: Event) -> None:
        if self.private:
            # Use the final state; otherwise new pages continue an existing segment.
            stays = self.last[event.address] == i and (
                event.action == "segment_map" or (event.address, event.nbytes) in self.begins
            )
            owner = event.owner or (_at(self.final, event.address) if stays else None)
            if owner is None and event.action == "segment_map":
                owner = _at(self.now, event.address - 1)
            insort(self.now, (event.address, event.address + event.nbytes, owner or DEFAULT_POOL))

    def returned(self, event: Event) -> None:
        if self.private:
            low, high = event.address, event.address + event.nbytes
            kept = []
            for first, end, owner in self.now:
                if first < min(end, low):
                    kept.append((first, min(end, low), owner))
                if end > max(first, high):
                    kept.append((max(first, high), end, owner))
            self.now = kept


def _at(ranges: Sequence[tuple[int, int, PoolId]], address: int) -> PoolId | None:
    i = bisect_right(ranges, address, key=itemgetter(0)) - 1
    return ranges[i][2] if i >= 0 and address < ranges[i][1] else None


class _Curve:
    """The highest point of each slice, so that no peak is lost between samples."""

    def __init__(self, allocator: Allocator, events: int) -> None:
        self.allocator = allocator
        self.events = max(events, 1)
        self.best: dict[int, Point] = {}

    def note(self, event: int, request: int) -> None:
        allocator = self.allocator
        slot = event * POINTS // (self.events + 1)
        best = self.best.get(slot)
        if best is None or allocator.allocated_bytes >= best.allocated_bytes:
            reserved = max(allocator.reserved_bytes, best.reserved_bytes if best else 0)
            self.best[slot] = Point(event, request, allocator.allocated_bytes, reserved)
        elif allocator.reserved_bytes > best.reserved_bytes:
            self.best[slot] = replace(best, reserved_bytes=allocator.reserved_bytes)

    def points(self) -> list[Point]:
        return [self.best[slot] for slot in sorted(self.best)]


def _taken(segments: Taken) -> Several | Sentence:
    sizes = tuple(Size(nbytes) for _, _, nbytes in segments)
    return Several(sizes) if sizes else say("allocator.no_segment_taken")


# A recording contains neither the size of the GPU nor the memory fraction. Whether a request failed at first,
# and whether garbage was collected, is taken from it and applied to the simulation explicitly:


def free_segments(allocator: Allocator) -> list[Block]:
    """The ordinary segments that emptying the cache would return, in its order."""
    free = (block for pool in allocator.emptied() for block in pool.in_order())
    return [block for block in free if block.alone and block.va is None]


def release_at(allocator: Allocator, address: int) -> bool:
    """Return the segment at `address`, if it is completely free."""
    for block in free_segments(allocator):
        if block.address == address:
            allocator.release(block)
            return True
    return False


def map_at(allocator: Allocator, address: int, nbytes: int) -> bool:
    """Map pages at `address`, if an unmapped range begins there."""
    for pool in (pool for pair in allocator.pools.values() for pool in pair):
        for ranges in pool.unmapped.values():
            for block in ranges:
                if block.address == address and block.size >= nbytes:
                    return allocator.map_pages(block, nbytes)
    return False
