"""The caching allocator's rules, each as a scenario with its arithmetic written out.

Addresses are relative to the first segment. Recordings of real GPUs prove the common rules
(test_replay.py); the rules marked *from source* occur in no recording we have.
"""

from __future__ import annotations

import pytest

from brimful.allocator import (
    EMPTY_CACHE,
    FREE,
    MALLOC,
    Allocator,
    OutOfMemory,
    Request,
    Settings,
    run,
)
from brimful.units import GIB, KIB, MIB

BASE = Allocator().malloc(1)


class Device:
    """An allocator whose addresses count from its first segment, and whose segment events are kept."""

    def __init__(self, conf: str = "", capacity_bytes: int | None = None) -> None:
        self.log: list[tuple[str, int, int, int]] = []
        self.allocator = Allocator(Settings.parse(conf), capacity_bytes, log=self.log)

    def malloc(self, nbytes: int, stream: int = 0, owner: tuple[int, int] = (0, 0)) -> int:
        return self.allocator.malloc(nbytes, stream, owner) - BASE

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.allocator.free(BASE + address)

    def segments(self) -> list[tuple[str, int, int]]:
        """What was asked of the device and returned to it since the last look."""
        seen = [(action, address - BASE, nbytes) for action, address, nbytes, _ in self.log]
        self.log.clear()
        return seen


# Sizes.


@pytest.mark.parametrize(
    ("asked", "given"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_sizes_are_rounded_up_to_512_bytes(asked: int, given: int) -> None:
    assert Allocator().round_size(asked) == given


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),  # small
        (MIB, 2 * MIB),  # the largest small one
        (MIB + 512, 20 * MIB),  # shares
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # a segment of its own
        (10 * MIB + 512, 12 * MIB),  # rounded up to 2 MiB
        (536 * MIB, 536 * MIB),
    ],
)
def test_the_device_is_asked_for_2_mib_20_mib_or_a_multiple_of_2_mib(size: int, segment: int) -> None:
    assert Allocator().segment_size(size) == segment


def test_zero_bytes_are_the_null_pointer_and_hold_nothing() -> None:
    allocator = Allocator()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert allocator.reserved_bytes == 0


# Search, split, merge.


def test_small_and_large_requests_never_share_a_segment() -> None:
    device = Device()
    device.malloc(512)
    device.malloc(2 * MIB)
    assert device.segments() == [("segment_alloc", 0, 2 * MIB), ("segment_alloc", 2 * MIB, 20 * MIB)]


def test_the_low_end_is_handed_out_and_the_rest_stays_free() -> None:
    device = Device()
    assert [device.malloc(2 * MIB) for _ in range(3)] == [0, 2 * MIB, 4 * MIB]
    assert device.segments() == [("segment_alloc", 0, 20 * MIB)]


def test_best_fit_takes_the_smallest_that_suffices_and_the_lowest_of_equals() -> None:
    """Holes of 4, 2 and 2 MiB at 0, 6 and 10 MiB: 2 MiB goes to 6, then to 10, then into the 4 at 0."""
    device = Device()
    a, _, c, _, e, _ = (device.malloc(n * MIB) for n in (4, 2, 2, 2, 2, 8))
    device.free(a, c, e)
    assert [device.malloc(2 * MIB) for _ in range(3)] == [6 * MIB, 10 * MIB, 0]


def test_a_large_rest_of_at_most_1_mib_is_not_split_off_and_is_charged() -> None:
    """20 MiB segment: 16 + 3 leave 1 MiB, which stays with the 3: allocated 20, requested 19."""
    device = Device()
    device.malloc(16 * MIB)  # a segment of its own: 16
    device.segments()
    device.malloc(9 * MIB)
    device.malloc(8 * MIB)
    device.malloc(2 * MIB)  # 20 - 17 = 3: the rest would be 1 MiB, not more
    assert device.allocator.requested_bytes == (16 + 9 + 8 + 2) * MIB
    assert device.allocator.allocated_bytes == (16 + 9 + 8 + 3) * MIB
    assert device.segments() == [("segment_alloc", 16 * MIB, 20 * MIB)]


def test_a_small_rest_is_split_off_down_to_512_bytes() -> None:
    device = Device()
    assert device.malloc(MIB) == 0
    assert device.malloc(MIB - 512) == MIB
    assert device.malloc(1) == 2 * MIB - 512
    assert device.allocator.allocated_bytes == 2 * MIB


def test_freed_neighbours_become_one_block_again() -> None:
    device = Device()
    a, b, c = (device.malloc(4 * MIB) for _ in range(3))
    device.free(a, c, b)  # c joins the free tail, b joins both sides
    assert device.malloc(9 * MIB) == 0
    assert device.allocator.reserved_bytes == 20 * MIB


def test_streams_do_not_share_free_blocks() -> None:
    device = Device()
    device.free(device.malloc(4 * MIB, stream=1))
    assert device.malloc(4 * MIB, stream=2) == 20 * MIB
    assert device.malloc(4 * MIB, stream=1) == 0


# Returning memory.


def test_empty_cache_returns_whole_segments_large_first_each_by_size_then_address() -> None:
    """The half-used 20 at 0 stays; 2 (small) at 20, 16 at 22, 14 at 38 and at 52."""
    device = Device()
    kept, _ = device.malloc(4 * MIB), device.malloc(4 * MIB)
    small, big, mid = device.malloc(512), device.malloc(16 * MIB), device.malloc(14 * MIB)
    other = device.malloc(14 * MIB)
    device.segments()
    device.free(kept, small, big, mid, other)
    device.allocator.empty_cache()
    assert device.segments() == [
        ("segment_free", 38 * MIB, 14 * MIB),
        ("segment_free", 52 * MIB, 14 * MIB),
        ("segment_free", 22 * MIB, 16 * MIB),
        ("segment_free", 20 * MIB, 2 * MIB),
    ]
    assert device.allocator.reserved_bytes == 20 * MIB


# From source: running out.


def test_a_full_device_first_returns_what_is_free_and_tries_again() -> None:
    """Capacity 40: 20 cached + a request of 30 -> 50 > 40, so the 20 are returned: 30 fits."""
    device = Device(capacity_bytes=40 * MIB)
    device.free(device.malloc(4 * MIB))
    device.malloc(30 * MIB)
    assert device.segments() == [
        ("segment_alloc", 0, 20 * MIB),
        ("segment_free", 0, 20 * MIB),
        ("segment_alloc", 20 * MIB, 30 * MIB),
    ]
    assert device.allocator.retries == 1


def test_out_of_memory_carries_the_numbers_pytorch_prints() -> None:
    """4 of 20 MiB used keep the segment; 1 GiB - 20 MiB is left, 1 GiB is wanted."""
    device = Device(capacity_bytes=GIB)
    device.malloc(4 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        device.malloc(GIB - MIB)
    error = caught.value
    assert error.segment_bytes == GIB  # rounded up to 2 MiB: what "tried to allocate" says
    assert error.requested_bytes == GIB - MIB
    assert error.free_bytes == GIB - 20 * MIB
    assert (error.allocated_bytes, error.reserved_bytes) == (4 * MIB, 20 * MIB)
    said = error.said.as_dict()
    assert (said["code"], said["segment"], said["cached"]) == ("allocator.out_of_memory", GIB, 16 * MIB)


def test_memory_outside_pytorch_counts_against_the_device() -> None:
    allocator = Allocator(capacity_bytes=GIB, other_bytes=GIB - 20 * MIB)
    allocator.malloc(10 * MIB)
    allocator.malloc(10 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(512)


def test_a_memory_fraction_fails_like_a_full_device() -> None:
    """Half of 80 MiB: 20 + 20 fit, another 20 does not, though 40 are free."""
    device = Device("per_process_memory_fraction:0.5", 80 * MIB)
    device.malloc(9 * MIB)
    device.malloc(20 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        device.malloc(12 * MIB)
    assert caught.value.limit_bytes == 40 * MIB
    assert caught.value.free_bytes == 40 * MIB


# From source: roundup_power2_divisions.


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (1200, 1536),  # not above 512 * 4: the plain rule
        (2048, 2048),  # 512 * 4 itself is not above it either
        (2049, 2560),  # between 2048 and 4096 in steps of 512: 2560
        (5 * MIB, 5 * MIB),  # 4, 5, 6, 7, 8: on a step
        (5 * MIB + 1, 6 * MIB),
        (8 * MIB, 8 * MIB),  # a power of two
        (1100 * MIB, 1280 * MIB),  # 1024 in steps of 256
    ],
)
def test_four_divisions_round_up_to_quarters_between_powers_of_two(asked: int, given: int) -> None:
    assert Allocator(Settings.parse("roundup_power2_divisions:4")).round_size(asked) == given


def test_divisions_per_size_apply_to_their_own_power_of_two() -> None:
    allocator = Allocator(Settings.parse("roundup_power2_divisions:[2:2,4:8]"))
    assert allocator.round_size(2 * MIB + 1) == 3 * MIB  # 2 MiB interval, halves
    assert allocator.round_size(4 * MIB + 1) == 4 * MIB + 512 * KIB  # 4 MiB interval, eighths
    assert allocator.round_size(8 * MIB + 1) == 8 * MIB + 512  # not named: 512 B
    assert allocator.round_size(600 * KIB) == 768 * KIB  # below 1 MiB the first entry holds: 512 + 256


# From source: max_split_size_mb.


def test_an_oversize_block_is_not_cut_up_for_a_smaller_request() -> None:
    """max_split 20: the free 40 is oversize, a request of 4 gets a new 20 instead of its low end."""
    device = Device("max_split_size_mb:20")
    device.free(device.malloc(40 * MIB))
    assert device.malloc(4 * MIB) == 40 * MIB
    assert device.segments() == [("segment_alloc", 0, 40 * MIB), ("segment_alloc", 40 * MIB, 20 * MIB)]


def test_an_oversize_request_takes_an_oversize_block_less_than_20_mib_larger_whole() -> None:
    """Free 60: 42 takes it whole (18 over), 40 does not (20 over)."""
    device = Device("max_split_size_mb:20")
    device.free(device.malloc(60 * MIB))
    assert device.malloc(42 * MIB) == 0
    assert device.allocator.allocated_bytes == 60 * MIB
    device.free(0)
    assert device.malloc(40 * MIB) == 60 * MIB


def test_max_non_split_rounding_widens_that_limit() -> None:
    device = Device("max_split_size_mb:20,max_non_split_rounding_mb:32")
    device.free(device.malloc(60 * MIB))
    assert device.malloc(40 * MIB) == 0


def test_with_max_split_the_largest_oversize_blocks_are_returned_until_it_is_enough() -> None:
    """Capacity 200, free 30, 80 and 60. 110 fits none; 170 + 110 > 200, and no single block has 110.

    So the largest are returned until 110 are: 80, then 60. The 30 was not needed and stays.
    """
    device = Device("max_split_size_mb:20", 200 * MIB)
    blocks = [device.malloc(n * MIB) for n in (30, 80, 60)]
    device.free(*blocks)
    device.segments()
    device.malloc(110 * MIB)
    assert device.segments() == [
        ("segment_free", 30 * MIB, 80 * MIB),
        ("segment_free", 110 * MIB, 60 * MIB),
        ("segment_alloc", 170 * MIB, 110 * MIB),
    ]
    assert device.allocator.retries == 0


def test_with_max_split_the_smallest_sufficient_oversize_block_goes_alone() -> None:
    """Capacity 200, free 80 and 100; 50 fits neither (30 and 50 over); 180 + 50 > 200: the 80 is returned."""
    device = Device("max_split_size_mb:20", 200 * MIB)
    device.free(device.malloc(80 * MIB), device.malloc(100 * MIB))
    device.segments()
    device.malloc(50 * MIB)
    assert device.segments() == [("segment_free", 0, 80 * MIB), ("segment_alloc", 180 * MIB, 50 * MIB)]


# From source: garbage collection.


def test_garbage_collection_returns_the_blocks_that_waited_longest() -> None:
    """Half of 200 MiB allowed, half of that the threshold: above 50, a miss returns blocks of mean age on.

    Each search of the large pool counts one; a block notes the count when it becomes free.
    20 (count 1) and 30 (2) are new. Free the 20. Search 12 (3) takes its low end; free: noted 3.
    Free the 30. Search 22 (4) takes its low end; free: noted 4.
    Search 40 (5) is a miss; 50 reserved are not above 50, so nothing goes; 90 reserved. Free: noted 5.
    Search 60 (6) is a miss; 90 - 50 = 40 too many. Ages 6-3 = 3, 6-4 = 2, 6-5 = 1, mean 2:
    the 20 and the 30 go, together 50, and the 40 stays.
    40 + 60 = 100 fits.
    """
    device = Device("per_process_memory_fraction:0.5,garbage_collection_threshold:0.5", 200 * MIB)
    a, b = device.malloc(20 * MIB), device.malloc(30 * MIB)
    device.free(a)
    c = device.malloc(12 * MIB)
    device.free(c, b)
    device.free(device.malloc(22 * MIB))
    device.free(device.malloc(40 * MIB))
    device.segments()
    device.malloc(60 * MIB)
    assert device.segments() == [
        ("segment_free", 0, 20 * MIB),
        ("segment_free", 20 * MIB, 30 * MIB),
        ("segment_alloc", 90 * MIB, 60 * MIB),
    ]


@pytest.mark.parametrize("fraction", ["", ",per_process_memory_fraction:1.0"])
def test_without_a_limit_the_threshold_does_nothing(fraction: str) -> None:
    device = Device(f"garbage_collection_threshold:0.1{fraction}", GIB)
    device.free(device.malloc(200 * MIB))
    device.malloc(300 * MIB)
    assert [action for action, *_ in device.segments()] == ["segment_alloc", "segment_alloc"]


# From source: other streams.


def test_a_block_another_stream_uses_is_neither_allocated_nor_reused_until_that_stream_is_done() -> None:
    device = Device()
    a = device.malloc(4 * MIB)
    device.allocator.request_free(BASE + a)
    assert device.allocator.allocated_bytes == 0
    assert device.malloc(4 * MIB) == 4 * MIB  # not reused yet
    device.allocator.complete(BASE + a)
    assert device.malloc(4 * MIB) == 0


def test_a_neighbour_does_not_merge_with_a_block_in_use_elsewhere() -> None:
    device = Device()
    a, b = device.malloc(4 * MIB), device.malloc(4 * MIB)
    device.allocator.request_free(BASE + a)
    device.free(b)
    assert device.malloc(8 * MIB) == 4 * MIB  # b and the tail, not a
    device.allocator.synchronize()
    assert device.malloc(4 * MIB) == 0


def test_running_out_waits_for_other_streams() -> None:
    device = Device(capacity_bytes=20 * MIB)
    device.allocator.request_free(BASE + device.malloc(20 * MIB))
    assert device.malloc(12 * MIB) == 20 * MIB
    assert device.segments()[1] == ("segment_free", 0, 20 * MIB)


# From source: private pools (CUDA graphs, MemPool).


def test_a_private_pool_keeps_its_segments_until_its_graph_is_gone() -> None:
    device = Device()
    device.free(device.malloc(4 * MIB))
    a = device.malloc(4 * MIB, owner=(1, 0))
    assert a == 20 * MIB  # not the default pool's free block
    device.free(a)
    assert device.malloc(4 * MIB) == 0  # and the default pool does not touch the private one
    device.allocator.empty_cache()
    assert ("segment_free", 20 * MIB, 20 * MIB) not in device.segments()
    device.allocator.release_pool((1, 0))
    device.allocator.empty_cache()
    assert device.segments() == [("segment_free", 20 * MIB, 20 * MIB)]


def test_during_a_capture_nothing_cached_is_returned_to_make_room() -> None:
    device = Device(capacity_bytes=40 * MIB)
    device.free(device.malloc(20 * MIB))
    with pytest.raises(OutOfMemory):
        device.malloc(30 * MIB, owner=(1, 0))
    device.malloc(30 * MIB)


# From source: expandable segments. Address space of 9/8 of the device, mapped in pages of 2 or 20 MiB.


def test_an_expandable_segment_maps_pages_as_it_grows() -> None:
    """30 MiB -> 2 pages of 20 at 0; its rest of 10 serves 8; 8 more: 2 left + 1 page."""
    device = Device("expandable_segments:True", 80 * MIB)
    assert [device.malloc(n * MIB) for n in (30, 8, 8)] == [0, 30 * MIB, 38 * MIB]
    assert device.segments() == [("segment_map", 0, 40 * MIB), ("segment_map", 40 * MIB, 20 * MIB)]
    assert device.allocator.reserved_bytes == 60 * MIB


def test_small_requests_grow_a_segment_of_their_own_by_2_mib() -> None:
    """Address space for 80 MiB: 90 in pages of 20 = 100 MiB, so the small one begins at 100."""
    device = Device("expandable_segments:True", 80 * MIB)
    device.malloc(2 * MIB)
    assert device.malloc(512) == 100 * MIB
    assert device.segments() == [("segment_map", 0, 20 * MIB), ("segment_map", 100 * MIB, 2 * MIB)]


def test_an_expandable_rest_is_split_off_down_to_512_bytes() -> None:
    device = Device("expandable_segments:True", 80 * MIB)
    device.malloc(20 * MIB - 512)
    assert device.allocator.allocated_bytes == 20 * MIB - 512


def test_a_block_at_the_growing_end_counts_as_what_it_could_become() -> None:
    """Free: 8 in a hole at 4, and 8 at the end (12..20), which could grow by 80. 6 goes into the hole."""
    device = Device("expandable_segments:True", 80 * MIB)
    a, b = device.malloc(4 * MIB), device.malloc(8 * MIB)
    device.free(b)  # 4..20 is one free block again, at the growing end
    assert device.malloc(6 * MIB) == 4 * MIB
    device.free(a)
    assert device.malloc(3 * MIB) == 0  # the hole of 4, though 10 at the end is larger still


def test_the_growing_end_is_avoided_even_where_it_is_the_tighter_fit() -> None:
    """Free: a hole of 10 at 0 and 6 at the end (14..20, could be 6 + 80 = 86). 5 fits the 6 tighter,
    but 10 < 86: the hole is taken."""
    device = Device("expandable_segments:True", 80 * MIB)
    hole = device.malloc(10 * MIB)
    device.malloc(4 * MIB)
    device.free(hole)
    assert device.malloc(5 * MIB) == 0


def test_running_out_unmaps_whole_free_pages_and_maps_them_where_they_are_needed() -> None:
    """Capacity 60. 50 takes 3 pages. Free it, keep 4 at 0: 4..60 is free, the pages of 20..60 wholly.

    A small request needs 2 MiB: 60 + 2 > 60. Pages 20..60 are unmapped; then 2 fit.
    """
    device = Device("expandable_segments:True", 60 * MIB)
    a = device.malloc(50 * MIB)
    device.free(a)
    device.malloc(4 * MIB)
    device.segments()
    device.malloc(512)
    # Address space: 67.5 in pages of 20 = 80, so the small segment begins at 80.
    assert device.segments() == [("segment_unmap", 20 * MIB, 40 * MIB), ("segment_map", 80 * MIB, 2 * MIB)]
    assert device.allocator.reserved_bytes == 22 * MIB


def test_unmapped_pages_low_in_the_segment_are_filled_first() -> None:
    """Pages 0..20 unmapped (30 at 20..50 stays, page 2 is half free): 15 maps page 0 again, not page 3."""
    device = Device("expandable_segments:True", 80 * MIB)
    low, _ = device.malloc(20 * MIB), device.malloc(30 * MIB)
    device.free(low)
    device.allocator.empty_cache()
    assert device.segments()[-1] == ("segment_unmap", 0, 20 * MIB)
    assert device.malloc(15 * MIB) == 0
    assert device.segments() == [("segment_map", 0, 20 * MIB)]


def test_a_segment_with_nothing_mapped_gives_up_its_address_space() -> None:
    device = Device("expandable_segments:True", 80 * MIB)
    device.free(device.malloc(20 * MIB))
    device.allocator.empty_cache()
    assert device.malloc(20 * MIB) == 100 * MIB  # a new segment


def test_large_segment_size_sets_both_the_shared_segment_and_the_page() -> None:
    plain = Device("large_segment_size_mb:32")
    plain.malloc(2 * MIB)
    growing = Device("expandable_segments:True,large_segment_size_mb:32", 80 * MIB)
    growing.malloc(34 * MIB)
    assert plain.segments() == [("segment_alloc", 0, 32 * MIB)]
    assert growing.segments() == [("segment_map", 0, 64 * MIB)]


# A list of requests at once.


def test_a_run_stops_at_the_request_that_does_not_fit_and_says_which() -> None:
    requests = [
        Request(MALLOC, 1, 30 * MIB),
        Request(FREE, 1),
        Request(EMPTY_CACHE),
        Request(MALLOC, 2, 2 * GIB),
    ]
    outcome = run(requests, capacity_bytes=GIB)
    assert outcome.failed_at == 3
    assert outcome.out_of_memory is not None
    assert outcome.peak_reserved_bytes == 30 * MIB
    assert outcome.out_of_memory.reserved_bytes == 0
