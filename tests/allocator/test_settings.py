"""PYTORCH_CUDA_ALLOC_CONF is read as PyTorch reads it, and what cannot be read is refused with a reason."""

from __future__ import annotations

import pytest

from brimful.allocator import Settings
from brimful.errors import BadInput, Refused
from brimful.units import MIB


def test_nothing_means_the_defaults() -> None:
    assert Settings.parse("") == Settings() == Settings.parse("backend:native")
    assert str(Settings()) == ""


def test_every_option_that_moves_device_bytes_is_read_blanks_and_all() -> None:
    settings = Settings.parse(
        "expandable_segments:True, max_split_size_mb:128,max_non_split_rounding_mb: 64,"
        "garbage_collection_threshold:0.8,large_segment_size_mb:32,per_process_memory_fraction:0.5"
    )
    assert settings == Settings(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        garbage_collection_threshold=0.8,
        large_segment_bytes=32 * MIB,
        memory_fraction=0.5,
    )
    assert Settings.parse(str(settings)) == settings


def test_one_number_of_divisions_holds_for_every_size() -> None:
    assert Settings.parse("roundup_power2_divisions:4").divisions == (4,) * 16


def test_a_list_of_divisions_gives_the_first_to_all_below_and_the_last_to_all_above() -> None:
    """[256:1,512:2,>:4]: index = log2 of MiB. 1..128 MiB are indexes 0-7, 256 is 8, 512 is 9."""
    divisions = Settings.parse("roundup_power2_divisions:[256:1,512:2,>:4]").divisions
    assert divisions[:8] == (1,) * 8  # filled from the first entry
    assert divisions[8] == 1
    # `>` fills from the last index named on, 512 MiB included: that is what PyTorch does.
    assert divisions[9:] == (4,) * 7


def test_a_size_between_two_named_ones_stays_undivided() -> None:
    divisions = Settings.parse("roundup_power2_divisions:[2:2,16:8]").divisions
    assert divisions == (2, 2, 0, 0, 8) + (0,) * 11
    again = Settings.parse("roundup_power2_divisions:[2:2,16:8]")
    assert Settings.parse(str(again)) == again


def test_pinned_memory_and_locks_are_accepted_and_said_to_change_nothing() -> None:
    settings = Settings.parse(
        "pinned_use_cuda_host_register:True,pinned_max_cached_size_mb:64,release_lock_on_cudamalloc:True"
    )
    assert settings == Settings()
    assert [note.split()[0] for note in settings.notes] == [
        "pinned_use_cuda_host_register",
        "pinned_max_cached_size_mb",
        "release_lock_on_cudamalloc",
    ]


def test_the_async_backend_is_refused_with_a_reason() -> None:
    with pytest.raises(Refused, match="driver's own pool") as caught:
        Settings.parse("backend:cudaMallocAsync")
    assert caught.value.code == "backend_not_simulated"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:many", "whole number"),
        ("max_split_size_mb:32,large_segment_size_mb:64", "64"),
        ("max_non_split_rounding_mb:1", "at least 20"),
        ("large_segment_size_mb:10", "at least 11"),
        ("garbage_collection_threshold:1.0", "both excluded"),
        ("garbage_collection_threshold:nan", "above 0"),
        ("per_process_memory_fraction:1.5", "not above 1"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments", "cannot read"),
        ("expandable_segments:", "cannot read"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[3:4]", "powers of two"),
        ("roundup_power2_divisions:[256]", "size:divisions"),
        ("roundup_power2_divisions:[256:4", "cannot read"),
        ("backend:mimalloc", "unknown allocator backend"),
        ("max_split_mb:128", "unknown allocator option 'max_split_mb'"),
        ("x" * 3000, "2,000"),
    ],
)
def test_what_pytorch_would_refuse_is_refused_in_plain_words(conf: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Settings.parse(conf)
