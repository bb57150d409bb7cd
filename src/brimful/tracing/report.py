"""From a tape to an answer: three counters at their peak, what they hold, whether a card has room for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from brimful.allocator import FREE, MALLOC, Allocator, OutOfMemory, Request, Settings, run
from brimful.fit.overhead import context_bytes
from brimful.language import Sentence, as_asked, say
from brimful.specs.estimate import Interval, Item
from brimful.specs.gpu import Gpu
from brimful.specs.parts import Part
from brimful.tracing.chance import chance
from brimful.tracing.fixes import fixes_for
from brimful.tracing.items import (
    Holder,
    by_category,
    by_module,
    categories,
    holders,
    key,
    live_at,
    why,
)
from brimful.tracing.speed import Cost, Pace, pace
from brimful.tracing.tape import Tape

# Other settings a user could set before the script starts, tried if it does not fit.
TRIED_SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,garbage_collection_threshold:0.8",
)
_NO_TENSORS: tuple[Part, ...] = ("workspaces", "kernel_buffers")
# Fields of a trace that have the same name in the JSON.
_AS_THEY_ARE = (
    *("fits", "gpu", "usable_bytes", "steps", "device_bytes", "modules", "peak_at", "out_of_memory"),
    *("verdict", "timeline", "rules_fired", "values_invented", "values_at", "events", "ops"),
)
_POINTS = 240  # of the timeline
Verdict = Literal["fits", "does_not_fit", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """PyTorch's three counters at their peak within some part of a run."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a script would hold on a GPU. The items sum to `device_bytes`."""

    gpu: str
    usable_bytes: int
    settings: str
    rough: bool
    steps: int
    tensor_bytes: int  # requested at the peak, without workspaces and kernels' own buffers
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    context: Interval
    chance: float | None  # of running out of memory; None: the trace does not know enough for one
    least: Counters  # with everything inside compiled graphs fused; the same if nothing is compiled
    first_step: Counters
    steady_step: Counters
    items: tuple[Item, ...]
    modules: dict[str, int]
    top_holders: tuple[Holder, ...]
    peak_at: dict[str, Any]
    out_of_memory: dict[str, Any] | None
    saving_settings: tuple[dict[str, Any], ...]
    fixes: tuple[dict[str, Any], ...]
    speed: Pace | None
    timeline: dict[str, Any]
    rules_fired: dict[str, int]
    values_invented: int
    values_at: dict[str, int]
    events: int
    ops: int
    notes: tuple[Sentence, ...]
    doubts: tuple[Sentence, ...]  # what the trace could not know, and its verdict would need
    tape: Tape = field(repr=False)  # every event, to replay it under other settings

    @property
    def verdict(self) -> Verdict:
        if self.doubts:
            return "cannot_tell"
        return "fits" if self.out_of_memory is None else "does_not_fit"

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            "allocator_settings": self.settings,
            "mode": "rough" if self.rough else "exact",
            "peak_tensor_bytes": self.tensor_bytes,
            "peak_requested_bytes": self.requested_bytes,
            "peak_allocated_bytes": self.allocated_bytes,
            "peak_reserved_bytes": self.reserved_bytes,
            "context_bytes": self.context.as_dict(),
            "chance_of_running_out": None if self.chance is None else round(self.chance, 4),
            "least": asdict(self.least),
            "first_step": asdict(self.first_step),
            "steady_step": asdict(self.steady_step),
            "items": [{**item.as_dict(), "name": key(item.code)} for item in self.items],
            "top_holders": [holder.as_dict() for holder in self.top_holders],
            "saving_settings": list(self.saving_settings),
            "fixes": list(self.fixes),
            "speed": None if self.speed is None else self.speed.as_dict(),
            "notes": [as_asked(note) for note in self.notes],
            "note_codes": [note.as_dict() for note in self.notes],
            "doubts": [as_asked(doubt) for doubt in self.doubts],
            "doubt_codes": [doubt.as_dict() for doubt in self.doubts],
        }


_Failure = tuple[int, OutOfMemory]  # the request that failed, and why


@dataclass(frozen=True, slots=True)
class _Walk:
    """The counters after every event."""

    requested: list[int]
    allocated: list[int]
    reserved: list[int]

    def peak(self, begin: int, end: int) -> Counters:
        begin = min(begin, max(0, end - 1))
        return Counters(
            requested_bytes=max(self.requested[begin:end], default=0),
            allocated_bytes=max(self.allocated[begin:end], default=0),
            reserved_bytes=max(self.reserved[begin:end], default=0),
        )


def report(
    tape: Tape,
    costs: Mapping[int, Mapping[tuple[str, str], Cost]],
    gpu: Gpu,
    *,
    settings: str = "",
    rough: bool = False,
    tf32: bool = False,
) -> Trace:
    """Read a tape as the GPU would have run it under `settings` (PYTORCH_CUDA_ALLOC_CONF)."""
    conf = Settings.parse(settings)
    if tape.memory_fraction is not None:
        conf = replace(conf, memory_fraction=tape.memory_fraction)
    requests = tape.requests()
    context = context_bytes(gpu)
    other = round(context.likely)
    # As on the card, which releases its cache before it fails; if it fails, what the program wants.
    walk, failure = _walk(requests, Allocator(conf, gpu.memory_bytes, other_bytes=other))
    if failure is not None:
        walk, _ = _walk(requests, Allocator(conf))
    total = walk.peak(0, len(requests))
    peak = walk.allocated.index(total.allocated_bytes) if requests else 0
    device = total.reserved_bytes + other
    category = categories(tape)
    live = live_at(tape, peak)
    parts = by_category(tape, live, category)
    least = _least(tape, category, conf, total)
    unknown = doubts(tape, flops=sum(cost.flops for step in costs.values() for cost in step.values()))
    unknown += _doubt_of_fusion(_fused(tape, category), conf, gpu, other=other, fails=failure is not None)
    exact = not (unknown or rough or least != total or conf.memory_fraction)
    ends = tape.step_ends or [len(requests)]
    # The last complete step, after the one that made the optimizer's state.
    steady_from = ends[-2] if len(ends) > 1 else 0
    return Trace(
        gpu=gpu.name,
        usable_bytes=gpu.memory_bytes,
        settings=settings,
        rough=rough,
        steps=len(tape.step_ends),
        tensor_bytes=sum(size for name, size in parts.items() if name not in _NO_TENSORS),
        requested_bytes=total.requested_bytes,
        allocated_bytes=total.allocated_bytes,
        reserved_bytes=total.reserved_bytes,
        device_bytes=device,
        context=context,
        chance=_chance(requests, conf, gpu, context, total) if exact else None,
        least=least,
        first_step=walk.peak(0, ends[0]),
        steady_step=walk.peak(steady_from, ends[-1]),
        items=_items(parts, total, peak_requested=walk.requested[peak] if requests else 0, device=device),
        modules=by_module(tape, live),
        top_holders=tuple(holders(tape, live, category)),
        peak_at=_where(tape, peak),
        out_of_memory=_failure(tape, failure),
        saving_settings=_savers(requests, gpu, other, conf) if failure else (),
        fixes=fixes_for(
            tape, parts, live, peak=peak, allocated=total.allocated_bytes, reserved=total.reserved_bytes
        ),
        speed=pace(costs.get(max(0, len(tape.step_ends) - 1), {}), gpu, tf32=tf32),
        timeline=_timeline(tape, walk, category),
        rules_fired=dict(tape.rules.most_common()),
        values_invented=sum(tape.values.values()),
        values_at=dict(tape.values.most_common(10)),
        events=len(tape.events),
        ops=tape.ops,
        notes=tuple(tape.notes.values()),
        doubts=unknown,
        tape=tape,
    )


def _walk(requests: Sequence[Request], allocator: Allocator) -> tuple[_Walk, _Failure | None]:
    """The counters after every request, up to the one that fails."""
    addresses: dict[int, int] = {}
    walk = _Walk([], [], [])
    for index, request in enumerate(requests):
        if request.op == MALLOC:
            try:
                addresses[request.key] = allocator.malloc(request.nbytes, request.stream)
            except OutOfMemory as error:
                return walk, (index, error)
        elif request.op == FREE:
            allocator.free(addresses.pop(request.key))
        else:
            allocator.empty_cache()
        walk.requested.append(allocator.requested_bytes)
        walk.allocated.append(allocator.allocated_bytes)
        walk.reserved.append(allocator.reserved_bytes)
    return walk, None


def doubts(tape: Tape, *, flops: int) -> tuple[Sentence, ...]:
    """What a trace must have seen before it may say that something fits."""
    found = []
    if tape.shaped:
        (line, times), *_ = tape.shaped.most_common(1)
        found.append(say("tracing.doubt_shape", line=line, n=times))
    if tape.empty:
        found.append(say("tracing.doubt_empty_batch", module=next(iter(tape.empty))))
    if tape.step_ends and not flops:
        found.append(say("tracing.doubt_no_flops", n=len(tape.step_ends)))
    return tuple(found)


# Results of library kernels, which inductor calls and does not fuse.
_LIBRARY = re.compile(r"^(?:addmm|mm|bmm|baddbmm|_scaled_mm|sort|.*convolution.*|.*attention.*|.*cudnn.*)$")


def _least(tape: Tape, category: list[Part], settings: Settings, total: Counters) -> Counters:
    """The peaks if compiled code kept no temporaries except what library kernels return."""
    requests = _fused(tape, category)
    if requests is None:
        return total
    outcome = run(requests, settings)
    return Counters(
        requested_bytes=outcome.peak_requested_bytes,
        allocated_bytes=outcome.peak_allocated_bytes,
        reserved_bytes=outcome.peak_reserved_bytes,
    )


def _fused(tape: Tape, category: list[Part]) -> list[Request] | None:
    """The requests if everything inside compiled code were fused; None if nothing is compiled."""
    fused = {
        n
        for n, name in enumerate(category)
        if name == "compiled_temporaries" and not _LIBRARY.search(tape.blocks[n].place.op)
    }
    return [request for request in tape.requests() if request.key not in fused] if fused else None


def _doubt_of_fusion(
    requests: list[Request] | None, settings: Settings, gpu: Gpu, *, other: int, fails: bool
) -> tuple[Sentence, ...]:
    """Whether it fits depends on how much the compiler fuses, which is unknown until it has compiled."""
    if requests is None:
        return ()
    fused = run(requests, settings, gpu.memory_bytes, other_bytes=other)
    if fails is (fused.out_of_memory is not None):
        return ()
    return (say("tracing.doubt_fusion"),)


def _items(parts: dict[Part, int], total: Counters, *, peak_requested: int, device: int) -> tuple[Item, ...]:
    outside: dict[Part, int] = {
        "rounding": total.allocated_bytes - peak_requested,
        "allocator_cache": total.reserved_bytes - total.allocated_bytes,
        "cuda_context": device - total.reserved_bytes,
    }
    return tuple(Item(code, size, why(code)) for code, size in (parts | outside).items())


def _chance(
    requests: Sequence[Request], settings: Settings, gpu: Gpu, context: Interval, total: Counters
) -> float:
    allocated, reserved = total.allocated_bytes, total.reserved_bytes
    return chance(requests, settings, gpu, context, allocated_bytes=allocated, reserved_bytes=reserved)


def _where(tape: Tape, event: int) -> dict[str, Any]:
    """The place of the allocation at an event, or of the last one before it."""
    if not tape.events:
        return {"op": "", "module": "", "line": "", "phase": "", "step": 0}
    while event > 0 and tape.events[event][0] != MALLOC:
        event -= 1
    block = tape.blocks[tape.events[event][1]]
    return {**block.place._asdict(), "step": block.step + 1}


def _failure(tape: Tape, failure: _Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    event, error = failure
    return {
        **_where(tape, event),
        "event": event,
        "wanted_bytes": error.requested_bytes,
        "allocated_bytes": error.allocated_bytes,
        "reserved_bytes": error.reserved_bytes,
        "free_bytes": error.free_bytes,
    }


def _savers(
    requests: Sequence[Request], gpu: Gpu, other: int, settings: Settings
) -> tuple[dict[str, Any], ...]:
    """Settings under which the same requests fit."""
    found = []
    for tried in TRIED_SETTINGS:
        conf = replace(Settings.parse(tried), memory_fraction=settings.memory_fraction)
        outcome = run(requests, conf, gpu.memory_bytes, other_bytes=other)
        if outcome.out_of_memory is None and conf != settings:
            found.append({"settings": tried, "peak_reserved_bytes": outcome.peak_reserved_bytes})
    return tuple(found)


def _timeline(tape: Tape, walk: _Walk, category: list[Part]) -> dict[str, Any]:
    """Bytes by category over the events, in a few hundred points that keep every local peak."""
    count = len(tape.events)
    names = list(dict.fromkeys(category))
    width = max(1, -(-count // _POINTS))
    chosen = [
        max(range(start, min(start + width, count)), key=walk.allocated.__getitem__)
        for start in range(0, count, width)
    ]
    now = dict.fromkeys(names, 0)
    series: dict[Part, list[int]] = {name: [] for name in names}
    upcoming = iter(chosen)
    wanted = next(upcoming, None)
    for index, (action, number) in enumerate(tape.events):
        if action == MALLOC:
            now[category[number]] += tape.blocks[number].bytes
        elif action == FREE:
            now[category[number]] -= tape.blocks[number].bytes
        if index == wanted:
            for name in names:
                series[name].append(now[name])
            wanted = next(upcoming, None)
    return {
        "event": chosen,
        "allocated_bytes": [walk.allocated[i] for i in chosen],
        "reserved_bytes": [walk.reserved[i] for i in chosen],
        "by_category": {key(name): values for name, values in series.items()},
        "step_ends": list(tape.step_ends),
    }
