"""The report as one page that needs nothing else: no script, readable on a phone, and fit to print."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any

from brimful.audit.drawn import CAUSES, OTHERS, VERDICTS, bar, curve, heat
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
        parts.append(
            _section("audit.page_actions", f"<ol>{items}</ol>{_note(words('audit.page_actions_note'))}")
        )
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
    """Columns are numbers but for the first and those in `words_in`."""
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
    drawn = curve(size)
    return (
        f"<figure>{drawn}<figcaption>{_note(words('audit.page_curve'))}</figcaption></figure>"
        if drawn
        else ""
    )


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
