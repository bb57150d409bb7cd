"""Replay a recording of PyTorch's allocator, and show what other settings would have given.

The recorded requests go through the simulated allocator, started from the state before the recording. Every
address, every new segment and every returned one is compared with what the GPU did: a simulation that agrees
on all of them can be trusted on untested settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brimful.allocator.caching import Allocator
from brimful.allocator.compare import Compared, compare
from brimful.allocator.run import EMPTY_CACHE, MALLOC, Outcome, run
from brimful.allocator.settings import Settings
from brimful.allocator.snapshot import Snapshot, read_snapshot
from brimful.errors import NotFound
from brimful.language import Number, Quoted, Sentence, Size, as_asked, say

SHOWN_HOLDERS = 12
# Settings that people try when memory is short.
TRIED = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
# A setting that saves less than this share of reserved memory is not worth recommending.
WORTH = 0.01


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of memory at the peak."""

    label: str
    nbytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One device's recording beside its simulation, and the sweep over other settings."""

    name: str
    device: int
    devices: tuple[int, ...]  # all in the snapshot
    events: int
    settings: Settings
    capacity_bytes: int | None
    compared: Compared
    reserved_recorded_bytes: int
    reserved_simulated_bytes: int
    allocated_recorded_bytes: int
    allocated_simulated_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    holders: tuple[Holder, ...]
    sweep: tuple[Outcome, ...]  # the recorded settings first
    notes: tuple[Sentence, ...]

    @property
    def wrong(self) -> int:
        return (
            self.compared.alloc.wrong + self.compared.segment_alloc.wrong + self.compared.segment_free.wrong
        )

    @property
    def out_of_memory(self) -> bool:
        """Whether the recorded settings run out of memory on a device of the given capacity."""
        return self.sweep[0].out_of_memory is not None

    def as_dict(self) -> dict[str, Any]:
        """The main figures, then what the text report also shows."""
        compared = self.compared
        return {
            "events": self.events,
            "alloc": asdict(compared.alloc),
            "segment_alloc": asdict(compared.segment_alloc),
            "segment_free": asdict(compared.segment_free),
            "reserved_bytes": {
                "recorded": self.reserved_recorded_bytes,
                "simulated": self.reserved_simulated_bytes,
            },
            "allocated_bytes": {
                "recorded": self.allocated_recorded_bytes,
                "simulated": self.allocated_simulated_bytes,
            },
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "sweep": [_row(outcome, self.sweep[0]) for outcome in self.sweep],
            "peak_requested_bytes": self.peak_requested_bytes,
            "peak_event": compared.peak_at,
            "device": self.device,
            "devices": list(self.devices),
            "settings": str(self.settings),
            "capacity_bytes": self.capacity_bytes,
            "holders": [
                {"label": holder.label, "bytes": holder.nbytes, "blocks": holder.blocks}
                for holder in self.holders[:SHOWN_HOLDERS]
            ],
            "curve": [
                {"event": p.event, "allocated_bytes": p.allocated_bytes, "reserved_bytes": p.reserved_bytes}
                for p in compared.curve
            ],
            "retries": compared.retries,
            "ooms": [
                {"event_bytes": event.nbytes, "device_free_bytes": event.address, "label": event.label}
                for event in compared.ooms
            ],
            "differences": [as_asked(each) for each in compared.differences],
            "difference_codes": [each.as_dict() for each in compared.differences],
            "notes": [as_asked(note) for note in self.notes],
            "note_codes": [note.as_dict() for note in self.notes],
        }


def replay(
    path: str | Path,
    *,
    conf: Sequence[str] = (),
    capacity_bytes: int | None = None,
    device: int | None = None,
    sweep: bool = True,
) -> Replay:
    """Replay the snapshot at `path`; `conf` are settings to compare with, by default the usual ones.

    `capacity_bytes` is a device to try it on: each setting then says whether it runs out, and where.
    """
    tried = [Settings.parse(text) for text in (conf or (TRIED if sweep else ()))]
    snapshot = read_snapshot(path)
    chosen = busiest(snapshot) if device is None else device
    if chosen not in snapshot.devices:
        known = ", ".join(str(number) for number in snapshot.devices)
        raise NotFound(
            say("allocator.no_such_device", name=Quoted(snapshot.name), chosen=chosen, known=known)
        )
    return replay_device(snapshot, chosen, tried=tried, capacity_bytes=capacity_bytes)


def busiest(snapshot: Snapshot) -> int:
    """The device with most events; without any events, the one that holds most."""
    if not snapshot.devices:
        raise NotFound(say("allocator.empty_snapshot", name=Quoted(snapshot.name)))
    held: Counter[int] = Counter()
    for segment in snapshot.segments:
        held[segment.device] += segment.nbytes
    traced = {device: len(trace) for device, trace in enumerate(snapshot.traces)}
    return max(snapshot.devices, key=lambda device: (traced.get(device, 0), held[device], -device))


def replay_device(
    snapshot: Snapshot,
    device: int,
    *,
    tried: Sequence[Settings] = (),
    capacity_bytes: int | None = None,
    make: type[Allocator] = Allocator,
) -> Replay:
    """One device of a snapshot under its own settings, then its requests under each of `tried`."""
    allocator, compared = compare(snapshot, device, make)
    segments = [segment for segment in snapshot.segments if segment.device == device]
    others = [settings for settings in dict.fromkeys(tried) if settings != snapshot.settings]
    return Replay(
        name=snapshot.name,
        device=device,
        devices=snapshot.devices,
        events=len(snapshot.traces[device]) if device < len(snapshot.traces) else 0,
        settings=snapshot.settings,
        capacity_bytes=capacity_bytes,
        compared=compared,
        reserved_recorded_bytes=sum(segment.nbytes for segment in segments),
        reserved_simulated_bytes=allocator.reserved_bytes,
        allocated_recorded_bytes=sum(
            block.nbytes for s in segments for block in s.blocks if block.state == "active_allocated"
        ),
        allocated_simulated_bytes=allocator.allocated_bytes,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        holders=holders(compared),
        sweep=tuple(run(compared.requests, s, capacity_bytes) for s in (snapshot.settings, *others)),
        notes=(*snapshot.notes, *_notes(snapshot, device, compared, capacity_bytes)),
    )


def holders(compared: Compared) -> tuple[Holder, ...]:
    """The holders when most was allocated, largest first."""
    live: dict[int, tuple[int, str]] = {}
    for request in compared.requests[: compared.peak_request]:
        if request.op == MALLOC:
            live[request.key] = (request.nbytes, request.label)
        elif request.op != EMPTY_CACHE:
            live.pop(request.key, None)
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for nbytes, label in live.values():
        held[label] += nbytes
        blocks[label] += 1
    return tuple(Holder(label, nbytes, blocks[label]) for label, nbytes in held.most_common())


def _notes(
    snapshot: Snapshot, device: int, compared: Compared, capacity_bytes: int | None
) -> Iterator[Sentence]:
    if others := ", ".join(str(number) for number in snapshot.devices if number != device):
        yield say("allocator.note_other_devices", devices=others)
    if compared.held_before_bytes:
        yield say("allocator.note_held_before", size=Size(compared.held_before_bytes))
    if compared.retries and capacity_bytes is None:
        reserved = Size(compared.retry_reserved_bytes)
        yield say("allocator.note_full", times=Number(compared.retries), reserved=reserved)
    if compared.lost_frees:
        yield say("allocator.note_lost_frees", n=Number(compared.lost_frees))
    known = {"snapshot", "oom", "user_defined"}
    unknown = {action: n for action, n in compared.other_actions.items() if action not in known}
    if unknown:
        listed = ", ".join(f"{action[:40]} ({n})" for action, n in unknown.items())
        yield say("allocator.note_other_actions", actions=listed)


def best(replayed: Replay) -> Outcome | None:
    """The setting that needs least, if a change is worth it: it alone fits, or it saves."""
    now, others = replayed.sweep[0], [o for o in replayed.sweep[1:] if o.out_of_memory is None]
    if not others:
        return None
    least = min(others, key=lambda outcome: (outcome.peak_reserved_bytes, len(str(outcome.settings))))
    if now.out_of_memory is not None:
        return least
    saved = now.peak_reserved_bytes - least.peak_reserved_bytes
    return least if saved > WORTH * now.peak_reserved_bytes else None


def _row(outcome: Outcome, recorded: Outcome) -> dict[str, Any]:
    failed = outcome.out_of_memory
    return {
        "conf": str(outcome.settings),
        "recorded": outcome is recorded,
        "peak_allocated_bytes": outcome.peak_allocated_bytes,
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "saves_bytes": recorded.peak_reserved_bytes - outcome.peak_reserved_bytes,
        "retries": outcome.retries,
        "out_of_memory": None
        if failed is None
        else {
            "request": outcome.failed_at,
            **{
                f"{name}_bytes": getattr(failed, f"{name}_bytes")
                for name in ("requested", "segment", "free", "allocated", "reserved")
            },
        },
    }
