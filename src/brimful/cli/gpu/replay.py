"""`brimful replay`: a recording of PyTorch's allocator, replayed under its own and other settings."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from textwrap import wrap

from brimful.allocator import Outcome
from brimful.allocator.replay import Replay, best, replay
from brimful.allocator.settings import LARGE_SEGMENT
from brimful.allocator.timeline import timeline, write_html, write_png
from brimful.cli.commands import NO, YES, Answer
from brimful.cli.render import bar, paint, spark, table
from brimful.errors import BadInput
from brimful.language import Percent, Quoted, Sentence, Several, Size, count, say, told, tongue, words
from brimful.language.printable import all_printable
from brimful.units import MIB, bytes_from_text

EXAMPLE = """brimful replay snapshot.pickle
brimful replay snapshot.pickle --capacity 12GiB
brimful replay snapshot.pickle --conf expandable_segments:True --conf max_split_size_mb:128 --json
brimful replay snapshot.pickle --png timeline.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY:VALUE,…")
    parser.add_argument("--capacity", metavar="SIZE")
    parser.add_argument("--device", type=int, metavar="N")
    parser.add_argument("--html", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")


def run(args: argparse.Namespace) -> Answer:
    replayed = replay(
        args.snapshot, conf=args.conf, capacity_bytes=_capacity(args.capacity), device=args.device
    )
    written = _pictures(args, replayed)
    shown = [text(replayed), *(words("gpu.replay_timeline", path=path) for path in written)]
    return Answer(replayed.as_dict(), "\n".join(shown), NO if replayed.out_of_memory else YES)


def _capacity(written: str | None) -> int | None:
    if written is None:
        return None

    capacity_bytes = bytes_from_text(written)
    if capacity_bytes is None or not 2 * MIB <= capacity_bytes < 1 << 50:
        raise BadInput(say("gpu.capacity_not_a_size", written=Quoted(written[:40])))
    return capacity_bytes


def _pictures(args: argparse.Namespace, replayed: Replay) -> list[str]:
    if args.html or args.png:
        drawn = timeline(replayed, tongue())
        if args.html:
            write_html(drawn, Path(args.html))
        if args.png:
            write_png(drawn, Path(args.png))
    return [path for path in (args.html, args.png) if path]


SHOWN_HOLDERS = 8
SHOWN_DIFFERENCES = 5
MAX_WIDTH = 110


def text(replayed: Replay) -> str:
    width = min(MAX_WIDTH, max(60, shutil.get_terminal_size().columns))
    parts = [
        _head(replayed, width),
        _agreement(replayed, width),
        _peaks(replayed, width),
        _holders(replayed, width),
        _sweep(replayed),
        _verdict(replayed, width),
        _notes(replayed, width),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(replayed: Replay, width: int) -> str:
    settings = str(replayed.settings) or say("gpu.replay_default_settings")
    name = all_printable(replayed.name.rsplit("/", 1)[-1])
    what = told(Several((f"GPU {replayed.device}", count("event", replayed.events), settings)))
    between = "  " if len(name) + 2 + len(what) <= width else "\n  "
    return f"{paint(name, 'bold')}{between}{what}"


def _agreement(replayed: Replay, width: int) -> str:
    found = replayed.compared
    allocations, taken, returned = (
        tally.right + tally.wrong for tally in (found.alloc, found.segment_alloc, found.segment_free)
    )
    if not (allocations or taken or returned):
        return words("gpu.replay_nothing_recorded")
    many = count("allocation", allocations)
    done = say("gpu.replay_done", allocations=many, taken=taken, returned=returned)
    if not replayed.wrong:
        exact = words("gpu.replay_exact")
        said = wrap(words("gpu.replay_every_address", exact=exact, done=done), width)
        return "\n".join(said).replace(exact, paint(exact, "green"), 1)
    differs = words("gpu.replay_differs")
    figures = words(
        "gpu.replay_differs_in",
        differs=differs,
        events=count("event", replayed.wrong),
        done=done,
        addresses=found.alloc.wrong,
        taken=found.segment_alloc.wrong,
        returned=found.segment_free.wrong,
    )
    lines = ["\n".join(wrap(figures, width)).replace(differs, paint(differs, "yellow"), 1)]
    for line in found.differences[:SHOWN_DIFFERENCES]:
        lines += wrap(all_printable(told(line)), width, initial_indent="  ", subsequent_indent="    ")
    left = replayed.wrong - SHOWN_DIFFERENCES
    return "\n".join([*lines, *(["  " + words("gpu.and_more", n=left)] if left > 0 else [])])


def _peaks(replayed: Replay, width: int) -> str:
    allocated, reserved = Size(replayed.peak_allocated_bytes), Size(replayed.peak_reserved_bytes)
    more = Size(replayed.peak_reserved_bytes - replayed.peak_allocated_bytes)
    peak = words("gpu.replay_peak_at_start", size=allocated)
    if replayed.compared.peak_at:
        peak = words("gpu.replay_peak_after", size=allocated, event=replayed.compared.peak_at)
    rows = [("allocated", peak), ("reserved", words("gpu.replay_peak_reserved", size=reserved, more=more))]
    curve = replayed.compared.curve
    if len(curve) > 1:
        cells, top = min(len(curve), width - 13), replayed.peak_reserved_bytes
        unused = [1 - p.allocated_bytes / p.reserved_bytes if p.reserved_bytes else 0.0 for p in curve]
        low, high = Percent(min(unused)), Percent(max(unused))
        rows += [
            ("", ""),
            ("reserved", spark([p.reserved_bytes for p in curve], cells, top=top)),
            ("allocated", spark([p.allocated_bytes for p in curve], cells, top=top)),
            (words("gpu.replay_unused"), spark(unused, cells, top=1.0)),
            ("", words("gpu.replay_unused_share", low=low, high=high)),
        ]
    return "\n".join(f"  {label:<9}  {shown}".rstrip() for label, shown in rows)


def _holders(replayed: Replay, width: int) -> str:
    held = replayed.holders
    if not held:
        return ""
    total = sum(holder.nbytes for holder in held)
    rest = held[SHOWN_HOLDERS:]
    rows = [
        (one.nbytes, one.blocks, all_printable(one.label) or words("gpu.replay_no_stack"))
        for one in held[:SHOWN_HOLDERS]
    ]
    if rest:
        others = words("gpu.replay_others", n=len(rest))
        rows.append((sum(h.nbytes for h in rest), sum(h.blocks for h in rest), others))
    lines = [
        f"  {told(Size(nbytes)):>10}  {bar(nbytes / total, 12)}  {told(blocks):>5} × {label}"[:width]
        for nbytes, blocks, label in rows
    ]
    return "\n".join([paint(words("gpu.held_at_peak"), "bold"), *lines])


def _sweep(replayed: Replay) -> str:
    if len(replayed.sweep) < 2 and replayed.capacity_bytes is None:
        return ""
    now = replayed.sweep[0]
    recorded = words("gpu.replay_as_recorded")
    rows = [
        (recorded if outcome is now else str(outcome.settings), *_figures(outcome, now, replayed))
        for outcome in replayed.sweep
    ]
    header = [words("gpu.replay_setting"), "reserved", words("gpu.change")]
    if replayed.capacity_bytes is not None:
        header.append(words("gpu.replay_on_device", size=Size(replayed.capacity_bytes)))
    lines = table(header, rows, right=(1, 2)).splitlines()
    return "\n".join([paint(words("gpu.replay_other_settings"), "bold"), *(f"  {line}" for line in lines)])


def _figures(outcome: Outcome, now: Outcome, replayed: Replay) -> tuple[str, ...]:
    failed = outcome.out_of_memory is not None
    comparable = not failed and now.out_of_memory is None and outcome is not now
    more = outcome.peak_reserved_bytes - now.peak_reserved_bytes
    change = ("+" if more > 0 else "") + told(Size(more)) if more else words("gpu.none")
    cells = ["-" if failed else told(Size(outcome.peak_reserved_bytes)), change if comparable else ""]
    if replayed.capacity_bytes is not None:
        fits = say("gpu.fits")
        if failed and outcome.failed_at is not None:
            requests = len(replayed.compared.requests)
            fits = say("gpu.replay_runs_out_at", request=outcome.failed_at, requests=requests)
        elif outcome.retries:
            fits = say("gpu.replay_fits_retried", times=count("time", outcome.retries))
        cells.append(told(fits))
    return tuple(cells)


def _verdict(replayed: Replay, width: int) -> str:
    now, better = replayed.sweep[0], best(replayed)
    lines = []
    if now.out_of_memory is not None and now.failed_at is not None:
        problem = now.out_of_memory.said
        label = all_printable(replayed.compared.requests[now.failed_at].label)
        said = say("gpu.replay_runs_out", problem=problem)
        if label:
            said = say("gpu.replay_runs_out_for", problem=problem, who=label)
        lines += wrap(told(said), width)
    if better is not None:
        saved = now.peak_reserved_bytes - better.peak_reserved_bytes
        if now.out_of_memory is not None:
            size = Size(better.peak_reserved_bytes)
            gain = words("gpu.replay_setting_fits", settings=better.settings, size=size)
        else:
            frac = Percent(saved / now.peak_reserved_bytes, 1)
            gain = words("gpu.replay_setting_saves", settings=better.settings, size=Size(saved), frac=frac)
        lines += [paint(gain, "green"), f"  export PYTORCH_CUDA_ALLOC_CONF={better.settings}"]
        if better.settings.large_segment_bytes != LARGE_SEGMENT:
            lines += wrap(words("gpu.replay_needs_recent_torch"), width)
    elif len(replayed.sweep) > 1:
        lines += wrap(told(_no_setting_helps(replayed)), width)
    return "\n".join(lines)


def _no_setting_helps(replayed: Replay) -> Sentence:
    if replayed.sweep[0].out_of_memory is None:
        return say("gpu.replay_no_setting_saves")
    tensors = replayed.peak_allocated_bytes
    if tensors > (replayed.capacity_bytes or 0):
        return say("gpu.replay_tensors_too_large", size=Size(tensors))
    return say("gpu.replay_fragments", size=Size(tensors))


def _notes(replayed: Replay, width: int) -> str:
    lines: list[str] = []
    for event in replayed.compared.ooms[:3]:
        said = words("gpu.replay_recorded_oom", wanted=Size(event.nbytes), free=Size(event.address))
        lines += wrap(said, width)
    for note in replayed.notes:
        lines += wrap(words("gpu.note", text=all_printable(told(note))), width, subsequent_indent="      ")
    return "\n".join(lines)
