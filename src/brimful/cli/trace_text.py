"""What `brimful trace` prints for people: verdict and largest part first, then where, then what to change."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from brimful.cli.render import bar, paint, table
from brimful.units import counted, show_bytes, show_seconds

if TYPE_CHECKING:
    from brimful.specs.gpu import Gpu

_WIDTH = 80
_BLOCKS = " ▁▂▃▄▅▆▇█"
_OUTSIDE = ("rounding", "allocator cache", "CUDA context", "workspaces", "kernel buffers")  # no tensors


def show(data: dict[str, Any], gpu: Gpu, script: str) -> str:
    blocks = [
        _verdict(data, gpu, script),
        _counters(data),
        _items(data),
        _timeline(data),
        _modules(data),
        _holders(data),
        _changes(data),
        _speed(data),
        _small_print(data),
    ]
    return "\n\n".join(block for block in blocks if block)


def _verdict(data: dict[str, Any], gpu: Gpu, script: str) -> str:
    word, style = ("FITS", "green") if data["fits"] else ("DOES NOT FIT", "red")
    gap = data["usable_bytes"] - data["device_bytes"]
    room = f"{show_bytes(gap)} to spare" if gap >= 0 else f"{show_bytes(-gap)} more than it has"
    lines = [f"{paint(word, style)}  {script} on {gpu.title}", f"  {_headline(data)}"]
    held, usable = show_bytes(data["device_bytes"]), show_bytes(data["usable_bytes"])
    lines.append(f"  the device would hold {held} of {usable}, {room}")
    failure = data["out_of_memory"]
    if failure:
        wanted, free = show_bytes(failure["wanted_bytes"]), show_bytes(failure["free_bytes"])
        lines += [
            f"  {paint('out of memory', 'red')} in step {failure['step']}, {_at(failure)}:",
            f"    {failure['op']} wants {wanted}, {free} are free",
        ]
    if data["mode"] == "rough":
        lines.append(
            f"  {paint('rough', 'yellow')}: on CPU-typed tensors, whose masks and casts differ from a GPU's"
        )
    return "\n".join(lines)


def _headline(data: dict[str, Any]) -> str:
    """The largest part of the tensors at the peak."""
    tensors = [item for item in data["items"] if item["name"] not in _OUTSIDE]
    total = sum(item["bytes"] for item in tensors)
    if not total:
        return "nothing is held at the peak"
    largest = max(tensors, key=lambda item: item["bytes"])
    share = largest["bytes"] / total
    much = "more than half" if share > 0.5 else "the largest part"
    plural = "are" if largest["name"].endswith("s") else "is"
    size = show_bytes(largest["bytes"])
    return f"{largest['name']} {plural} {much} of the tensors at the peak: {size}, {share:.0%}"


def _counters(data: dict[str, Any]) -> str:
    rows = []
    for title, key in (("first step", "first_step"), ("steady step", "steady_step")):
        part = data[key]
        rows.append(
            (title, *(show_bytes(part[f"{name}_bytes"]) for name in ("requested", "allocated", "reserved")))
        )
    whole = tuple(show_bytes(data[f"peak_{name}_bytes"]) for name in ("requested", "allocated", "reserved"))
    rows.append(("whole run", *whole))
    body = table(("peak", "requested", "allocated", "reserved"), rows, right=(1, 2, 3))
    exact = "  ".join(f"{data[f'peak_{name}_bytes']:,} B {name}" for name in ("allocated", "reserved"))
    return f"{body}\n{paint(exact, 'dim')}"


def _items(data: dict[str, Any]) -> str:
    whole = max(1, data["device_bytes"])
    rows = [
        (
            item["name"],
            show_bytes(item["bytes"]),
            f"{item['bytes'] / whole:.0%}",
            bar(item["bytes"] / whole, 28),
        )
        for item in data["items"]
        if item["bytes"]
    ]
    peak = data["peak_at"]
    title = paint("Held at the peak", "bold") + f", step {peak['step']}, {peak['op']}:\n  {_at(peak)}"
    return f"{title}\n{table(('', '', '', ''), rows, right=(1, 2)).partition(chr(10))[2]}"


def _timeline(data: dict[str, Any]) -> str:
    """Allocated bytes over the events of the run, one column each for as many as fit."""
    points = data["timeline"]["allocated_bytes"]
    if not points:
        return ""
    columns = _WIDTH - 2
    width = max(1, -(-len(points) // columns))
    highest = [max(points[i : i + width]) for i in range(0, len(points), width)]
    top = max(highest) or 1
    rows = []
    for row in (3, 2, 1, 0):
        cells = (max(0, min(8, round((value / top * 4 - row) * 8))) for value in highest)
        rows.append("  " + "".join(_BLOCKS[cell] for cell in cells))
    title = (
        paint("Allocated over time", "bold") + f": {counted(data['events'], 'event')}, top {show_bytes(top)}"
    )
    return "\n".join([title, *rows])


def _modules(data: dict[str, Any]) -> str:
    rows = [(show_bytes(size), name) for name, size in list(data["modules"].items())[:8]]
    if len(rows) < 2:
        return ""
    return paint("By module, at the peak", "bold") + "\n" + _listed(rows)


def _holders(data: dict[str, Any]) -> str:
    rows = []
    for holder in data["top_holders"][:8]:
        many = f"{holder['count']} x " if holder["count"] > 1 else ""
        rows.append((show_bytes(holder["bytes"]), f"{many}{holder['op']}  {holder['line']}"))
    return paint("Top holders, at the peak", "bold") + "\n" + _listed(rows)


def _listed(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"  {size:>10}  {text}"[:_WIDTH] for size, text in rows)


def _changes(data: dict[str, Any]) -> str:
    lines = []
    for found in data["saving_settings"]:
        reserved = show_bytes(found["peak_reserved_bytes"])
        lines.append(
            f"  PYTORCH_CUDA_ALLOC_CONF={found['settings']}\n      fits as it is: {reserved} reserved"
        )
    for fix in data["fixes"]:
        text = f"{fix['name']} ({show_bytes(fix['at_stake_bytes'])}): {fix['change']}"
        lines.append(fill(text, _WIDTH, initial_indent="  ", subsequent_indent="      "))
    return paint("What would help", "bold") + "\n" + "\n".join(lines) if lines else ""


def _speed(data: dict[str, Any]) -> str:
    speed = data["speed"]
    if speed is None:
        return ""
    step, mfu = speed["step_s"], speed["mfu"]
    return (
        f"{paint('Speed', 'bold')}, an estimate: step {show_seconds(step['likely'])} "
        f"({show_seconds(step['low'])} to {show_seconds(step['high'])}), MFU {mfu['likely']:.0%} "
        f"({mfu['low']:.0%} to {mfu['high']:.0%})\n"
        f"  of {speed['peak_tflops']:.0f} TFLOP/s {speed['peak_format']}, "
        f"{speed['flops'] / 1e12:.2f} TFLOP a step, bound by {speed['bound_by']}"
    )


def _small_print(data: dict[str, Any]) -> str:
    lines = []
    rules = ", ".join(f"{name} {times}" for name, times in data["rules_fired"].items())
    if rules:
        lines.append(f"rules that fired: {rules}")
    if data["values_invented"]:
        where = ", ".join(f"{line} {times}" for line, times in list(data["values_at"].items())[:3])
        asked = counted(data["values_invented"], "value")
        lines.append(f"{asked} asked for and made up (no number exists in a trace): {where}")
    if data["steps"] < 2:
        lines.append(f"{counted(data['steps'], 'optimizer step')} seen; steady state needs two")
    lines += [f"note: {note}" for note in data["notes"]]
    context = data["context_bytes"]
    low, high = show_bytes(context["low"]), show_bytes(context["high"])
    lines.append(f"the CUDA context is an estimate, {low} to {high}; all else is traced")
    return "\n".join(fill(line, _WIDTH, subsequent_indent="  ") for line in lines)


def _at(place: dict[str, Any]) -> str:
    where = f", {place['line']}" if place["line"] else ""
    return f"{place['phase']}{where}"
