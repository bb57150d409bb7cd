"""What `brimful replay` prints for a person."""

from __future__ import annotations

import shutil
from textwrap import wrap

from brimful.allocator import Outcome
from brimful.allocator.replay import Replay, best
from brimful.allocator.settings import LARGE_SEGMENT
from brimful.cli.render import bar, paint, spark, table
from brimful.language.printable import all_printable
from brimful.units import counted, show_bytes

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
    settings = str(replayed.settings) or "PyTorch's default settings"
    name = all_printable(replayed.name.rsplit("/", 1)[-1])
    what = f"GPU {replayed.device}, {counted(replayed.events, 'event')}, {settings}"
    between = "  " if len(name) + 2 + len(what) <= width else "\n  "
    return f"{paint(name, 'bold')}{between}{what}"


def _agreement(replayed: Replay, width: int) -> str:
    found = replayed.compared
    tallies = (found.alloc, found.segment_alloc, found.segment_free)
    if not any(tally.right or tally.wrong for tally in tallies):
        return "No allocation was recorded: this is the memory at one moment."
    done = (
        f"{counted(found.alloc.right + found.alloc.wrong, 'allocation')}, "
        f"{found.segment_alloc.right + found.segment_alloc.wrong:,} taken from the GPU, "
        f"{found.segment_free.right + found.segment_free.wrong:,} returned"
    )
    if not replayed.wrong:
        said = wrap(f"Replayed exactly, every address and segment: {done}.", width)
        return "\n".join(said).replace("Replayed exactly", paint("Replayed exactly", "green"), 1)
    differ = f"{counted(replayed.wrong, 'event')} of the replay differ"
    said = wrap(
        f"{differ} from the recording ({done}): {found.alloc.wrong:,} addresses, "
        f"{found.segment_alloc.wrong:,} taken, {found.segment_free.wrong:,} returned.",
        width,
    )
    lines = ["\n".join(said).replace(differ, paint(differ, "yellow"), 1)]
    for line in found.differences[:SHOWN_DIFFERENCES]:
        lines += wrap(all_printable(str(line)), width, initial_indent="  ", subsequent_indent="    ")
    left = replayed.wrong - SHOWN_DIFFERENCES
    return "\n".join(lines + ([f"  … and {left:,} more"] if left > 0 else []))


def _peaks(replayed: Replay, width: int) -> str:
    allocated, reserved = replayed.peak_allocated_bytes, replayed.peak_reserved_bytes
    at = f"after event {replayed.compared.peak_at:,}" if replayed.compared.peak_at else "when it began"
    lines = [
        f"  allocated  peak {show_bytes(allocated)} {at}",
        f"  reserved   peak {show_bytes(reserved)}, {show_bytes(reserved - allocated)} more than ever in use",
    ]
    curve = replayed.compared.curve
    if len(curve) > 1:
        cells = min(len(curve), width - 13)
        unused = [1 - p.allocated_bytes / p.reserved_bytes if p.reserved_bytes else 0.0 for p in curve]
        lines += [
            "",
            f"  reserved   {spark([p.reserved_bytes for p in curve], cells, top=reserved)}",
            f"  allocated  {spark([p.allocated_bytes for p in curve], cells, top=reserved)}",
            f"  unused     {spark(unused, cells, top=1.0)}",
            f"             share of reserved that is not allocated: {min(unused):.0%} to {max(unused):.0%}",
        ]
    return "\n".join(lines)


def _holders(replayed: Replay, width: int) -> str:
    held = replayed.holders
    if not held:
        return ""
    total = sum(holder.nbytes for holder in held)
    lines = [paint("Held at the peak", "bold")]
    for holder in held[:SHOWN_HOLDERS]:
        label = all_printable(holder.label) or "(no stack recorded)"
        figures = (
            f"  {show_bytes(holder.nbytes):>10}  {bar(holder.nbytes / total, 12)}  {holder.blocks:>5,} × "
        )
        lines.append(f"{figures}{label}"[:width])
    rest = held[SHOWN_HOLDERS:]
    if rest:
        nbytes, blocks = sum(h.nbytes for h in rest), sum(h.blocks for h in rest)
        lines.append(
            f"  {show_bytes(nbytes):>10}  {bar(nbytes / total, 12)}  {blocks:>5,} × {len(rest)} others"
        )
    return "\n".join(lines)


def _sweep(replayed: Replay) -> str:
    if len(replayed.sweep) < 2 and replayed.capacity_bytes is None:
        return ""
    now = replayed.sweep[0]
    rows = [(_name(outcome, replayed), *_figures(outcome, now, replayed)) for outcome in replayed.sweep]
    header = ["setting", "reserved", "change"]
    if replayed.capacity_bytes is not None:
        header.append(f"on {show_bytes(replayed.capacity_bytes)}")
    return "\n".join(
        [paint("What other settings would have given", "bold"), _indent(table(header, rows, right=(1, 2)))]
    )


def _name(outcome: Outcome, replayed: Replay) -> str:
    return "as recorded" if outcome is replayed.sweep[0] else str(outcome.settings)


def _figures(outcome: Outcome, now: Outcome, replayed: Replay) -> tuple[str, ...]:
    failed = outcome.out_of_memory is not None
    comparable = not failed and now.out_of_memory is None and outcome is not now
    more = outcome.peak_reserved_bytes - now.peak_reserved_bytes
    change = ("+" if more > 0 else "") + show_bytes(more) if more else "none"
    cells = ["-" if failed else show_bytes(outcome.peak_reserved_bytes), change if comparable else ""]
    if replayed.capacity_bytes is not None:
        if failed and outcome.failed_at is not None:
            cells.append(f"runs out at {outcome.failed_at:,} of {len(replayed.compared.requests):,}")
        else:
            cells.append(
                "fits" + (f", full {counted(outcome.retries, 'time')} before" if outcome.retries else "")
            )
    return tuple(cells)


def _verdict(replayed: Replay, width: int) -> str:
    now, better = replayed.sweep[0], best(replayed)
    lines = []
    if now.out_of_memory is not None and now.failed_at is not None:
        request = replayed.compared.requests[now.failed_at]
        who = f" by {all_printable(request.label)}" if request.label else ""
        lines += wrap(f"As recorded it runs out: {now.out_of_memory.problem}. Asked for{who}.", width)
    if better is not None:
        if now.out_of_memory is not None:
            gain = f"fits, with {show_bytes(better.peak_reserved_bytes)} reserved"
        else:
            saved = now.peak_reserved_bytes - better.peak_reserved_bytes
            gain = f"saves {show_bytes(saved)} ({saved / now.peak_reserved_bytes:.1%} of what is reserved)"
        lines += [paint(f"{better.settings} {gain}:", "green")]
        lines += [f"  export PYTORCH_CUDA_ALLOC_CONF={better.settings}"]
        if better.settings.large_segment_bytes != LARGE_SEGMENT:
            lines += wrap("Only recent versions of PyTorch know it; an older one stops with an error.", width)
    elif len(replayed.sweep) > 1:
        if now.out_of_memory is not None:
            said = _no_setting_helps(replayed)
        else:
            said = "No setting saves as much as 1 %: the memory is in tensors, not in fragments."
        lines += wrap(said, width)
    return "\n".join(lines)


def _no_setting_helps(replayed: Replay) -> str:
    tensors, capacity = replayed.peak_allocated_bytes, replayed.capacity_bytes or 0
    if tensors > capacity:
        return (
            f"No setting helps: the tensors alone take {show_bytes(tensors)} at the peak. Hold less at once."
        )
    return (
        f"None of these settings helps, though the tensors alone ({show_bytes(tensors)}) would fit: "
        "what is in the way is fragments. Try others with --conf."
    )


def _notes(replayed: Replay, width: int) -> str:
    lines: list[str] = []
    for event in replayed.compared.ooms[:3]:
        lines += wrap(
            f"The recording itself ran out: {show_bytes(event.nbytes)} were asked for with "
            f"{show_bytes(event.address)} free on the device.",
            width,
        )
    for note in replayed.notes:
        lines += wrap(f"Note: {all_printable(str(note))}.", width, subsequent_indent="      ")
    return "\n".join(lines)


def _indent(block: str) -> str:
    return "\n".join(f"  {line}" for line in block.splitlines())
