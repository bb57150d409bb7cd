"""Read a recording of PyTorch's allocator: `torch.cuda.memory._dump_snapshot`, or the same as JSON.

The shape is that of torch/cuda/memory.py (`_snapshot`). Older versions lack fields: a block's address and
requested size, pool ids, `is_expandable`, times; what is missing is derived or left at its default.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from brimful.allocator.blocks import DEFAULT_POOL, PoolId
from brimful.allocator.plain_pickle import load_plain
from brimful.allocator.settings import DIVISION_INTERVALS, Settings
from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.files import read_given
from brimful.language import Number, Quoted, Sentence, Size, os_words, say
from brimful.units import GIB, MIB, integer_from_text

MAX_FILE_BYTES = 2 * GIB  # unpacked; a million events with stacks take about half of it
MAX_EVENTS = 20_000_000
# A gzipped recording unpacks to 5 to 15 times its size; one that unpacks to far more is an attack.
_MAX_PACKED = 100
_ALWAYS_UNPACKED_BYTES = 64 * MIB
_MAX_BYTES = 1 << 50  # more than any device has
_MAX_NUMBER = 1 << 63  # addresses and streams are pointers


class Event(NamedTuple):
    """One line of a trace. For `oom`, `address` is the memory the device still had free."""

    action: str
    address: int
    nbytes: int
    stream: int
    time_us: int
    label: str
    owner: PoolId | None  # the pool, if the version recorded it


class BlockInfo(NamedTuple):
    address: int
    nbytes: int
    requested: int
    state: str  # active_allocated, active_awaiting_free (formerly active_pending_free), inactive
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    device: int
    address: int
    nbytes: int
    stream: int
    small: bool
    expandable: bool
    owner: PoolId
    blocks: tuple[BlockInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    name: str
    segments: tuple[Segment, ...]
    traces: tuple[tuple[Event, ...], ...]  # by device
    settings: Settings  # at the time of the snapshot
    notes: tuple[Sentence, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that hold anything or did anything."""
        traced = {device for device, trace in enumerate(self.traces) if trace}
        return tuple(sorted(traced | {segment.device for segment in self.segments}))


def read_snapshot(path: str | Path) -> Snapshot:
    """The recording at `path`: a pickle or JSON, gzipped or not. Nothing in it is executed."""
    name = str(path)
    data = _unpacked(_read(Path(path), name), name)
    if data.lstrip()[:1] in (b"{", b"[") and b'"' in data[:4096]:
        raw = _json(data, name)
    else:
        raw = load_plain(data, name=name)
    if isinstance(raw, list):  # torch.cuda.memory_snapshot() alone: segments and no trace
        raw = {"segments": raw}
    if not isinstance(raw, dict) or "segments" not in raw:
        raise _bad(say("allocator.no_segments", name=Quoted(name)))
    naming = _Labels(_list(raw.get("labels", []), "labels", name))
    traces = _traces(_list(raw.get("device_traces", []), "device_traces", name), naming, name)
    segments = tuple(
        _segment(segment, i, naming, name)
        for i, segment in enumerate(_list(raw["segments"], "segments", name))
    )
    settings, notes = _settings(raw.get("allocator_settings"))
    return Snapshot(name=name, segments=segments, traces=traces, settings=settings, notes=notes)


def _read(path: Path, name: str) -> bytes:
    def too_large(size: int) -> BadInput:
        sizes = {"size": Size(size), "most": Size(MAX_FILE_BYTES)}
        return BadInput(say("allocator.file_too_large", name=Quoted(name), **sizes))

    try:
        return read_given(path, most=MAX_FILE_BYTES, too_large=too_large)
    except IsADirectoryError:
        raise BadInput(say("allocator.folder", name=Quoted(name))) from None
    except FileNotFoundError:
        hint = say("allocator.how_to_record")
        raise NotFound(say("allocator.no_file", name=Quoted(name)), hint=hint) from None
    except (OSError, ValueError) as error:
        why = os_words(error) if isinstance(error, OSError) else error
        raise BadInput(say("allocator.cannot_read", name=Quoted(name), error=why)) from error


def _unpacked(data: bytes, name: str) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    most = min(MAX_FILE_BYTES, max(_ALWAYS_UNPACKED_BYTES, _MAX_PACKED * len(data)))
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            data = packed.read(most + 1)
    except (EOFError, zlib.error, OSError) as error:
        raise BadInput(say("allocator.gzip_damaged", name=Quoted(name), error=error)) from error
    if len(data) > most:
        raise _bad(say("allocator.unpacks_too_large", name=Quoted(name), most=Size(most)))
    return data


def _json(data: bytes, name: str) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(say("allocator.json_unreadable", name=Quoted(name), error=str(error)[:200])) from error


def _bad(said: Sentence) -> BadInput:
    return BadInput(said, hint=say("allocator.how_to_record"))


# `at` is the position of a value in the file: device_traces[0][17], segments[3].address.


def _list(value: object, at: str, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _bad(say("allocator.not_a_list", name=Quoted(name), at=at, kind=type(value).__name__))
    return list(value)


def _number(value: object, at: str, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < _MAX_NUMBER:
        raise _bad(say("allocator.not_a_number", name=Quoted(name), at=at, value=Quoted(value)))
    return value


def _bytes(value: object, at: str, name: str) -> int:
    nbytes = _number(value, at, name)
    if not 0 <= nbytes < _MAX_BYTES:
        raise _bad(say("allocator.too_many_bytes", name=Quoted(name), at=at, nbytes=Number(nbytes)))
    return nbytes


def _owner(value: object) -> PoolId | None:
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return (value[0], value[1])
    return None


# Events.


def _traces(raw: list[Any], naming: _Labels, name: str) -> tuple[tuple[Event, ...], ...]:
    lists = [_list(trace, f"device_traces[{device}]", name) for device, trace in enumerate(raw)]
    events = sum(len(trace) for trace in lists)
    if events > MAX_EVENTS:
        most = Number(MAX_EVENTS)
        raise _bad(say("allocator.too_many_events", name=Quoted(name), events=Number(events), most=most))
    return tuple(
        tuple(_event(event, f"device_traces[{device}][{i}]", naming, name) for i, event in enumerate(trace))
        for device, trace in enumerate(lists)
    )


def _event(raw: object, at: str, naming: _Labels, name: str) -> Event:
    if isinstance(raw, dict):
        action, address = raw.get("action"), raw.get("addr", raw.get("device_free", 0))
        nbytes, stream, time_us = raw.get("size", 0), raw.get("stream", 0), raw.get("time_us", 0)
        label, owner = naming.of_frames(raw.get("frames")), _owner(raw.get("pool_id"))
    elif isinstance(raw, list | tuple) and len(raw) >= 4:
        action, address, nbytes, stream = raw[:4]
        time_us = raw[4] if len(raw) > 4 else 0
        label, owner = naming.numbered(raw[5] if len(raw) > 5 else None), None
    else:
        raise _bad(say("allocator.is", name=Quoted(name), at=at, value=Quoted(raw)))
    if not isinstance(action, str):
        raise _bad(say("allocator.is", name=Quoted(name), at=f"{at}.action", value=Quoted(action)))
    return Event(
        action,
        _number(address, at, name),
        # A request that failed may have any size: an overflow asks for exbibytes.
        (_number if action == "oom" else _bytes)(nbytes, at, name),
        _number(stream, at, name),
        time_us if isinstance(time_us, int) else 0,
        label,
        owner,
    )


class _Labels:
    """Who asked, in brief: the operator and the line of the user's own code."""

    def __init__(self, labels: list[Any]) -> None:
        self._labels = labels
        self._seen: dict[int, str] = {}

    def numbered(self, number: object) -> str:
        if isinstance(number, int) and 0 <= number < len(self._labels):
            return str(self._labels[number])[:200]
        return ""

    def of_frames(self, frames: object) -> str:
        if not isinstance(frames, list) or not frames:
            return ""
        key = id(frames)  # one list serves every event of its stack; all live as long as the raw snapshot
        if key not in self._seen:
            self._seen[key] = _label(frames)
        return self._seen[key]


_OPERATOR = re.compile(r"at::_ops::(\w+)::")


def _label(frames: list[Any]) -> str:
    """Frames are innermost first: C++ before Python, torch's own Python before the user's."""
    operator, line, any_line = "", "", ""
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        function, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        if not operator and (match := _OPERATOR.search(function)):
            operator = match[1]
        if function == "empty_cache":
            operator = operator or function
        if file.endswith(".py"):
            here = f"{file.rsplit('/', 1)[-1]}:{frame.get('line', 0)} {function}"
            any_line = any_line or here
            if "/torch/" not in file:
                line = here
                break
    return " ".join(part for part in (operator, line or any_line) if part)[:200]


# Segments.


def _segment(raw: object, i: int, naming: _Labels, name: str) -> Segment:
    at = f"segments[{i}]"
    if not isinstance(raw, dict):
        raise _bad(say("allocator.is", name=Quoted(name), at=at, value=Quoted(raw)))
    address = _number(raw.get("address"), f"{at}.address", name)
    nbytes = _bytes(raw.get("total_size"), f"{at}.total_size", name)
    blocks: list[BlockInfo] = []
    end = address
    for block in _list(raw.get("blocks", []), f"{at}.blocks", name):
        info = _block(block, end, naming, f"{at}.blocks[{len(blocks)}]", name)
        blocks.append(info)
        end = info.address + info.nbytes
    if blocks and (blocks[0].address != address or end != address + nbytes):
        raise BadInput(say("allocator.blocks_do_not_fill", name=Quoted(name), at=at))
    kind = raw.get("segment_type")
    return Segment(
        device=_number(raw.get("device", 0), f"{at}.device", name),
        address=address,
        nbytes=nbytes,
        stream=_number(raw.get("stream", 0), f"{at}.stream", name),
        small=kind == "small" if isinstance(kind, str) else nbytes == 2 * MIB,
        expandable=bool(raw.get("is_expandable", False)),
        owner=_owner(raw.get("segment_pool_id")) or DEFAULT_POOL,
        blocks=tuple(blocks),
    )


def _block(raw: object, begin: int, naming: _Labels, at: str, name: str) -> BlockInfo:
    if isinstance(raw, dict):
        size = raw.get("size")
        history = raw.get("history") or [{}]  # PyTorch 1.13 and 2.0
        first = history[0] if isinstance(history, list) and isinstance(history[0], dict) else {}
        requested = raw.get("requested_size", first.get("real_size", size))
        label = naming.of_frames(raw.get("frames") or first.get("frames"))
        address, state = raw.get("address", begin), raw.get("state")
    elif isinstance(raw, list | tuple) and len(raw) >= 4:
        address, size, requested, state = raw[:4]
        label = naming.numbered(raw[4] if len(raw) > 4 else None)
    else:
        raise _bad(say("allocator.is", name=Quoted(name), at=at, value=Quoted(raw)))
    if address != begin:
        raise BadInput(say("allocator.block_out_of_place", name=Quoted(name), at=at))
    return BlockInfo(begin, _bytes(size, at, name), _bytes(requested, at, name), str(state)[:40], label)


# Settings.


def _settings(raw: object) -> tuple[Settings, tuple[Sentence, ...]]:
    """The active settings: the string as the user wrote it, then the values PyTorch reports."""
    if not isinstance(raw, dict) or not raw:
        return Settings(), (say("allocator.note_default_settings"),)
    notes: list[Sentence] = []
    settings = Settings()
    conf = next((raw[key] for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if raw.get(key)), "")
    try:
        settings = Settings.parse(str(conf))
        notes += settings.notes
    except BrimfulError as error:
        notes.append(say("allocator.note_settings", conf=Quoted(str(conf)[:80]), problem=error.said))
    max_split, threshold = raw.get("max_split_size"), raw.get("garbage_collection_threshold")
    if type(max_split) is int:
        settings = replace(settings, max_split_bytes=max_split if 0 < max_split < _MAX_BYTES else None)
    if isinstance(threshold, float) and 0 <= threshold < 1:
        settings = replace(settings, garbage_collection_threshold=threshold)
    if isinstance(raw.get("expandable_segments"), bool):
        settings = replace(settings, expandable_segments=raw["expandable_segments"])
    divisions = raw.get("roundup_power2_divisions")
    if isinstance(divisions, dict) and len(divisions) == DIVISION_INTERVALS:
        ordered = tuple(divisions[key] for key in sorted(divisions, key=_mib))
        if all(type(part) is int and 0 <= part < MIB and not part & (part - 1) for part in ordered):
            settings = replace(settings, divisions=ordered if any(part > 1 for part in ordered) else ())
        else:
            notes.append(say("allocator.note_divisions"))
    return settings, tuple(notes)


def _mib(key: object) -> int:
    return integer_from_text(str(key), low=0, high=1 << 50) or 0
