"""Memory over a run as a picture: who holds it, what the device has, and where it runs out.

HTML by plotly (`brimful[report]`), one self-contained page; PNG by matplotlib (`brimful[plot]`). Both are
imported only when a picture is requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.allocator.run import EMPTY_CACHE, MALLOC, Request
from brimful.files import write_whole
from brimful.language import Language, Quoted, Size, language, say
from brimful.language.failures import needs_package, os_errors_as
from brimful.units import GIB

if TYPE_CHECKING:
    from brimful.allocator.replay import Replay

POINTS = 600  # samples along the run; a picture has about as many columns
LAYERS = 9  # labels with their own colour; the rest are one grey layer
OTHERS, UNNAMED = "(others)", "(unnamed)"  # labels that are translated
# Colours that are distinguishable with any colour vision (Okabe and Ito, and two more), then grey.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#8C6BB1", "#A6611A"),
)
GREY, RESERVED, LIMIT = "#BBBBBB", "#333333", "#C00000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What to draw: layers of bytes over requests, and lines above them."""

    title: str
    x: tuple[int, ...]  # requests made so far
    layers: tuple[tuple[str, tuple[int, ...]], ...]  # from the bottom; they add up to the requested bytes
    reserved: tuple[tuple[int, int], ...] = ()  # (request, bytes)
    capacity_bytes: int | None = None
    failed_at: int | None = None  # the request that does not fit
    failure: str = ""
    tongue: Language = field(default_factory=lambda: language("en"))


def timeline(replayed: Replay, tongue: Language | None = None) -> Timeline:
    """The recorded run; with a capacity also its line and where it would be exceeded."""
    now = replayed.sweep[0]
    x, layers = stack(replayed.compared.requests, first=replayed.compared.held_before)
    tongue = tongue or language("en")
    return Timeline(
        title=f"{replayed.name.rsplit('/', 1)[-1]}, GPU {replayed.device}",
        x=x,
        layers=layers,
        reserved=tuple((point.request, point.reserved_bytes) for point in replayed.compared.curve),
        capacity_bytes=replayed.capacity_bytes,
        failed_at=now.failed_at,
        failure=tongue.text(now.out_of_memory.said) if now.out_of_memory is not None else "",
        tongue=tongue,
    )


def stack(
    requests: Sequence[Request], *, first: int = 0
) -> tuple[tuple[int, ...], tuple[tuple[str, tuple[int, ...]], ...]]:
    """Live bytes by label at POINTS moments: each the fullest of its slice, so that no peak is lost.

    The first `first` requests existed before: the picture begins after them.
    """
    samples: dict[int, tuple[int, int, Counter[str]]] = {}
    live: dict[int, tuple[str, int]] = {}
    held: Counter[str] = Counter()
    total = 0
    for i, request in enumerate(requests):
        if request.op == MALLOC:
            label = request.label or UNNAMED
            live[request.key] = (label, request.nbytes)
            held[label] += request.nbytes
            total += request.nbytes
        elif request.op != EMPTY_CACHE and request.key in live:
            label, nbytes = live.pop(request.key)
            held[label] -= nbytes
            total -= nbytes
        if i + 1 < first:
            continue
        slot = (i + 1 - first) * POINTS // (len(requests) + 1 - first)
        if slot not in samples or total > samples[slot][1]:
            samples[slot] = (i, total, held.copy())
    x = tuple(at for at, _, _ in samples.values())
    most: Counter[str] = Counter()
    for _, _, sample in samples.values():
        for label, nbytes in sample.items():
            most[label] = max(most[label], nbytes)
    named = [label for label, nbytes in most.most_common(LAYERS) if nbytes]
    layers = [(label, tuple(sample[label] for _, _, sample in samples.values())) for label in named]
    # What is always there is at the bottom, so that what comes and goes shows on top of it.
    layers.sort(key=lambda layer: -sum(layer[1]) / max(layer[1]))
    rest = tuple(
        sum(sample.values()) - sum(sample[label] for label in named) for _, _, sample in samples.values()
    )
    if any(rest):
        layers.append((OTHERS, rest))
    return x, tuple(layers)


def write_html(drawn: Timeline, path: Path) -> None:
    """One page with the picture; it can be zoomed, and loads nothing from elsewhere."""
    with needs_package("allocator.html_needs_plotly"):
        from plotly.graph_objects import Figure, Scatter
        from plotly.offline import get_plotlyjs
    figure: Figure = Figure()
    for (label, values), colour in zip(drawn.layers, _colours(drawn), strict=True):
        figure.add_trace(
            Scatter(
                x=drawn.x,
                y=[value / GIB for value in values],
                name=escape(_label(label, drawn)),
                stackgroup="held",
                mode="none",
                fillcolor=colour,
                hovertemplate=f"%{{y:.3f}} {drawn.tongue.byte_units[0]}",
            )
        )
    if drawn.reserved:
        figure.add_trace(
            Scatter(
                x=[at for at, _ in drawn.reserved],
                y=[nbytes / GIB for _, nbytes in drawn.reserved],
                name="reserved",  # PyTorch's own term
                mode="lines",
                line={"color": RESERVED, "width": 1.5, "shape": "hv"},
                hovertemplate=f"%{{y:.3f}} {drawn.tongue.byte_units[0]}",
            )
        )
    if drawn.capacity_bytes is not None:
        capacity = drawn.capacity_bytes / GIB
        figure.add_hline(y=capacity, line_color=LIMIT, line_dash="dash", annotation_text=_limit(drawn))
        if drawn.failed_at is not None:
            figure.add_trace(
                Scatter(
                    x=[drawn.failed_at],
                    y=[capacity],
                    name=drawn.tongue.text(say("allocator.runs_out_here")),
                    mode="markers",
                    marker={"color": LIMIT, "size": 14, "symbol": "x"},
                    hovertemplate=f"{escape(drawn.failure)}<extra></extra>",
                )
            )
    figure.update_layout(
        title=escape(drawn.title),
        xaxis_title=drawn.tongue.text(say("allocator.requests_so_far")),
        yaxis={"title": drawn.tongue.byte_units[0], "rangemode": "tozero"},
        hovermode="x unified",
        template="plotly_white",
        height=640,
    )
    chart = figure.to_html(full_html=False, include_plotlyjs=False, div_id="timeline")
    page = (
        f'<!doctype html><html lang="{drawn.tongue.code}"><head><meta charset="utf-8">'
        f"<title>{escape(drawn.title)}</title><script>{get_plotlyjs()}</script></head>"
        f'<body style="font-family:sans-serif;margin:1rem">{chart}'
        f"<p>{escape(drawn.failure)}</p></body></html>\n"
    )
    _write(path, page.encode())


def write_png(drawn: Timeline, path: Path) -> None:
    with needs_package("allocator.png_needs_matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(12, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    layers = [[value / GIB for value in values] for _, values in drawn.layers]
    if layers:
        labels = [_plain(_label(label, drawn)) for label, _ in drawn.layers]
        axes.stackplot(drawn.x, *layers, labels=labels, colors=_colours(drawn), linewidth=0)
    if drawn.reserved:
        axes.step(
            [at for at, _ in drawn.reserved],
            [nbytes / GIB for _, nbytes in drawn.reserved],
            where="post",
            color=RESERVED,
            linewidth=1.2,
            label="reserved",
        )
    if drawn.capacity_bytes is not None:
        capacity = drawn.capacity_bytes / GIB
        axes.axhline(capacity, color=LIMIT, linestyle="--", linewidth=1.2, label=_limit(drawn))
        if drawn.failed_at is not None:
            axes.plot(
                [drawn.failed_at],
                [capacity],
                "X",
                color=LIMIT,
                markersize=12,
                label=drawn.tongue.text(say("allocator.runs_out_here")),
            )
    axes.set_title(_plain(drawn.title, 110), loc="left")
    axes.set_xlabel(drawn.tongue.text(say("allocator.requests_so_far")))
    axes.set_ylabel(drawn.tongue.byte_units[0])
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    # The legend reads from the top of the picture down.
    axes.legend(
        handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8
    )
    out = BytesIO()
    figure.savefig(out, format="png")
    _write(path, out.getvalue())


def _colours(drawn: Timeline) -> list[str]:
    named = [label for label, _ in drawn.layers if label != OTHERS]
    return [*COLOURS[: len(named)], *([GREY] if len(named) < len(drawn.layers) else [])]


def _limit(drawn: Timeline) -> str:
    return drawn.tongue.text(say("allocator.capacity", size=Size(drawn.capacity_bytes or 0)))


def _label(name: str, drawn: Timeline) -> str:
    own = {OTHERS: say("allocator.everything_else"), UNNAMED: say("allocator.no_stack_recorded")}
    return drawn.tongue.text(own[name]) if name in own else name


def _plain(text: str, most: int = 60) -> str:
    """For matplotlib, which parses `$…$` as mathematics and omits labels that begin with `_`."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$").lstrip("_")[:most]


def _write(path: Path, data: bytes) -> None:
    with os_errors_as("language.cannot_write", path=Quoted(str(path))):
        write_whole(path, data, mode=0o644)
