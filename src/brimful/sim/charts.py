"""The report as one self-contained HTML page: charts by plotly, which is embedded in it.

plotly is an extra (`brimful[report]`) and is imported only when a page is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec
from typing import Any

from brimful.errors import WorldFailed
from brimful.fleet.job import WHOLE_GPU
from brimful.language import say, words
from brimful.sim.document import document
from brimful.sim.world import Outcome
from brimful.units import HOUR_S, MICROUSD

POINTS = 400  # per curve over time; more cannot be distinguished on a screen
# Colours that are distinguishable with any colour vision (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

Steps = list[tuple[int, float]]

# Figures of a run in the table, `sim.figure_NAME`; the others are only in --json.
FIGURES = (
    *("gpus", "seed", "jobs", "finished", "failed", "mean_jct_h", "p50_jct_h", "p95_jct_h", "p99_jct_h"),
    *("mean_delay_h", "p99_delay_h", "delay_share", "mean_first_wait_h", "makespan_h", "mean_slowdown"),
    *("allocation_rate", "useful_share", "worst_rho", "unfair_share", "preemptions", "lost_gpu_h", "gpu_h"),
    *("deadline_met", "cost_usd", "cpu_s"),
)
SHARES = ("delay_share", "allocation_rate", "useful_share", "unfair_share", "deadline_met")


def need_plotly() -> None:
    if find_spec("plotly") is None:
        raise WorldFailed(say("sim.html_needs_plotly"), code="not_installed")


def page(title: str, outcomes: Sequence[tuple[str, Outcome]], runs: Sequence[dict[str, Any]]) -> str:
    """Utilization, queue, JCT and cost of each (policy, outcome), and the table of figures below."""
    need_plotly()
    from plotly.graph_objects import Figure, Scatter
    from plotly.offline import get_plotlyjs
    from plotly.subplots import make_subplots

    names = [words(f"sim.chart_{name}") for name in ("allocated", "queue", "jct", "spent")]
    figure: Figure = make_subplots(rows=2, cols=2, subplot_titles=names)
    for i, (policy, outcome) in enumerate(outcomes):
        colour = COLOURS[i % len(COLOURS)]
        curves = (allocated(outcome), queue(outcome), jct_cdf(outcome), spent(outcome))
        for j, curve in enumerate(curves):
            figure.add_trace(
                Scatter(
                    x=[x for x, _ in curve],
                    y=[y for _, y in curve],
                    name=policy,
                    legendgroup=policy,
                    showlegend=j == 0,
                    mode="lines",
                    line={"color": colour, "shape": "linear" if j in (0, 1) else "hv"},
                ),
                row=j // 2 + 1,
                col=j % 2 + 1,
            )
    figure.update_xaxes(title_text=words("sim.axis_since_first"))
    figure.update_xaxes(title_text=words("sim.axis_jct"), type="log", row=2, col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(height=760, margin={"t": 40}, template="plotly_white")
    charts = figure.to_html(full_html=False, include_plotlyjs=False, div_id="charts")
    return document(title, charts + _table(runs), script=get_plotlyjs())


def allocated(outcome: Outcome) -> list[tuple[float, float]]:
    """(hour, per cent of GPUs leased), each the mean over its slice of the run."""
    gpus = sum(node.gpus for node in outcome.fleet.nodes.values())
    steps = []
    for lease in outcome.fleet.leases.values():
        if lease.started_s is not None:
            held = lease.size * lease.gpu_milli
            steps += [(lease.started_s, held), (_end(lease.ended_s, outcome), -held)]
    return [(x, 100 * y / WHOLE_GPU / gpus) for x, y in _means(steps, outcome)] if gpus else []


def queue(outcome: Outcome) -> list[tuple[float, float]]:
    """(hour, waiting jobs), each the mean over its slice of the run."""
    steps = []
    for state in outcome.fleet.jobs.values():
        since = state.ready_s
        for lease in state.leases:
            steps += [(since, 1), (lease.granted_s, -1)]
            since = _end(lease.ended_s, outcome)
        if state.phase == "waiting":
            steps += [(since, 1), (outcome.end_s, -1)]
    return _means(steps, outcome)


def jct_cdf(outcome: Outcome) -> list[tuple[float, float]]:
    """(hours from submit to finish, per cent of finished jobs that took no longer)."""
    jcts = sorted(
        state.ended_s - state.ready_s
        for state in outcome.fleet.jobs.values()
        if state.phase == "finished" and state.ended_s is not None
    )
    every = max(1, len(jcts) // POINTS)
    kept = sorted({*range(0, len(jcts), every), len(jcts) - 1}) if jcts else []
    return [(jcts[i] / HOUR_S, 100 * (i + 1) / len(jcts)) for i in kept]


def spent(outcome: Outcome) -> list[tuple[float, float]]:
    """(hour, USD billed by then), counted when a lease ends."""
    ends = sorted(
        (lease.ended_s, lease.owed(lease.ended_s) / HOUR_S / WHOLE_GPU)
        for lease in outcome.fleet.leases.values()
        if lease.ended_s is not None
    )
    first_s, total, curve = _first_s(outcome), 0.0, []
    every = max(1, len(ends) // POINTS)
    for i, (at_s, microusd) in enumerate(ends):
        total += microusd
        if i % every == 0 or i == len(ends) - 1:
            curve.append(((at_s - first_s) / HOUR_S, total / MICROUSD))
    return curve


def _means(steps: Iterable[tuple[int, float]], outcome: Outcome) -> list[tuple[float, float]]:
    """A step function as its means over equal slices of time."""
    first_s = _first_s(outcome)
    width_s = max(1e-9, (outcome.end_s - first_s) / POINTS)
    areas = [0.0] * POINTS
    level, last_s = 0.0, float(first_s)
    for at_s, change in [*sorted(steps), (outcome.end_s, 0.0)]:
        while last_s < at_s:
            i = min(POINTS - 1, int((last_s - first_s) / width_s))
            if i < POINTS - 1 and first_s + (i + 1) * width_s <= last_s:
                i += 1  # on the edge of a slice, where the division came out slightly too low
            until_s = float(at_s) if i == POINTS - 1 else min(float(at_s), first_s + (i + 1) * width_s)
            areas[i] += level * (until_s - last_s)
            last_s = until_s
        level += change
    return [((i + 0.5) * width_s / HOUR_S, area / width_s) for i, area in enumerate(areas)]


def _first_s(outcome: Outcome) -> int:
    return min((state.submitted_s for state in outcome.fleet.jobs.values()), default=0)


def _end(ended_s: int | None, outcome: Outcome) -> int:
    return outcome.end_s if ended_s is None else ended_s


def _table(runs: Sequence[dict[str, Any]]) -> str:
    rows = ["<tr><th></th>" + "".join(f"<th>{escape(str(run['policy']))}</th>" for run in runs) + "</tr>"]
    shown = [(words(f"sim.figure_{key}"), [_cell(key, run.get(key)) for run in runs]) for key in FIGURES]
    shown += [
        (words(f"sim.bound_{key}"), [_cell(key, (run.get("bound") or {}).get(key)) for run in runs])
        for key in ("mean_jct_h", "mean_jct_ratio")
    ]
    for name in dict.fromkeys(name for run in runs for name in run.get("by_class") or {}):
        each = [(run.get("by_class") or {}).get(name) or {} for run in runs]
        title = words("sim.figure_class_jct", name=name)
        shown.append((title, [_cell("", some.get("mean_jct_h")) for some in each]))
    for title, cells in shown:
        if any(cells):
            row = "".join(f"<td>{escape(cell or words('sim.none'))}</td>" for cell in cells)
            rows.append(f"<tr><th>{escape(title)}</th>{row}</tr>")
    body = "".join(rows)
    return f'<div class="wide"><table>{body}</table></div><p>{escape(words("sim.page_legend"))}</p>'


def _cell(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1%}" if key in SHARES else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
