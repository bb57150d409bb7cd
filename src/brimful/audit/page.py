"""The report as one page that needs nothing else: no script, readable on a phone, and fit to print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from brimful.audit.said import action_said, coverage_said, leaf_words, paid_said, size_said, told_leaves
from brimful.language import Number, Percent, Usd, told, tongue, words
from brimful.units import MICROUSD

# Okabe and Ito's colours: kept, wasted, unknown, whatever somebody's colour vision.
COLOURS = {"kept": "#009E73", "wasted": "#D55E00", "unknown": "#999999"}
STYLE = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:1.5rem auto;padding:0 1rem}
body{color:#1a1a1a;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.bar{display:flex;height:2.2rem;border-radius:4px;overflow:hidden}.bar span{min-width:1px}
.legend{display:flex;flex-wrap:wrap;gap:.4rem 1.4rem;padding:0;list-style:none}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}thead th{font-weight:600}
td+td{white-space:nowrap}
.heat td{padding:0;height:1.3rem;border:1px solid #fff}
.heat th{font-weight:400;font-size:.75rem;padding:0 .2rem;border:0}
svg{width:100%;height:auto}li{margin:.4rem 0}.note{color:#555;font-size:.9rem}
@media(max-width:500px){body{font-size:14px}th,td{padding:.2rem .25rem}}
@media print{body{margin:0;max-width:none;font-size:11pt}h2{break-after:avoid}table,svg{break-inside:avoid}
.bar,.heat td,.legend i{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(data: dict[str, Any]) -> str:
    title = words("audit.page_size_title")
    parts: list[str] = []
    if "headline" in data:
        title = words("audit.page_title", start=data["from"][:10], end=data["to"][:10])
        parts.append(_headline(data))
    if data.get("actions"):
        items = "".join(_action(each) for each in data["actions"])
        parts.append(
            _section("audit.page_actions", f"<ol>{items}</ol>{_note(words('audit.page_actions_note'))}")
        )
    for size in data.get("size", ()):
        said = "".join(f"<p>{escape(told(each))}</p>" for each in size_said(size))
        parts.append(_section("audit.page_size_title", said + _curve(size)))
    if "headline" in data:
        parts += [_leaves(data), _week(data["hour_of_week"]), _teams(data), _jobs(data)]
        parts.append(_coverage(data["coverage"]))
    body = "".join(parts)
    return (
        f'<!doctype html><html lang="{tongue().code}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _action(action: dict[str, Any]) -> str:
    first, *rest = (escape(told(said)) for said in action_said(action))
    return f'<li><strong>{first}</strong><br><span class="note">{" ".join(rest)}</span></li>'


def _section(code: str, body: str) -> str:
    return f"<section><h2>{escape(words(code))}</h2>{body}</section>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _headline(data: dict[str, Any]) -> str:
    bars, legend = [], []
    for name, part in data["headline"].items():
        if part["share"]:
            bars.append(f'<span style="width:{100 * part["share"]:.2f}%;background:{COLOURS[name]}"></span>')
        usd = f", {told(Usd(round(part['usd'] * MICROUSD)))}" if part["usd"] is not None else ""
        text = f"{words(f'audit.is_{name}')}: {told(Percent(part['share'] or 0.0, 1))}{usd}"
        legend.append(f'<li><i style="background:{COLOURS[name]}"></i>{escape(text)}</li>')
    said = escape(told(paid_said(data)))
    return f'<p>{said}</p><div class="bar">{"".join(bars)}</div><ul class="legend">{"".join(legend)}</ul>'


def _leaves(data: dict[str, Any]) -> str:
    rows = []
    for leaf in told_leaves(data):
        name = "\u2009\u2009\u2009" * leaf["path"].count(".") + leaf_words(leaf["path"])
        usd = told(Usd(leaf["microusd"])) if leaf["microusd"] is not None else ""
        rows.append([name, told(Number(leaf["gpu_h"], 1)), told(Percent(leaf["share"], 2)), usd])
    header = [words(f"audit.col_{name}") for name in ("leaf", "gpu_h", "share", "usd")]
    if data["money_is"] is None:
        header, rows = header[:3], [row[:3] for row in rows]
    return _section("audit.page_leaves", _table(header, rows))


def _week(week: dict[str, Any]) -> str:
    """Seven rows of twenty-four hours, darker where more GPUs were wanted."""
    top = week["gpus"]
    if not top:
        return ""
    rows = []
    for day, name in enumerate(words("audit.page_days").split()):
        cells = []
        for hour in range(24):
            mean = week["mean"][day * 24 + hour]
            frac = 0.0 if mean is None else min(1.0, mean / top)
            label = "" if mean is None else f"{name} {hour}:00 {told(Number(mean))}"
            cells.append(f'<td title="{escape(label)}" style="background:rgba(0,114,178,{frac:.2f})"></td>')
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    hours = "".join(f"<th>{hour if hour % 6 == 0 else ''}</th>" for hour in range(24))
    heat = f'<table class="heat"><tr><th></th>{hours}</tr>{"".join(rows)}</table>'
    return _section("audit.page_week", heat + _note(words("audit.page_week_note", gpus=Number(top))))


def _teams(data: dict[str, Any]) -> str:
    header = [words(f"audit.col_{name}") for name in ("team", "held", "wasted", "walled")]
    rows = [
        [team["team"], *(told(Number(team[f"{name}_gpu_h"], 1)) for name in ("held", "wasted", "walled"))]
        for team in data["teams"]
    ]
    return _section("audit.page_teams", _table(header, rows)) if rows else ""


def _jobs(data: dict[str, Any]) -> str:
    header = [words(f"audit.col_{name}") for name in ("job", "owner", "wasted", "mostly")]
    rows = [
        [
            job["job"],
            job["user"] or job["team"],
            told(Number(job["wasted_gpu_h"], 1)),
            leaf_words(job["mostly"]),
        ]
        for job in data["jobs"]
    ]
    return _section("audit.page_jobs", _table(header, rows)) if rows else ""


def _curve(size: dict[str, Any]) -> str:
    """GPUs against the worst share of hurt jobs, with the 5 % line and today's fleet."""
    points = [(gpus, share) for gpus, share in size["curve"] if share is not None]
    if len(points) < 2:
        return ""
    low, high = int(points[0][0]), max(int(points[-1][0]), int(size["fleet_gpus"] or 0))
    top = max([0.1, *(float(share) for _, share in points)])

    def x(gpus: int) -> float:
        return 50.0 + 580 * (gpus - low) / max(1, high - low)

    def y(share: float) -> float:
        return 200 - 170 * share / top

    line = " ".join(f"{x(gpus):.1f},{y(share):.1f}" for gpus, share in points)
    marks = [(size["gpus"], COLOURS["kept"]), (size["fleet_gpus"], COLOURS["wasted"])]
    drawn = "".join(
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="20" y2="200" stroke="{colour}" stroke-dasharray="4 3"/>'
        f'<text x="{x(at) - 4:.1f}" y="32" font-size="13" text-anchor="end">{at}</text>'
        for at, colour in marks
        if at
    )
    return (
        f'<svg viewBox="0 0 640 230" role="img" aria-label="{escape(words("audit.page_curve"))}">'
        f'<line x1="50" x2="630" y1="{y(0.05):.1f}" y2="{y(0.05):.1f}" stroke="#999"/>'
        f'<text x="8" y="{y(0.05) + 4:.1f}" font-size="13">5 %</text>'
        f'<polyline points="{line}" fill="none" stroke="#0072B2" stroke-width="2"/>{drawn}'
        f'<text x="50" y="222" font-size="13">{low}</text>'
        f'<text x="600" y="222" font-size="13">{high}</text></svg>' + _note(words("audit.page_curve"))
    )


def _coverage(coverage: dict[str, Any]) -> str:
    items = "".join(f"<li>{escape(told(each))}</li>" for each in coverage_said(coverage))
    return _section("audit.page_coverage", f"<ul>{items}</ul>")
