"""Recordings of real GPUs replay event for event, and breaking any rule they exercise shows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from brimful.allocator import Allocator, caching
from brimful.allocator.blocks import Block, Pool
from brimful.allocator.compare import compare
from brimful.allocator.replay import best, replay, replay_device
from brimful.allocator.snapshot import Snapshot, read_snapshot
from brimful.errors import NotFound
from brimful.language import Number, Size, say
from brimful.units import KIB, MIB
from tests.allocator.recording import Recording, a_run

# Most of the rules show in these four, which replay in half a second; the others are replayed whole below.
SHARP = (
    "silmont__mem_snapshot",
    "silmont__memory_forward_bf16_128",
    "kkaitlyn__memory_files-memory_ctx256_forward_mixed",
    "wedsonlin__medium_128_training",
)


@cache
def recording(path: Path) -> Snapshot:
    return read_snapshot(path)


def test_every_recording_replays_with_no_wrong_event(shared_data: Path) -> None:
    """Addresses, segment sizes, segment frees in order; reserved and allocated bytes at the end."""
    paths = sorted((shared_data / "snapshots").glob("*.json.gz"))
    right = {"alloc": 0, "segment_alloc": 0, "segment_free": 0}
    for path in paths:
        snapshot = recording(path)
        for device in snapshot.devices:
            found = replay_device(snapshot, device).as_dict()
            for kind in right:
                assert found[kind]["wrong"] == 0, (path.name, kind, found["differences"])
                right[kind] += found[kind]["right"]
            assert found["reserved_bytes"]["simulated"] == found["reserved_bytes"]["recorded"], path.name
            assert found["allocated_bytes"]["simulated"] == found["allocated_bytes"]["recorded"], path.name
            codes = {note["code"] for note in found["note_codes"]}
            assert "allocator.note_lost_frees" not in codes, path.name
    assert len(paths) >= 11
    assert right["alloc"] > 28_000
    assert right["segment_alloc"] > 1_300
    assert right["segment_free"] > 800


def test_the_peaks_of_a_recording_from_process_start_are_exact(shared_data: Path) -> None:
    """Attention by hand, forward and backward: figures of the notes, from the recording itself."""
    replayed = replay(shared_data / "snapshots" / "silmont__mem_snapshot.json.gz", sweep=False)
    assert replayed.peak_requested_bytes == 3_249_143_816
    assert replayed.peak_allocated_bytes == 3_249_144_832
    assert replayed.peak_reserved_bytes == 3_781_165_056
    # From an empty device the sweep's own row is the recording again.
    assert replayed.sweep[0].peak_reserved_bytes == replayed.peak_reserved_bytes


# Mutations: each breaks one rule; the recordings must notice.


def _rounds_to_256(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "MIN_BLOCK", 256)


def _rounds_to_1024(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "MIN_BLOCK", 1024)


def _small_ends_at_half_a_mib(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocator, "pool_of", lambda self, _, n: self.small if n <= 512 * KIB else self.large)


def _small_segments_of_4_mib(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "SMALL_SEGMENT", 4 * MIB)


def _no_shared_large_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "MIN_LARGE", MIB)


def _sharing_up_to_12_mib(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "MIN_LARGE", 12 * MIB)


def _large_segments_rounded_to_4_mib(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caching, "LARGE_STEP", 4 * MIB)


def _worst_fit(patch: pytest.MonkeyPatch) -> None:
    def find(self: Allocator, pool: Pool, size: int, stream: int) -> Block | None:
        free = pool.free.get(stream)
        if free is None or not free.blocks or free.blocks[-1].size < size:
            return None
        return free.take(len(free.blocks) - 1)

    patch.setattr(Allocator, "find_free", find)


def _highest_address_of_equals(patch: pytest.MonkeyPatch) -> None:
    def find(self: Allocator, pool: Pool, size: int, stream: int) -> Block | None:
        free = pool.free.get(stream)
        if free is None or (i := free.first_at_least(size)) == len(free.blocks):
            return None
        while i + 1 < len(free.blocks) and free.blocks[i + 1].size == free.blocks[i].size:
            i += 1
        return free.take(i)

    patch.setattr(Allocator, "find_free", find)


def _first_fit_by_address(patch: pytest.MonkeyPatch) -> None:
    def find(self: Allocator, pool: Pool, size: int, stream: int) -> Block | None:
        free = pool.free.get(stream)
        fits = [block for block in free.blocks if block.size >= size] if free is not None else []
        if free is None or not fits:
            return None
        return free.take(free.blocks.index(min(fits, key=lambda block: block.address)))

    patch.setattr(Allocator, "find_free", find)


def _always_splits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocator, "should_split", lambda self, pool, size, rest: rest >= 512)


def _never_splits_large(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocator, "should_split", lambda self, pool, size, rest: pool.small and rest >= 512)


def _keeps_small_rests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocator, "should_split", lambda self, pool, size, rest: rest > MIB)


def _splits_off_rests_above(limit: int) -> Callable[[pytest.MonkeyPatch], None]:
    """The recordings hold the limit of 1 MiB between 0.5 and 1.25; test_allocator.py is exact."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        def should(self: Allocator, pool: Pool, size: int, rest: int) -> bool:
            return rest >= 512 if pool.small else rest > limit

        patch.setattr(Allocator, "should_split", should)

    return mutate


def _hands_out_the_high_end(patch: pytest.MonkeyPatch) -> None:
    def split(self: Allocator, block: Block, size: int) -> Block:
        part = Block(block.address + block.size - size, size, block.stream, block.pool, block.va)
        part.link(block, block.after)
        block.size -= size
        block.pool.add(block)
        return part

    patch.setattr(Allocator, "_split", split)


def _merges(side: str) -> Callable[[pytest.MonkeyPatch], None]:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        merge = Allocator._merge

        def one_sided(self: Allocator, block: Block, other: Block | None) -> None:
            if other is not None and other is getattr(block, side):
                merge(self, block, other)

        patch.setattr(Allocator, "_merge", one_sided)

    return mutate


def _returns_small_first(patch: pytest.MonkeyPatch) -> None:
    def empty(self: Allocator) -> None:
        self._release_pool(self.small)
        self._release_pool(self.large)

    patch.setattr(Allocator, "empty_cache", empty)


def _returns_by_address(patch: pytest.MonkeyPatch) -> None:
    order = Pool.in_order
    patch.setattr(Pool, "in_order", lambda self: iter(sorted(order(self), key=lambda block: block.address)))


def _returns_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocator, "empty_cache", lambda self: None)


def _returns_used_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "alone", property(lambda self: True))


MUTATIONS = [
    _rounds_to_256,
    _rounds_to_1024,
    _small_ends_at_half_a_mib,
    _small_segments_of_4_mib,
    _no_shared_large_segments,
    _sharing_up_to_12_mib,
    _large_segments_rounded_to_4_mib,
    _worst_fit,
    _highest_address_of_equals,
    _first_fit_by_address,
    _always_splits,
    _never_splits_large,
    _keeps_small_rests,
    _splits_off_rests_above(256 * KIB),
    _splits_off_rests_above(3 * MIB // 2),
    _hands_out_the_high_end,
    _merges("before"),
    _merges("after"),
    _returns_small_first,
    _returns_by_address,
    _returns_nothing,
    _returns_used_segments,
]


def wrong_events(shared_data: Path) -> int:
    """Over the sharp recordings; a crash is one wrong event more."""
    wrong = 0
    for name in SHARP:
        snapshot = recording(shared_data / "snapshots" / f"{name}.json.gz")
        try:
            _, found = compare(snapshot, 0)
        except (AssertionError, KeyError, IndexError, TypeError, AttributeError):
            wrong += 1
        else:
            wrong += (
                found.alloc.wrong + found.segment_alloc.wrong + found.segment_free.wrong + found.lost_frees
            )
        if wrong:
            break
    return wrong


def test_the_rules_as_they_are_make_no_wrong_event(shared_data: Path) -> None:
    assert wrong_events(shared_data) == 0


@pytest.mark.parametrize("break_rule", MUTATIONS)
def test_breaking_a_rule_shows_in_the_recordings(
    break_rule: Callable[[pytest.MonkeyPatch], None], shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SHARP:  # read with the rules whole
        recording(shared_data / "snapshots" / f"{name}.json.gz")
    break_rule(monkeypatch)
    assert wrong_events(shared_data) > 0


# Recordings made by the simulation itself, cut off anywhere: does the state before come out right?


@pytest.mark.parametrize(
    ("conf", "streams", "pools"),
    [
        ("", 1, 1),
        ("", 3, 1),
        ("", 2, 3),
        ("expandable_segments:True", 1, 1),
        ("expandable_segments:True", 3, 1),
        ("expandable_segments:True", 1, 2),
        ("max_split_size_mb:20", 2, 1),
        ("roundup_power2_divisions:4", 1, 1),
        ("expandable_segments:True,roundup_power2_divisions:[1:2,>:8]", 1, 1),
        ("large_segment_size_mb:32", 1, 1),
    ],
)
def test_a_recording_that_starts_in_the_middle_replays_from_there(
    conf: str, streams: int, pools: int, tmp_path: Path
) -> None:
    for seed in (1, 2):
        made = a_run(Recording(conf, 64 << 30), 700, seed, streams=streams, pools=pools)
        for first in (0, len(made.trace) // 3, len(made.trace) // 2, len(made.trace) - 50):
            path = tmp_path / "snapshot.pickle"
            path.write_bytes(pickle.dumps(made.snapshot(first)))
            replayed = replay(path, sweep=False)
            assert replayed.wrong == 0, (seed, first, replayed.compared.differences[:3])
            assert replayed.compared.lost_frees == 0
            assert replayed.reserved_simulated_bytes == replayed.reserved_recorded_bytes
            assert replayed.allocated_simulated_bytes == replayed.allocated_recorded_bytes


@pytest.mark.parametrize(
    ("conf", "streams", "pools"),
    [
        ("", 1, 1),
        ("", 2, 2),
        ("max_split_size_mb:20", 1, 1),
        ("max_split_size_mb:32", 2, 1),
        ("roundup_power2_divisions:4", 1, 1),
        ("garbage_collection_threshold:0.6,per_process_memory_fraction:0.8", 1, 1),
        ("max_split_size_mb:24,garbage_collection_threshold:0.6,per_process_memory_fraction:0.9", 1, 1),
    ],
)
def test_a_recording_of_a_full_gpu_replays_with_its_retries_and_failures(
    conf: str, streams: int, pools: int, tmp_path: Path
) -> None:
    for seed in (1, 2):
        made = a_run(Recording(conf, 300 * MIB), 800, seed, streams=streams, pools=pools)
        actions = [event["action"] for event in made.trace]
        assert made.allocator.retries > 0
        assert "oom" in actions
        for first in (0, len(actions) // 2):
            replayed = a_replay(made.snapshot(first), tmp_path, sweep=False)
            assert replayed.wrong == 0, (seed, first, replayed.compared.differences[:3])
            assert replayed.reserved_simulated_bytes == replayed.reserved_recorded_bytes
            assert len(replayed.compared.ooms) == actions[first:].count("oom")


def test_a_new_segment_shows_that_a_free_block_of_unsure_size_was_too_small(tmp_path: Path) -> None:
    # 20 MiB in four: 4 + 3 + 6 + 7. The 4 come back and serve 3.5, whose rest of 0.5 is too small to split
    # off; the 3 come back. A request of 3.25 MiB finds 3 free. That 3.5 kept 0.5 is nowhere recorded: if it
    # had not, 3.5 would be free and no new segment needed.
    made = Recording()
    four, three, _, _ = (made.malloc(n * MIB) for n in (4, 3, 6, 7))
    made.free(four)
    kept = made.malloc(7 * MIB // 2)
    made.free(three)
    begins = len(made.trace)
    made.malloc(13 * MIB // 4)
    made.free(kept)
    assert made.trace[begins]["action"] == "segment_alloc"
    replayed = a_replay(made.snapshot(begins), tmp_path, sweep=False)
    assert replayed.wrong == 0, replayed.compared.differences
    assert replayed.compared.alloc.right == 1


def test_an_expandable_segment_that_was_given_up_does_not_lengthen_the_next_one(tmp_path: Path) -> None:
    # The address space at the start is given up with its last page; the next one happens to lie below it.
    made = Recording("expandable_segments:True", 64 << 30)
    made.allocator._next_address += 256 << 30
    held = [made.malloc(900 * KIB)]
    begins = len(made.trace)
    held += [made.malloc(900 * KIB) for _ in range(2)]  # the second page, after the first
    for address in held:
        made.free(address)
    made.empty_cache()
    made.allocator._next_address -= 512 << 30
    made.malloc(KIB)
    maps = [event["addr"] for event in made.trace[begins:] if event["action"] == "segment_map"]
    assert len(maps) == 2
    assert maps[1] < maps[0]
    replayed = a_replay(made.snapshot(begins), tmp_path, sweep=False)
    assert replayed.wrong == 0, replayed.compared.differences


def test_pages_that_were_unmapped_are_told_small_from_large_by_their_size(tmp_path: Path) -> None:
    # 20 MiB are a large page though only a small one is known on that stream: large ones are returned first.
    made = Recording("expandable_segments:True", 64 << 30)
    here, _, there = made.malloc(KIB), made.malloc(KIB, stream=1), made.malloc(15 * MIB, stream=1)
    made.free(here)
    made.free(there)
    begins = len(made.trace)
    made.empty_cache()
    assert [event["size"] // MIB for event in made.trace[begins:]] == [20, 2]
    replayed = a_replay(made.snapshot(begins), tmp_path, sweep=False)
    assert replayed.wrong == 0, replayed.compared.differences


# The odd ends of real snapshots.


def a_replay(raw: dict[str, Any], tmp_path: Path, **options: Any) -> Any:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    return replay(path, **options)


def test_actions_that_move_no_memory_are_counted_and_passed_over(tmp_path: Path) -> None:
    raw = a_run(Recording(), 60, seed=1).snapshot()
    trace = raw["device_traces"][0]
    for at, action in (
        (5, "snapshot"),
        (9, "workspace_snapshot"),
        (12, "user_defined"),
        (20, "from_the_future"),
    ):
        trace.insert(at, {"action": action, "addr": 0, "size": 7, "stream": 0, "frames": []})
    trace.insert(30, {"action": "oom", "device_free": 123, "size": 4 << 30, "stream": 0, "frames": []})
    replayed = a_replay(raw, tmp_path, sweep=False)
    assert replayed.wrong == 0
    assert replayed.events == len(trace)
    assert [(oom.nbytes, oom.address) for oom in replayed.compared.ooms] == [(4 << 30, 123)]
    actions = "workspace_snapshot (1), from_the_future (1)"
    assert replayed.notes[-1] == say("allocator.note_other_actions", actions=actions)


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed"])
def test_a_recording_without_one_half_of_its_frees_replays(skipped: str, tmp_path: Path) -> None:
    made = a_run(Recording(), 300, seed=2)
    raw = made.snapshot(len(made.trace) // 2)
    raw["device_traces"] = [[event for event in raw["device_traces"][0] if event["action"] != skipped]]
    replayed = a_replay(raw, tmp_path, sweep=False)
    assert (replayed.wrong, replayed.compared.lost_frees) == (0, 0)


def test_pools_are_found_by_address_where_the_events_do_not_name_them(tmp_path: Path) -> None:
    raw = a_run(Recording(), 300, seed=3, pools=3).snapshot()
    for event in raw["device_traces"][0]:
        del event["pool_id"]
    assert a_replay(raw, tmp_path, sweep=False).wrong == 0


def test_a_segment_that_was_returned_is_not_the_pools_that_later_got_its_address(tmp_path: Path) -> None:
    # A warm-up in the default pool, its cache emptied, then a graph captured into the same addresses.
    made = Recording()
    warm = made.malloc(30 * MIB)
    made.free(warm)
    made.malloc(30 * MIB)  # it takes the cached one: so that was the default pool's
    made.free(warm)
    made.empty_cache()
    made.allocator._next_address = warm
    made.malloc(30 * MIB, owner=(0, 1))
    raw = made.snapshot()
    for event in raw["device_traces"][0]:
        del event["pool_id"]
    replayed = a_replay(raw, tmp_path, sweep=False)
    assert replayed.wrong == 0, replayed.compared.differences
    assert {request.owner for request in replayed.compared.requests[:3]} == {(0, 0)}


def test_a_setting_switched_while_the_program_runs_is_followed(tmp_path: Path) -> None:
    made = Recording("", 64 << 30)
    kept = [made.malloc(5 * MIB), made.malloc(30 * MIB)]
    made.allocator.expandable = True
    kept += [made.malloc(50 * MIB), made.malloc(3 * MIB), made.malloc(700)]
    made.allocator.expandable = False
    made.free(kept[2])
    kept.append(made.malloc(64 * MIB))
    assert a_replay(made.snapshot(), tmp_path, sweep=False).wrong == 0


def test_a_recording_that_differs_says_where(tmp_path: Path) -> None:
    raw = a_run(Recording(), 60, seed=1).snapshot()
    event = next(e for e in raw["device_traces"][0] if e["action"] == "segment_alloc")
    event["size"] += 2 * MIB
    replayed = a_replay(raw, tmp_path, sweep=False)
    assert replayed.wrong > 0
    assert "train.py:7 step" in str(replayed.compared.differences[0].values["label"])


def test_each_device_is_replayed_by_itself_and_the_busiest_by_default(tmp_path: Path) -> None:
    one, other = a_run(Recording(), 40, seed=1).snapshot(), a_run(Recording(), 90, seed=2).snapshot()
    raw = copy.deepcopy(one)
    for segment in other["segments"]:
        segment["device"] = 1
    raw["segments"] += other["segments"]
    raw["device_traces"].append(other["device_traces"][0])
    assert a_replay(raw, tmp_path, sweep=False).device == 1
    for device, alone in ((0, one), (1, other)):
        replayed = a_replay(raw, tmp_path, device=device, sweep=False)
        assert (replayed.wrong, replayed.events) == (0, len(alone["device_traces"][0]))
        assert replayed.as_dict()["devices"] == [0, 1]
        assert say("allocator.note_other_devices", devices=str(1 - device)) in replayed.notes
    with pytest.raises(NotFound) as caught:
        a_replay(raw, tmp_path, device=5)
    assert caught.value.said.as_dict()["code"] == "allocator.no_such_device"


# The sweep.


def a_fragmenting_run() -> Recording:
    """40 of 1, 3, 5 … MiB more each time: what was freed is always a little too small."""
    made = Recording()
    for step in range(1, 12):
        held = [made.malloc((20 + 3 * step) * MIB) for _ in range(4)]
        for address in held:
            made.free(address)
    return made


def test_the_sweep_finds_the_setting_that_saves(tmp_path: Path) -> None:
    replayed = a_replay(a_fragmenting_run().snapshot(), tmp_path)
    chosen = best(replayed)
    assert chosen is not None
    assert chosen.settings.expandable_segments
    row = next(row for row in replayed.as_dict()["sweep"] if row["conf"] == "expandable_segments:True")
    assert row["saves_bytes"] > 0
    # Grown in place, it holds no more than the last and largest four: 53 x 4 = 212, in pages of 20: 220.
    assert row["peak_reserved_bytes"] == 220 * MIB


def test_with_a_capacity_the_sweep_says_who_runs_out_and_where(tmp_path: Path) -> None:
    made = Recording()
    low, _ = made.malloc(20 * MIB), made.malloc(20 * MIB)
    made.free(low)
    made.malloc(30 * MIB)
    fits, runs_out = (a_replay(made.snapshot(), tmp_path, capacity_bytes=n * MIB) for n in (70, 40))
    assert not fits.out_of_memory
    assert runs_out.out_of_memory
    row = runs_out.as_dict()["sweep"][0]["out_of_memory"]
    assert row["request"] == 3
    assert row["requested_bytes"] == row["segment_bytes"] == 30 * MIB
    assert row["free_bytes"] == 20 * MIB  # the freed 20 was returned and is not enough


def test_a_gpu_that_was_full_is_told_from_a_program_that_empties_the_cache(tmp_path: Path) -> None:
    """Capacity 40: 30 over a cached 20 returns it and goes on. That is no wish of the program."""
    made = Recording("", 40 * MIB)
    made.free(made.malloc(20 * MIB))
    made.free(made.malloc(30 * MIB))
    made.empty_cache()
    replayed = a_replay(made.snapshot(), tmp_path, sweep=False)
    assert (replayed.wrong, replayed.compared.retries) == (0, 1)
    assert [request.op for request in replayed.compared.requests].count("empty_cache") == 1
    assert replayed.notes[0] == say("allocator.note_full", times=Number(1), reserved=Size(20 * MIB))


def test_own_settings_replace_the_usual_ones(tmp_path: Path) -> None:
    raw = a_run(Recording(), 60, seed=1).snapshot()
    replayed = a_replay(raw, tmp_path, conf=["max_split_size_mb:64", "max_split_size_mb:64", ""])
    assert [str(outcome.settings) for outcome in replayed.sweep] == ["", "max_split_size_mb:64"]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_the_requests_of_a_recording_from_an_empty_device_give_its_peaks_again(
    conf: str, tmp_path: Path
) -> None:
    made = a_run(Recording(conf, 64 << 30), 500, seed=6, streams=2, pools=2)
    outcome = a_replay(made.snapshot(), tmp_path, sweep=False, capacity_bytes=64 << 30).sweep[0]
    for peak in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
        assert getattr(outcome, peak) == getattr(made.allocator, peak), peak
