"""The chart of a sweep, with matplotlib: memory stacked by part, and MFU and tokens per second below it.

matplotlib is an extra (`brimful[plot]`) and is imported only when a chart is requested.
"""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import Any

from brimful.errors import BadInput
from brimful.files import write_whole
from brimful.fit.advice.sweep import TITLES, Sweep
from brimful.language import Size, say, told, tongue, words
from brimful.language.failures import needs_package, os_errors_as
from brimful.units import GIB

# Colours that people with any colour vision can distinguish (Okabe and Ito).
_COLOURS = {
    "states": "#0072B2", "activations": "#56B4E9", "logits": "#D55E00", "cache": "#E69F00",
    "outside": "#999999", "rest": "#CC79A7",
}  # fmt: skip
_GROUND = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
_KINDS = (".png", ".svg", ".html")


def write_plot(file: str, done: Sweep, title: str) -> None:
    """The chart, or a self-contained page with the chart and its sentences."""
    path = Path(file)
    kind = path.suffix.lower()
    if kind not in _KINDS:
        raise BadInput(say("gpu.plot_kind_unknown", file=file[:80], kinds=", ".join(_KINDS)))
    drawn = picture(done, title, "png" if kind == ".png" else "svg")
    if kind == ".html":
        drawn = _page(drawn.decode("utf-8"), done, title).encode("utf-8")
    with os_errors_as("language.cannot_write", path=path):
        write_whole(path, drawn)


def picture(done: Sweep, title: str, kind: str) -> bytes:
    with needs_package("gpu.plot_needs_matplotlib"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    # The same sweep gives the same bytes: no date, and stable names inside the SVG.
    mpl.rcParams["svg.hashsalt"] = "brimful"
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    memory, speed = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    figure.suptitle(title, fontsize=12)
    _memory(memory, done)
    _speed(speed, done)
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(out, format=kind, dpi=110, metadata=metadata)
    return out.getvalue()


def _memory(axes: Any, done: Sweep) -> None:  # noqa: ANN401 - matplotlib's own type
    values = [point.value for point in done.points]
    groups = {name: [point.groups()[name] / GIB for point in done.points] for name in TITLES}
    used = [name for name, sizes in groups.items() if any(sizes)]
    axes.stackplot(
        values,
        [groups[name] for name in used],
        labels=[words(TITLES[name]) for name in used],
        colors=[_COLOURS[name] for name in used],
    )
    card = say("gpu.end_of_card", size=Size(done.usable_bytes))
    axes.axhline(done.usable_bytes / GIB, color="black", linestyle="--", linewidth=1.2, label=told(card))
    axes.set_ylabel(tongue().byte_units[0])
    _grouped(axes.yaxis)
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    # Beside the chart, from its top down: inside it would cover the lines.
    axes.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False
    )
    if done.largest is not None:
        axes.axvline(done.largest, color="black", linewidth=0.8)
        _label(axes, words("gpu.largest_fits", value=done.largest), done.largest, done)


def _speed(axes: Any, done: Sweep) -> None:  # noqa: ANN401 - matplotlib's own type
    values = [point.value for point in done.points]
    axes.plot(values, [100 * point.mfu for point in done.points], color="#009E73")
    axes.set_ylabel("MFU, %")
    axes.set_ylim(0, 100)
    axes.set_xlabel(done.swept)
    _grouped(axes.xaxis)
    rate = axes.twinx()
    rate.plot(values, [point.tokens_per_s for point in done.points], color="#CC79A7", linestyle=":")
    rate.set_ylabel(words("gpu.tokens_s_dotted"))
    _grouped(rate.yaxis)
    rate.set_ylim(0, 1.15 * max(point.tokens_per_s for point in done.points))
    if done.knee is not None:
        knee = next(point for point in done.points if point.value == done.knee)
        axes.plot([knee.value], [100 * knee.mfu], "o", color="black", markersize=4)
        axes.annotate(
            words("gpu.knee_at", value=done.knee),
            (knee.value, 100 * knee.mfu),
            xytext=(6, -14),
            textcoords="offset points",
            fontsize=8,
            bbox=_GROUND,
        )


def _label(axes: Any, text: str, value: int, done: Sweep) -> None:  # noqa: ANN401 - matplotlib's own type
    """At the foot of its line, on white, on the side with more room."""
    first, last = done.points[0].value, done.points[-1].value
    right = value - first <= last - value
    axes.annotate(
        text,
        (value, 0),
        xytext=(5 if right else -5, 8),
        textcoords="offset points",
        ha="left" if right else "right",
        fontsize=8,
        bbox=_GROUND,
    )


def _grouped(axis: Any) -> None:  # noqa: ANN401 - matplotlib's own type
    """Numbers in the language's format, with only as many decimals as their spacing needs."""
    from matplotlib.ticker import FuncFormatter

    def shown(value: float, _: int | None = None) -> str:
        digits = 0 if value == round(value) else 1 if 10 * value == round(10 * value) else 2
        return tongue().number(value, digits)

    axis.set_major_formatter(FuncFormatter(shown))


def _page(svg: str, done: Sweep, title: str) -> str:
    drawn = svg[svg.index("<svg") :]
    sentences = "".join(f"<p>{escape(told(sentence))}</p>" for sentence in done.says())
    return (
        f'<!doctype html><html lang="{tongue().code}"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>body{{font:16px sans-serif;max-width:52rem;margin:2rem auto}}"
        f"svg{{max-width:100%;height:auto}}</style></head><body>{drawn}{sentences}</body></html>\n"
    )
