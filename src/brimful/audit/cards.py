"""What the cards of a run did, as leaves below `allocated`. The rule for one sample is in meter/idle.py."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from brimful.audit.records import Part, Records, Run
from brimful.meter.idle import GAP_S, Spans

# A run starts and ends between two scrapes. Nobody scrapes less often than this without a reason.
SCRAPE_S = 120
ROOMY = 2  # if this many such jobs fit on its card side by side, the card is larger than needed

Leaf = tuple[str, int, int, int]  # path, start, end, GPUs
Interval = tuple[int, int, int]


def card_leaves(
    records: Records, run: Run, part: Part, held: Interval, cuts: Sequence[Interval], *, gpu: str = ""
) -> Iterator[Leaf]:
    """Every GPU-second the run held here, minus what was cut, each in one leaf. `gpu` is the place's type."""
    start, end, gpus = held
    root = f"allocated.{run.outcome}"
    known = [_spans_of(records, run, part, i) for i in range(gpus)]
    if not any(known):
        yield from ((f"{root}.unknown", a, b, n) for a, b, n in _pieces(start, end, gpus, cuts))
        return
    size = _card_size(run, run.card_bytes or records.types.get(gpu or run.gpu))
    parts = records.parts.get(run.job)
    shares = parts.shares() if parts and parts.whole_s > 0 else {}
    for i, spans in enumerate(known):
        named = list(_named(spans or [], run.start_s, run.end_s))
        gone = [(a, b, 1) for a, b, n in cuts if n > gpus - 1 - i]
        for a, b, _ in _pieces(start, end, 1, gone):
            for what, c, d in _divided(named, a, b):
                yield from _worked(f"{root}.{what}", c, d, size, shares)


def _spans_of(records: Records, run: Run, part: Part, i: int) -> Spans | None:
    if i < len(part.cards):
        card = part.cards[i]
        return records.activity.get((run.job, part.place, card)) or records.activity.get(
            ("", part.place, card)
        )
    return None


def _pieces(start: int, end: int, gpus: int, cuts: Sequence[Interval]) -> Iterator[Interval]:
    """The interval without the cuts, which are in order of time."""
    at = start
    for a, b, n in cuts:
        if at < a:
            yield at, a, gpus
        if gpus > n:
            yield a, b, gpus - n
        at = b
    if at < end:
        yield at, end, gpus


def _divided(named: Sequence[tuple[int, int, str]], start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """(leaf, start, end) for all of [start, end). Where spans overlap, the first counts."""
    at = start
    for first, last, what in named:
        a, b = max(first, at), min(last, end)
        if a >= b:
            continue
        if at < a:
            yield "unknown", at, a
        yield what, a, b
        at = b
    if at < end:
        yield "unknown", at, end


def _named(spans: Spans, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """The spans within a run, each with its leaf: for the whole run, whatever window is asked for."""
    skip = max(0, bisect_right(spans, start, key=lambda span: span[0]) - 1)
    mine: list[tuple[int, int, str]] = []
    for first, last, level in spans[skip:]:
        if first >= end:
            break
        if last <= start:
            continue
        a, b = max(first, start), min(last, end)
        if mine and mine[-1][2] == level and mine[-1][1] == a:
            mine[-1] = (mine[-1][0], b, level)
        else:
            mine.append((a, b, level))
    for i, (a, b, what) in enumerate(mine):
        if what != "idle":
            yield a, b, "active.starved" if what == "starved" else "active.working.unknown"
            continue
        before = _beside(mine[i - 1] if i else None, a, edge=start, is_before=True)
        after = _beside(mine[i + 1] if i + 1 < len(mine) else None, b, edge=end, is_before=False)
        yield a, b, f"idle.{_KINDS.get((before, after)) or _pause(before, after, b - a)}"


# What comes before and after an idle time, and what that makes it.
_KINDS = {("edge", "edge"): "never_used", ("edge", "active"): "setup", ("active", "edge"): "tail"}


def _pause(before: str, after: str, seconds: int) -> str:
    if (before, after) != ("active", "active"):
        return "unknown"
    return "gap" if seconds >= GAP_S else "short"


def _beside(span: tuple[int, int, str] | None, at: int, *, edge: int, is_before: bool) -> str:
    """What borders an idle time: the run's start or end, a busy card, or a gap in the samples."""
    if span is None:
        return "edge" if abs(at - edge) <= SCRAPE_S else "hole"
    return "active" if at == span[1 if is_before else 0] else "hole"


def _card_size(run: Run, card_bytes: int | None) -> str:
    if run.memory_bytes is None or not card_bytes:
        return "unknown"
    return "larger_card" if run.memory_bytes * ROOMY <= card_bytes else "right_card"


def _worked(leaf: str, start: int, end: int, size: str, shares: Mapping[str, float]) -> Iterator[Leaf]:
    """Working time, divided by the share of the card's memory in use and by the parts that a Meter measured.

    In this order, because a Meter always reports memory, while a source of memory is seldom a Meter. Whole
    seconds: each part ends at the nearest second.
    """
    if not leaf.endswith(".working.unknown") or size == "unknown":
        yield leaf, start, end, 1
        return
    base = leaf.removesuffix("unknown") + size
    if not shares:
        yield f"{base}.unknown", start, end, 1
        return
    at, share = start, 0.0
    for name, path in (("input_wait", ""), ("communication", ""), ("mfu", "computing.")):
        share += shares.get(name, 0.0)
        until = max(at, min(end, start + round((end - start) * share)))
        if at < until:
            yield f"{base}.{path}{name}", at, until, 1
        at = until
    if at < end:
        yield f"{base}.computing.{'below_peak' if 'mfu' in shares else 'unknown'}", at, end, 1
