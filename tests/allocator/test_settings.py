"""PYTORCH_CUDA_ALLOC_CONF is read as PyTorch reads it, and what cannot be read is refused with a reason."""

from __future__ import annotations

from typing import Any

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
    assert [note.values["key"] for note in settings.notes] == [
        "pinned_use_cuda_host_register",
        "pinned_max_cached_size_mb",
        "release_lock_on_cudamalloc",
    ]


def test_the_async_backend_is_refused_with_a_reason() -> None:
    with pytest.raises(Refused) as caught:
        Settings.parse("backend:cudaMallocAsync")
    assert caught.value.code == "backend_not_simulated"


def a(code: str, **values: object) -> dict[str, Any]:
    return {"code": f"allocator.{code}", **values}


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("max_split_size_mb:19", a("not_whole_number", at_least=20)),
        ("max_split_size_mb:many", a("not_whole_number", value="many")),
        ("max_split_size_mb:32,large_segment_size_mb:64", a("max_split_below_segment", mib=64)),
        ("max_non_split_rounding_mb:1", a("not_whole_number", at_least=20)),
        ("large_segment_size_mb:10", a("not_whole_number", at_least=11)),
        ("garbage_collection_threshold:1.0", a("threshold_out_of_range")),
        ("garbage_collection_threshold:nan", a("fraction_out_of_range")),
        ("per_process_memory_fraction:1.5", a("fraction_out_of_range", value="1.5")),
        ("expandable_segments:true", a("not_true_or_false", value="true")),
        ("expandable_segments", a("settings_unreadable")),
        ("expandable_segments:", a("settings_unreadable")),
        ("roundup_power2_divisions:3", a("divisions_not_power_of_two", parts=3)),
        ("roundup_power2_divisions:[3:4]", a("interval_not_power_of_two", mib=3)),
        ("roundup_power2_divisions:[256]", a("divisions_entry", entry="256")),
        ("roundup_power2_divisions:[256:4", a("settings_unreadable")),
        ("backend:mimalloc", a("unknown_backend", value="mimalloc")),
        ("max_split_mb:128", a("unknown_option", key="max_split_mb")),
        ("x" * 3000, a("settings_too_long", length=3000)),
    ],
)
def test_what_pytorch_would_refuse_is_refused_with_its_reason(conf: str, said: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        Settings.parse(conf)
    assert caught.value.said.as_dict().items() >= said.items()
