"""What the page draws: bars, the week, and the curve of fleets. Plain HTML and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from brimful.language import Number, Percent, told, words

# Okabe and Ito's colours: anybody can tell them apart.
VERDICTS = {"kept": "#009E73", "wasted": "#D55E00", "unknown": "#999999"}
CAUSES = ("#D55E00", "#E69F00", "#CC79A7", "#0072B2", "#56B4E9", "#F0E442")
OTHERS = "#666666"
LINE = "#0072B2"
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 820, 350, 70, 20, 62, 50
TICKS = 5
Place = Callable[[float], float]


def bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """(text, share of the whole, colour) each, and the legend below."""
    spans = "".join(
        f'<span style="width:{100 * share:.2f}%;background:{colour}" title="{escape(text)}"></span>'
        for text, share, colour in parts
        if share
    )
    legend = "".join(
        f'<li><i style="background:{colour}"></i>{escape(text)}</li>' for text, _, colour in parts
    )
    return f'<div class="bar">{spans}</div><ul class="legend">{legend}</ul>'


def heat(week: dict[str, Any]) -> str:
    """Seven rows of twenty-four hours: blue up to all GPUs there are, orange where more were wanted."""
    top, rows = week["gpus"], []
    for day, name in enumerate(words("audit.page_days").split()):
        cells = []
        for hour in range(24):
            mean = week["mean"][day * 24 + hour]
            frac = 0.0 if mean is None else mean / top
            over = frac > 1
            colour = (
                f"rgba(213,94,0,{min(1.0, 0.4 + frac - 1):.2f})" if over else f"rgba(0,114,178,{frac:.2f})"
            )
            label = "" if mean is None else f"{name} {hour}:00 {told(Number(mean))}"
            cells.append(f'<td title="{escape(label)}" style="background:{colour}"></td>')
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    hours = "".join(f"<th>{hour if hour % 6 == 0 else ''}</th>" for hour in range(24))
    return f'<table class="heat"><tr><th></th>{hours}</tr>{"".join(rows)}</table>'


def curve(size: dict[str, Any]) -> str:
    """GPUs against the worst share of hurt jobs, with its band, the 5 % line, and the fleets that matter."""
    points = size["curve"]
    if len(points) < 2:
        return ""
    marks = _marks(size)
    low: int = min([points[0]["gpus"], *(gpus for gpus, _, _ in marks)])
    high: int = max([points[-1]["gpus"], *(gpus for gpus, _, _ in marks)])
    top = float(min(1.0, max(0.1, *(1.1 * point["hurt"] for point in points))))

    def x(gpus: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * (gpus - low) / max(1, high - low)

    def y(share: float) -> float:
        return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * min(share, top) / top

    band = [(x(p["gpus"]), y(p["high"])) for p in points] + [
        (x(p["gpus"]), y(p["low"])) for p in points[::-1]
    ]
    line = [(x(p["gpus"]), y(p["hurt"])) for p in points]
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{LINE}"/>' for a, b in line)
    shapes = (
        f'<polygon points="{_points(band)}" fill="{LINE}" fill-opacity=".15"/>'
        f'<polyline points="{_points(line)}" fill="none" stroke="{LINE}" stroke-width="2"/>{dots}'
    )
    lines = "".join(
        f'<line x1="{x(gpus):.1f}" x2="{x(gpus):.1f}" y1="{TOP - 6}" y2="{HIGH - BOTTOM}" stroke="{colour}" '
        f'stroke-width="1.5" stroke-dasharray="5 4"/>'
        f'<text x="{x(gpus):.1f}" y="{20 + 26 * (i % 2)}" font-size="13" fill="{colour}" '
        f'text-anchor="{_anchor(x(gpus))}">{escape(text)}</text>'
        for i, (gpus, text, colour) in enumerate(marks)
    )
    title = escape(words("audit.page_curve"))
    axes = _axes(low, high, top, x, y)
    return f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{title}">{axes}{shapes}{lines}</svg>'


def _marks(size: dict[str, Any]) -> list[tuple[int, str, str]]:
    found = [
        ("enough", size["gpus"], VERDICTS["kept"]),
        ("bootstrap", size["bootstrap_gpus"], LINE),
        ("today", size["fleet_gpus"], VERDICTS["wasted"]),
    ]
    known = [
        (gpus, words(f"audit.mark_{name}", gpus=Number(gpus)), colour) for name, gpus, colour in found if gpus
    ]
    return sorted(known, key=lambda mark: mark[0])


def _axes(low: int, high: int, top: float, x: Place, y: Place) -> str:
    drawn = [f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(0.0):.1f}" y2="{y(0.0):.1f}" stroke="#888"/>']
    for share in sorted({0.05, top}):
        at = f'y1="{y(share):.1f}" y2="{y(share):.1f}"'
        dash = ' stroke-dasharray="2 3"' if share != 0.05 else ""
        drawn.append(
            f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" {at} stroke="#bbb"{dash}/>'
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" font-size="13" text-anchor="end">'
            f"{told(Percent(share))}</text>"
        )
    for i in range(TICKS):
        gpus = low + (high - low) * i / (TICKS - 1)
        side = _anchor(x(gpus))
        drawn.append(
            f'<text x="{x(gpus):.1f}" y="{HIGH - BOTTOM + 20}" font-size="13" text-anchor="{side}">'
            f"{told(Number(round(gpus)))}</text>"
        )
    label = escape(words("audit.axis_gpus"))
    drawn.append(f'<text x="{WIDE / 2}" y="{HIGH - 6}" font-size="13" text-anchor="middle">{label}</text>')
    return "".join(drawn)


def _anchor(at: float) -> str:
    return "start" if at < LEFT + 60 else "end" if at > WIDE - RIGHT - 60 else "middle"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
