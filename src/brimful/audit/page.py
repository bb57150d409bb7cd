"""The report as one self-contained page: no script, readable on a phone, and printable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from typing import Any

from brimful.audit.said import (
    action_said,
    coverage_said,
    hours_digits,
    leaf_words,
    page_title,
    paid_said,
    size_said,
    told_leaves,
    waste_causes,
)
from brimful.language import Number, Percent, Usd, told, words
from brimful.language.printable import all_printable
from brimful.sim.document import document
from brimful.units import MICROUSD

# Okabe and Ito's colours: anyone can distinguish them.
VERDICTS = {"kept": "#009E73", "wasted": "#D55E00", "unknown": "#999999"}
CAUSES = ("#D55E00", "#E69F00", "#CC79A7", "#0072B2", "#56B4E9", "#F0E442")
OTHERS = "#666666"
LINE = "#0072B2"
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 820, 350, 70, 20, 62, 50
TICKS = 5
Place = Callable[[float], float]
MOST_TEAMS = 20  # on the page; --csv has all

STYLE = """
.bar{display:flex;height:2.2rem;border-radius:4px;overflow:hidden}.bar span{min-width:1px}
.bar.thin{height:1.2rem;margin-top:.9rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;padding:0;margin:.6rem 0;list-style:none}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.big{font-size:1.25rem;margin:.2rem 0 .8rem}td+td{white-space:nowrap}
th.words,td.words{text-align:left}
.heat{table-layout:fixed}.heat td{padding:0;height:1.4rem;border:1px solid #fff}
.heat th{font-weight:400;font-size:.75rem;padding:0 .2rem;border:0;text-align:left;overflow:visible}
.heat th:first-child{width:2.6rem}
figure{margin:0}svg{width:100%;height:auto;max-width:820px}li{margin:.5rem 0}
td.indent-1{padding-left:1.6em}td.indent-2{padding-left:2.8em}td.indent-3{padding-left:4em}
td.indent-4{padding-left:5.2em}td.indent-5{padding-left:6.4em}
tr.top td{font-weight:600;border-top:2px solid #bbb}
.wide td:first-child{overflow-wrap:anywhere}
@media print{.heat,figure,.together,tr{break-inside:avoid}h2{break-after:avoid}
svg{max-width:400px}.together p{margin:.3rem 0}}
@media(max-width:500px){td,th{padding-left:.15rem;padding-right:.15rem;font-size:.85rem}
svg text{font-size:22px}.heat td{height:1.1rem}
td.indent-1{padding-left:.8em}td.indent-2{padding-left:1.4em}td.indent-3{padding-left:2em}
td.indent-4{padding-left:2.6em}td.indent-5{padding-left:3.2em}}
"""


def page(data: dict[str, Any]) -> str:
    data = all_printable(data)
    title = words("audit.page_size_title")
    parts: list[str] = []
    if "headline" in data:
        title = page_title(data)
        parts.append(_headline(data))
    if data.get("actions"):
        items = "".join(_action(each) for each in data["actions"])
        note = _note(words("audit.page_actions_note"))
        parts.append(_section("audit.page_actions", f"<ol>{items}</ol>{note}"))
    for size in data.get("size", ()):
        said = "".join(f"<p>{escape(told(each))}</p>" for each in size_said(size))
        parts.append(f'<div class="together">{_section("audit.page_size_title", said + _curve(size))}</div>')
    if "headline" in data:
        parts += [_leaves(data), _week(data["hour_of_week"]), _teams(data), _top(data)]
        parts.append(_coverage(data["coverage"]))
    return document(title, "".join(parts), style=STYLE)


def _action(action: dict[str, Any]) -> str:
    first, *rest = (escape(told(said)) for said in action_said(action))
    return f'<li><strong>{first}</strong><br><span class="note">{" ".join(rest)}</span></li>'


def _section(code: str, body: str) -> str:
    return f"<section><h2>{escape(words(code))}</h2>{body}</section>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words_in: Collection[int] = ()) -> str:
    """Columns are numbers except the first and those in `words_in`."""
    kinds = [" class=words" if i in words_in else "" for i in range(len(header))]

    def row(tag: str, cells: Sequence[str]) -> str:
        shown = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    head, body = row("th", header), "".join(row("td", cells) for cells in rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _headline(data: dict[str, Any]) -> str:
    """What was paid, kept, wasted and unknown; and below it where the waste is."""
    parts = []
    for name, part in data["headline"].items():
        usd = f", {told(Usd(round(part['usd'] * MICROUSD)))}" if part["usd"] is not None else ""
        text = f"{words(f'audit.is_{name}')} {told(Percent(part['share'] or 0.0, 1))}{usd}"
        parts.append((text, part["share"] or 0.0, VERDICTS[name]))
    causes = waste_causes(data)
    whole = sum(share for _, share in causes)
    shown = [(leaf_words(path), share) for path, share in causes[: len(CAUSES)]]
    if rest := sum(share for _, share in causes[len(CAUSES) :]):
        shown.append((words("audit.page_others"), rest))
    wasted = [
        (f"{name} {told(Percent(share, 1))}", share / whole, colour)
        for (name, share), colour in zip(shown, (*CAUSES, OTHERS), strict=False)
    ]
    why = f"<h2>{escape(words('audit.page_waste'))}</h2>{bar(wasted)}" if wasted else ""
    return f'<p class="big">{escape(told(paid_said(data)))}</p>{bar(parts)}{why}'


def _leaves(data: dict[str, Any]) -> str:
    rows = []
    for leaf in told_leaves(data):
        depth = leaf["path"].count(".")
        cells = [told(Number(leaf["gpu_h"], hours_digits(data))), told(Percent(leaf["share"], 2))]
        if data["money_is"] is not None:
            cells.append(told(Usd(leaf["microusd"])) if leaf["microusd"] is not None else "")
        name = f'<td class="indent-{depth}">{escape(leaf_words(leaf["path"]))}</td>'
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr{' class=top' if not depth else ''}>{name}{row}</tr>")
    names = ("leaf", "gpu_h", "share", *(("usd",) if data["money_is"] is not None else ()))
    header = "".join(f"<th>{escape(words(f'audit.col_{name}'))}</th>" for name in names)
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return _section("audit.page_leaves", f'<div class="wide">{table}</div>')


def _week(week: dict[str, Any]) -> str:
    if not week["gpus"]:
        return ""
    note = _note(words("audit.page_week_note", gpus=Number(week["gpus"])))
    return _section("audit.page_week", heat(week) + note)


def _curve(size: dict[str, Any]) -> str:
    drawn, note = curve(size), _note(words("audit.page_curve"))
    return f"<figure>{drawn}<figcaption>{note}</figcaption></figure>" if drawn else ""


def _teams(data: dict[str, Any]) -> str:
    header = [words(f"audit.col_{name}") for name in ("team", "quota", "peak", "held", "wasted", "walled")]
    rows = []
    for team in data["teams"][:MOST_TEAMS]:
        quota = "" if team["quota_gpus"] is None else told(Number(team["quota_gpus"]))
        hours = [told(Number(team[f"{name}_gpu_h"], 1)) for name in ("held", "wasted", "walled")]
        rows.append([team["team"], quota, told(Number(team["peak_gpus"])), *hours])
    if not rows:
        return ""
    note = _note(words("audit.page_teams_note"))
    if len(data["teams"]) > MOST_TEAMS:
        note += _note(words("audit.page_teams_more", n=len(data["teams"]) - MOST_TEAMS))
    return _section("audit.page_teams", _table(header, rows) + note)


def _top(data: dict[str, Any]) -> str:
    """Jobs and users that wasted most."""
    sections = ""
    for name, first in (("jobs", ("job", "owner")), ("users", ("user",))):
        header = [words(f"audit.col_{column}") for column in (*first, "wasted", "mostly")]
        rows = [
            [
                *([each["job"], each["user"] or each["team"]] if name == "jobs" else [each["user"]]),
                told(Number(each["wasted_gpu_h"], 1)),
                leaf_words(each["mostly"]),
            ]
            for each in data[name]
        ]
        table = _table(header, rows, words_in={len(first) - 1, len(header) - 1})
        sections += _section(f"audit.page_{name}", table) if rows else ""
    return sections


def _coverage(coverage: dict[str, Any]) -> str:
    items = "".join(f"<li>{escape(told(each))}</li>" for each in coverage_said(coverage))
    return _section("audit.page_coverage", f"<ul>{items}</ul>")


def bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """(text, share of the whole, colour) each, with the legend below."""
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
    """Seven rows of 24 hours: blue up to the total number of GPUs, orange where demand was higher."""
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
    """GPUs against the worst share of hurt jobs, with its band, the 5 % line, and the relevant fleets."""
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
