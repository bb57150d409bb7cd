"""What `brimful trace` prints for people: verdict and largest part first, then where, then what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brimful.cli.render import bar, paint, table
from brimful.cli.spoken import wrapped
from brimful.language import Number, Percent, Seconds, Sentence, Several, Size, count, say
from brimful.specs.parts import part

if TYPE_CHECKING:
    from brimful.language import Language
    from brimful.specs.gpu import Gpu

_WIDTH = 80
_BLOCKS = " ▁▂▃▄▅▆▇█"
_OUTSIDE = ("rounding", "allocator_cache", "cuda_context", "workspaces", "kernel_buffers")  # no tensors
_PHASES = {
    "setup": say("gpu.set_up"),
    "forward": say("gpu.forward"),
    "backward": say("gpu.backward"),
    "optimizer": say("gpu.optimizer"),
}


def said_again(data: dict[str, Any]) -> Sentence:
    """A sentence as the traced process wrote it down: its code and its plain values."""
    return Sentence(data["code"], {name: value for name, value in data.items() if name != "code"})


def show(data: dict[str, Any], gpu: Gpu, script: str, tongue: Language) -> str:
    blocks = [
        _verdict(data, gpu, script, tongue),
        _counters(data, tongue),
        _items(data, tongue),
        _timeline(data, tongue),
        _modules(data, tongue),
        _holders(data, tongue),
        _changes(data, tongue),
        _speed(data, tongue),
        _small_print(data, tongue),
    ]
    return "\n\n".join(block for block in blocks if block)


def _verdict(data: dict[str, Any], gpu: Gpu, script: str, tongue: Language) -> str:
    word, style = (say("gpu.fits"), "green") if data["fits"] else (say("gpu.does_not_fit"), "red")
    gap = data["usable_bytes"] - data["device_bytes"]
    room = say("gpu.spare", size=Size(gap)) if gap >= 0 else say("gpu.more_than_it_has", size=Size(-gap))
    what = tongue.text(say("gpu.on", model=script, gpu=gpu.title))
    held = say(
        "gpu.trace_would_hold",
        held=Size(data["device_bytes"]),
        usable=Size(data["usable_bytes"]),
        room=room,
    )
    lines = [f"{paint(tongue.text(word).upper(), style)}  {what}"]
    lines += [_filled(one, tongue, "  ") for one in (_headline(data), held)]
    failure = data["out_of_memory"]
    if failure:
        where = say("gpu.out_of_memory_in", step=failure["step"], where=_at(failure, tongue))
        wants = say(
            "gpu.wants_free",
            op=failure["op"],
            wanted=Size(failure["wanted_bytes"]),
            free=Size(failure["free_bytes"]),
        )
        lines += [paint(_filled(where, tongue, "  "), "red"), _filled(wants, tongue, "    ")]
    if data["mode"] == "rough":
        rough = say("gpu.trace_rough")
        lines.append(paint(_filled(rough, tongue, "  "), "yellow"))
    return "\n".join(lines)


def _headline(data: dict[str, Any]) -> Sentence:
    """The largest part of the tensors at the peak."""
    tensors = [item for item in data["items"] if item["code"] not in _OUTSIDE]
    total = sum(item["bytes"] for item in tensors)
    if not total:
        return say("gpu.nothing_held")
    largest = max(tensors, key=lambda item: item["bytes"])
    share = largest["bytes"] / total
    told = {"name": part(largest["code"]), "size": Size(largest["bytes"]), "frac": Percent(share)}
    if share > 0.5:
        return say("gpu.trace_most_of_it", **told)
    return say("gpu.trace_largest_part", **told)


def _counters(data: dict[str, Any], tongue: Language) -> str:
    names = ("requested", "allocated", "reserved")  # PyTorch's own words
    rows = []
    for title, key in ((say("gpu.first_step"), "first_step"), (say("gpu.steady_step"), "steady_step")):
        sizes = (tongue.text(Size(data[key][f"{name}_bytes"])) for name in names)
        rows.append((tongue.text(title), *sizes))
    whole = (tongue.text(Size(data[f"peak_{name}_bytes"])) for name in names)
    rows.append((tongue.text(say("gpu.whole_run")), *whole))
    body = table((tongue.text(say("gpu.peak")), *names), rows, right=(1, 2, 3))
    unit = tongue.byte_units[3]
    exact = "  ".join(
        f"{tongue.number(data[f'peak_{name}_bytes'], 0)} {unit} {name}" for name in ("allocated", "reserved")
    )
    return f"{body}\n{paint(exact, 'dim')}"


def _items(data: dict[str, Any], tongue: Language) -> str:
    whole = max(1, data["device_bytes"])
    rows = [
        (
            tongue.text(part(item["code"])),
            tongue.text(Size(item["bytes"])),
            tongue.text(Percent(item["bytes"] / whole)),
            bar(item["bytes"] / whole, 28),
        )
        for item in data["items"]
        if item["bytes"]
    ]
    peak = data["peak_at"]
    place = tongue.text(say("gpu.step_op", step=peak["step"], op=peak["op"]))
    title = f"{paint(tongue.text(say('gpu.held_at_peak')), 'bold')}, {place}\n  {_at(peak, tongue)}"
    return f"{title}\n{table(('', '', '', ''), rows, right=(1, 2)).partition(chr(10))[2]}"


def _timeline(data: dict[str, Any], tongue: Language) -> str:
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
    told = tongue.text(say("gpu.timeline_top", events=count("event", data["events"]), size=Size(top)))
    return "\n".join(
        [paint(tongue.text(say("gpu.allocated_over_time")), "bold") + tongue.joint(": ") + told, *rows]
    )


def _modules(data: dict[str, Any], tongue: Language) -> str:
    listed = list(data["modules"].items())[:8]
    rows = [(tongue.text(Size(size)), _module(name, tongue)) for name, size in listed]
    if len(rows) < 2:
        return ""
    return paint(tongue.text(say("gpu.by_module")), "bold") + "\n" + _listed(rows)


def _module(name: str, tongue: Language) -> str:
    from brimful.tracing.items import OUTSIDE

    return tongue.text(say("gpu.outside_module")) if name == OUTSIDE else name


def _holders(data: dict[str, Any], tongue: Language) -> str:
    rows = []
    for holder in data["top_holders"][:8]:
        many = f"{holder['count']} x " if holder["count"] > 1 else ""
        rows.append((tongue.text(Size(holder["bytes"])), f"{many}{holder['op']}  {holder['line']}"))
    return paint(tongue.text(say("gpu.top_holders")), "bold") + "\n" + _listed(rows)


def _listed(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"  {size:>10}  {text}"[:_WIDTH] for size, text in rows)


def _changes(data: dict[str, Any], tongue: Language) -> str:
    from brimful.tracing.fixes import fix_name

    lines = []
    for found in data["saving_settings"]:
        fits = say("gpu.fits_reserved", size=Size(found["peak_reserved_bytes"]))
        lines.append(f"  PYTORCH_CUDA_ALLOC_CONF={found['settings']}\n      {tongue.text(fits)}")
    for fix in data["fixes"]:
        told = say(
            "gpu.trace_fix",
            name=fix_name(fix["code"]),
            size=Size(fix["at_stake_bytes"]),
            change=Several(tuple(map(said_again, fix["change_codes"])), between="; "),
        )
        lines.append(_filled(told, tongue, "  ", "      "))
    title = paint(tongue.text(say("gpu.what_helps")), "bold")
    return title + "\n" + "\n".join(lines) if lines else ""


def _speed(data: dict[str, Any], tongue: Language) -> str:
    speed = data["speed"]
    if speed is None:
        return ""

    def between(kind: type, of: dict[str, float]) -> Sentence:
        return say("gpu.to", **{name: kind(of[name]) for name in ("likely", "low", "high")})

    told = say(
        "gpu.trace_speed",
        step=between(Seconds, speed["step_s"]),
        mfu=between(Percent, speed["mfu"]),
    )
    peak = say(
        "gpu.trace_peak",
        peak=Number(speed["peak_tflops"]),
        format=speed["peak_format"],
        work=Number(speed["flops"] / 1e12, 2),
        bound=say(f"fit.bound_{speed['bound_by']}"),
    )
    title = tongue.text(say("gpu.speed"))
    head = _filled(Several((title, told)), tongue, "", "  ").replace(title, paint(title, "bold"), 1)
    return f"{head}\n{_filled(peak, tongue, '  ')}"


def _small_print(data: dict[str, Any], tongue: Language) -> str:
    said: list[object] = []
    rules = ", ".join(f"{name} {times}" for name, times in data["rules_fired"].items())
    if rules:
        said.append(say("gpu.rules_fired", rules=rules))
    if data["values_invented"]:
        where = ", ".join(f"{line} {times}" for line, times in list(data["values_at"].items())[:3])
        said.append(
            say(
                "gpu.values_made_up",
                n=data["values_invented"],
                where=where,
            )
        )
    if data["steps"] < 2:
        said.append(say("gpu.steps_too_few", n=data["steps"]))
    said += [say("gpu.note", text=said_again(note)) for note in data["note_codes"]]
    context = data["context_bytes"]
    said.append(
        say(
            "gpu.context_estimated",
            low=Size(context["low"]),
            high=Size(context["high"]),
        )
    )
    return "\n".join(_filled(one, tongue, "", "  ") for one in said)


def _at(place: dict[str, Any], tongue: Language) -> str:
    phase = _PHASES.get(place["phase"], place["phase"])
    return tongue.text(Several((phase, *([place["line"]] if place["line"] else []))))


def _filled(said: object, tongue: Language, first: str, rest: str | None = None) -> str:
    return wrapped(tongue.text(said), first=first, rest=first if rest is None else rest, width=_WIDTH)
