"""`brimful simulate`: a trace of jobs through the real scheduler on a virtual clock."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from shutil import get_terminal_size
from statistics import fmean
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import bar, table, wrapped
from brimful.errors import BadInput, WorldFailed
from brimful.files import write_whole
from brimful.fleet.node import Node
from brimful.language import (
    Number,
    Percent,
    Plain,
    Quoted,
    Seconds,
    Sentence,
    count,
    say,
    told,
    words,
)
from brimful.language.failures import needs_package, os_errors_as
from brimful.language.near import similar
from brimful.market.pools import decided_by_bids, market_of
from brimful.market.spot import Terms
from brimful.scheduler.policies import DEFAULT, POLICIES, read_policy
from brimful.sim.faults import Faults
from brimful.sim.fleets import parse_fleet, scaled, show_fleet
from brimful.sim.report import fill_report, report
from brimful.sim.traces.read import read
from brimful.sim.traces.reading import Skips, Trace
from brimful.sim.world import Arrival, Outcome, rehearse
from brimful.units import HOUR_S, integer_from_text

EXAMPLE = """brimful simulate examples/small.csv
brimful simulate examples/small.csv --fleet 2x4@1.50 --policy fifo --policy brim
brimful simulate examples/small.csv --policy brim --sweep gpus=4,8,16
brimful simulate examples/fill_nodes.csv examples/fill_pods.csv --fill 1.3 --policy best-fit --policy brim"""

# Spelled out here, because the placement kernels need NumPy and `--help` must not load it.
FILL_POLICIES = ("random", "dot-product", "clustering", "packing", "best-fit", "fgd", "brim")
USUAL_FLEET = "2x4"
MAX_SEEDS = 1000
MAX_FILL = 100.0
MAX_SWEEP = 50
MAX_FAULT_S = 10_000_000
MAX_PER_DAY = 100
MAX_GPUS = 1_000_000
MAX_REASONS = 5  # for jobs that never ran; --json has all of them
MAX_WIDTH = 120  # of a table that is not shown on a terminal
# A fleet is large enough if delay is at most this share of JCT, for gangs of every size.
ENOUGH_DELAY = 0.1

Runs = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", nargs="+")
    parser.add_argument("--fleet", metavar="FLEET")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help=words(
            "help.simulate_policy",
            policies=", ".join(sorted(POLICIES)),
            default=DEFAULT,
            fill=", ".join(FILL_POLICIES),
        ),
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--seeds", type=int, default=1, metavar="K")
    parser.add_argument("--durations", choices=("hidden", "known"), default="hidden")
    parser.add_argument("--fill", type=float, metavar="X")
    parser.add_argument("--sweep", metavar="gpus=N,N,…")
    parser.add_argument(
        "--faults",
        metavar="NAME=X,…",
        help=words("help.simulate_faults", faults=", ".join(f.name for f in fields(Faults))),
    )
    parser.add_argument("--market", metavar="POOLS", default="")
    parser.add_argument("--html", metavar="FILE")
    parser.add_argument("--lenient", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    if not (0 <= args.seed < 2**31 and 1 <= args.seeds <= MAX_SEEDS):
        raise BadInput(
            say("sim.seeds_out_of_range", seed=Plain(args.seed), seeds=args.seeds, most=Number(MAX_SEEDS))
        )
    what, sizes = _sweep(args.sweep)
    if args.html and args.fill is None:
        _can_write(Path(args.html))
    fleet = parse_fleet(args.fleet) if args.fleet else []
    usual = parse_fleet(USUAL_FLEET)
    trace, skips = read(
        args.trace,
        lenient=args.lenient,
        gpu_types={node.gpu for node in fleet},
        otherwise={node.gpu for node in usual},
    )
    if not trace.arrivals:
        raise BadInput(say("sim.no_jobs_in_trace", trace=" ".join(args.trace)))
    nodes = fleet or trace.nodes or usual
    fleets, rounded = _fleets(nodes, what, sizes)
    trace.notes.extend(rounded)
    outcomes: list[tuple[str, Outcome]] = []
    runs: Runs = []
    for some in fleets:
        runs += _fill(args, trace, some) if args.fill is not None else _rehearse(args, trace, some, outcomes)
    if args.html:
        title = words("sim.page_title", traces=_named(args.trace), fleet=show_fleet(nodes))
        _write_page(Path(args.html), title, outcomes, runs)
    if market := market_of(args.market, nodes, Terms()):
        trace.notes.append(decided_by_bids(market.pools))
    if args.seeds > 1 and args.fill is None and not args.faults:
        trace.notes.append(say("sim.seeds_without_faults"))
    data: dict[str, Any] = {
        "gpus": sum(node.gpus for node in nodes),
        "nodes": len(nodes),
        "format": trace.format,
        "skipped": {
            "rows": skips.count,
            "first": [*map(told, skips.first)],
            "first_codes": [said.as_dict() for said in skips.first],
        },
        "reordered_rows": skips.reordered,
        "notes": [*map(told, trace.notes)],
        "note_codes": [note.as_dict() for note in trace.notes],
        "runs": runs,
    }
    text = _text(runs, swept=bool(sizes)) if args.fill is None else _fill_text(runs)
    if sizes and args.fill is None:
        enough = _enough(runs)
        data["enough_gpus"] = enough
        text += f"\n\n{_size_table(runs)}\n\n{_enough_text(enough)}"
    return Answer(data, "\n".join([_heading(args.trace, trace, nodes, fleets, skips), "", text]))


def _sweep(text: str | None) -> tuple[str, list[int]]:
    """'gpus=64,128' -> what to vary, and the values."""
    if text is None:
        return "gpus", []
    name, _, values = text.partition("=")
    least = 1 if name == "gpus" else 0
    read = [integer_from_text(part.strip(), low=least, high=MAX_GPUS) for part in values.split(",")]
    sizes = [size for size in read if size is not None]
    if not name or len(sizes) < len(read):
        raise BadInput(say("sim.sweep_unreadable", sweep=Quoted(text)))
    if len(sizes) > MAX_SWEEP:
        raise BadInput(say("sim.sweep_too_long", fleets=len(sizes), most=MAX_SWEEP))
    return name, sizes


def _swept(nodes: Sequence[Node], what: str, gpus: int) -> list[Node]:
    """The fleet with about this many GPUs, of all types or of the named one."""
    if what == "gpus":
        return scaled(nodes, gpus)
    mine = [node for node in nodes if node.gpu == what]
    others = [node for node in nodes if node.gpu != what]
    if not mine:
        types = dict.fromkeys(node.gpu for node in nodes)
        raise BadInput(say("sim.sweep_gpu_unknown", gpu=what, types=", ".join(types)))
    if not others and not gpus:
        raise BadInput(say("sim.sweep_leaves_none", gpu=what))
    more = scaled(mine, gpus) if gpus else []
    return others + [replace(node, node=f"swept-{i}") for i, node in enumerate(more)]


def _fleets(nodes: list[Node], what: str, sizes: list[int]) -> tuple[list[list[Node]], list[Sentence]]:
    """Each fleet of the sweep once, and which sizes are impossible with whole nodes."""
    fleets: list[list[Node]] = []
    rounded: dict[int, list[int]] = {}
    for asked in sizes:
        fleet = _swept(nodes, what, asked)
        fleets += [fleet] if fleet not in fleets else []
        if (got := sum(node.gpus for node in fleet if what in ("gpus", node.gpu))) != asked:
            rounded.setdefault(got, []).append(asked)
    return fleets or [nodes], [
        say("sim.sweep_rounded", asked=", ".join(map(str, asked)), gpus=count("gpu", got))
        for got, asked in rounded.items()
    ]


def _faults(text: str | None) -> Faults | None:
    """'node_losses_per_day=0.1,slow_share=0.05' -> fault rates."""
    if text is None:
        return None
    known = {field.name: type(getattr(Faults(), field.name)) for field in fields(Faults)}
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name in given:
            raise BadInput(say("sim.option_twice", source="--faults", option=Quoted(name)))
        try:
            given[name] = known[name](value)
        except (KeyError, ValueError) as error:
            near = [] if name in known else similar(name, known)
            hint = say("sim.hint_fault", name=near[0], known=", ".join(known)) if near else None
            said = say("sim.faults_unreadable", fault=Quoted(part.strip()), known=", ".join(known))
            raise BadInput(said, hint=hint) from error
        # Seconds, times a day, or a share.
        low = 0.01 if name == "slow_rate" else 0
        high = MAX_FAULT_S if name.endswith("_s") else MAX_PER_DAY if name.endswith("_per_day") else 1
        if not low <= given[name] <= high:
            raise BadInput(
                say("sim.faults_out_of_range", fault=Quoted(part.strip()), low=f"{low:g}", high=Number(high))
            )
    return Faults(**given)


def _rehearse(
    args: argparse.Namespace, trace: Trace, nodes: Sequence[Node], outcomes: list[tuple[str, Outcome]]
) -> Runs:
    """A run per policy and seed; adds what the chart page shows to `outcomes`."""
    policies = {text: read_policy(text).rules for text in args.policy or [DEFAULT]}
    arrivals = _spread(trace.arrivals, nodes) if trace.gangs_may_spread else trace.arrivals
    if args.durations == "known":
        arrivals = [replace(a, job=replace(a.job, predicted_work_s=a.work_s)) for a in arrivals]
    faults, market = _faults(args.faults), market_of(args.market, nodes, Terms())
    runs: Runs = []
    # Without faults nothing is random: one seed is enough.
    seeds = range(args.seed, args.seed + (args.seeds if faults else 1))
    for policy, seed in [(policy, seed) for policy in policies for seed in seeds]:
        began = time.process_time()
        gpus = sum(node.gpus for node in nodes)
        outcome = rehearse(
            arrivals,
            nodes,
            policies[policy],
            faults=faults,
            seed=seed,
            market=market,
            progress=_progress("sim.jobs_done", policy=policy, gpus=count("gpu", gpus)),
        )
        cpu_s = time.process_time() - began
        figures = report(outcome, arrivals, nodes, policy=policy, seed=seed, cpu_s=cpu_s)
        runs.append({**figures, "gpus": gpus, "fleet": told(show_fleet(nodes))})
        if args.html:
            size = [told(count("gpu", gpus))] if args.sweep else []  # the fleet would fill the legend
            chance = [words("sim.seed_n", seed=Plain(seed))] if len(seeds) > 1 else []
            outcomes.append((", ".join([policy, *size, *chance]), outcome))
    return runs


def _can_write(path: Path) -> None:
    """Checked before the first run: nobody should hear of a missing library after an hour of simulation."""
    from brimful.sim.charts import need_plotly

    need_plotly()
    if not path.parent.is_dir():
        raise WorldFailed(say("sim.no_folder_to_write", path=path, folder=path.parent))


def _write_page(path: Path, title: str, outcomes: Sequence[tuple[str, Outcome]], runs: Runs) -> None:
    from brimful.sim.charts import page

    text = page(title, outcomes, runs)
    with os_errors_as("language.cannot_write", path=path):
        write_whole(path, text)


def _fill(args: argparse.Namespace, trace: Trace, nodes: Sequence[Node]) -> Runs:
    if args.html:
        raise BadInput(say("sim.html_with_fill"))
    if args.market:
        raise BadInput(say("sim.market_with_fill"))
    if not 0 < args.fill <= MAX_FILL:
        raise BadInput(say("sim.fill_out_of_range", fill=f"{args.fill:g}", most=f"{MAX_FILL:g}"))
    policies = list(dict.fromkeys(args.policy or ["brim"]))
    if unknown := [policy for policy in policies if policy not in FILL_POLICIES]:
        raise BadInput(say("sim.fill_policy_unknown", policy=unknown[0], known=", ".join(FILL_POLICIES)))
    with needs_package("sim.fill_needs_numpy"):
        from brimful.sim.fill import fill, gpu_types_of, workload_of
    workload = workload_of([arrival.job for arrival in trace.arrivals], gpu_types_of(nodes))
    note = say("sim.unfit_tasks", tasks=count("task", workload.unfit))
    if workload.unfit and note not in trace.notes:
        trace.notes.append(note)
    runs = []
    for policy in policies:
        for seed in range(args.seed, args.seed + args.seeds):
            began = time.process_time()
            filled = fill(
                nodes,
                workload,
                policy=policy,
                seed=seed,
                until=args.fill,
                progress=_progress("sim.tasks_done", policy=policy),
            )
            figures = fill_report(filled, cpu_s=time.process_time() - began)
            runs.append({**figures, "gpus": sum(node.gpus for node in nodes)})
    return runs


def _spread(arrivals: Sequence[Arrival], nodes: Sequence[Node]) -> list[Arrival]:
    """If the trace does not say how close a gang must be: one larger than any node may use several."""
    largest = max(node.gpus for node in nodes)
    return [
        replace(arrival, job=replace(arrival.job, within="any")) if arrival.job.gpus > largest else arrival
        for arrival in arrivals
    ]


def _progress(code: str, **values: object) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty() and (done == total or done % 500 == 0):
            end = "\r\x1b[K" if done == total else ""
            sys.stderr.write(f"\r{bar(done / total)} {words(code, done=done, total=total, **values)}{end}")
            sys.stderr.flush()

    return show


def _heading(
    names: Sequence[str], trace: Trace, nodes: Sequence[Node], fleets: Sequence[Sequence[Node]], skips: Skips
) -> str:
    gpus = [sum(node.gpus for node in fleet) for fleet in fleets]
    values = {"jobs": count("job", len(trace.arrivals)), "traces": _named(names)}
    lines = [say("sim.heading", **values, gpus=count("gpu", gpus[0]), fleet=show_fleet(fleets[0]))]
    if len(fleets) > 1:
        sizes = ", ".join(map(told, dict.fromkeys(gpus)))
        lines = [say("sim.heading_sweep", **values, sizes=sizes, fleet=show_fleet(nodes))]
    if skips.count:
        lines.append(say("sim.rows_left_out", rows=count("row", skips.count), first=skips.first[0]))
    if skips.reordered:
        lines.append(say("sim.rows_sorted", rows=count("row", skips.reordered)))
    return "\n".join(line for said in [*lines, *trace.notes] for line in wrapped("", said))


def _named(traces: Sequence[str]) -> Sentence | str:
    *first, last = traces
    return say("sim.and", some=", ".join(first), last=last) if first else last


def _fill_text(runs: Runs) -> str:
    points = list(runs[0]["allocation_at"])
    header = [_title(name) for name in ("policy", "seeds", "gpus", "placed")]
    header += [words("sim.col_at", percent=point) for point in points]
    rows = []
    for policy, gpus in dict.fromkeys((run["policy"], run["gpus"]) for run in runs):
        mine = [run for run in runs if (run["policy"], run["gpus"]) == (policy, gpus)]
        placed = fmean(run["placed"] / run["jobs"] for run in mine)
        rows.append(
            [
                policy,
                told(len(mine)),
                told(gpus),
                told(Percent(placed, 1)),
                *[_mean_percent([run["allocation_at"][point] for run in mine]) for point in points],
            ]
        )
    note = wrapped("", words("sim.fill_legend"))
    return "\n".join([table(header, rows, right=range(1, len(header))), "", *note])


def _mean_percent(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return told(Percent(fmean(there) / 100, 2)) if there else words("sim.none")


# Column of the comparison, `sim.col_NAME` -> its text for a run.
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "policy": lambda run: str(run["policy"]),
    "gpus": lambda run: told(run["gpus"]),
    "seed": lambda run: f"{run['seed']}",
    "finished": lambda run: f"{told(run['finished'])}/{told(run['jobs'])}",
    "mean_delay": lambda run: _time(run["mean_delay_h"]),
    "mean_jct": lambda run: _time(run["mean_jct_h"]),
    "of_bound": lambda run: _times(run["bound"]["mean_jct_ratio"]),
    "p99_jct": lambda run: _time(run["p99_jct_h"]),
    "makespan": lambda run: _time(run["makespan_h"]),
    "allocated": lambda run: _share(run["allocation_rate"]),
    "useful": lambda run: _share(run["useful_share"]),
    "worst_rho": lambda run: _times(run["worst_rho"]),
    "in_time": lambda run: _share(run["deadline_met"]),
    "preempted": lambda run: told(run["preemptions"]),
    "gpu_h_lost": lambda run: told(Number(run["lost_gpu_h"], 1)),
    "market_price": lambda run: _usd(run["market_usd_per_gpu_hour"]),
    "cost": lambda run: _usd(run["cost_usd"]),
}


def _title(column: str) -> str:
    return words(f"sim.col_{column}")


def _columns(runs: Runs, *, swept: bool) -> list[str]:
    """The informative columns: what is the same in every run goes into the heading."""
    dull = {
        "gpus": not swept,
        "seed": len({run["seed"] for run in runs}) == 1,
        "finished": all(run["finished"] == run["jobs"] for run in runs),
        "in_time": all(run["deadline_met"] is None for run in runs),
        "preempted": not any(run["preemptions"] for run in runs),
        "gpu_h_lost": not any(run["lost_gpu_h"] for run in runs),
        "market_price": all(run["market_usd_per_gpu_hour"] is None for run in runs),
        "cost": all(run["cost_usd"] is None for run in runs),
    }
    return [name for name in COLUMNS if not dull.get(name, False)]


def _text(runs: Runs, *, swept: bool) -> str:
    names = _columns(runs, swept=swept)
    lines = ["\n\n".join([*_tables(names, runs), *_class_table(names, runs)]), ""]
    for run in runs:
        which = [f"{_title(name)} {COLUMNS[name](run)}" for name in _lead(names)[1:]]
        who = ", ".join([run["policy"], *which])
        for job, reason in list(run["failed_first"].items())[:1]:
            lines += wrapped(
                "", words("sim.failed", who=who, jobs=count("job", run["failed"]), job=job, reason=reason)
            )
        for said in _never_ran(who, run["never_ran"]):
            lines += wrapped("", said)
    if lines[-1]:
        lines.append("")
    return "\n".join([*lines, *wrapped("", words("sim.legend"))])


def _class_table(names: Sequence[str], runs: Runs) -> list[str]:
    """Mean JCT by class, if there are several: what urgent jobs gain, the others lose."""
    classes = list(runs[0]["by_class"])
    if len(classes) < 2:
        return []
    lead = _lead(names)
    rows = [
        [COLUMNS[name](run) for name in lead]
        + [_time(run["by_class"][each]["mean_jct_h"]) for each in classes]
        for run in runs
    ]
    header = [*map(_title, lead), *[words("sim.col_class_jct", name=each) for each in classes]]
    return [table(header, rows, right=range(1, len(rows[0])))]


def _never_ran(who: str, reasons: dict[str, str]) -> Iterator[Sentence]:
    """One line per reason, with the number of jobs."""
    by_reason: dict[str, list[str]] = {}
    for job, reason in reasons.items():
        by_reason.setdefault(reason, []).append(job)
    most = sorted(by_reason.items(), key=lambda each: -len(each[1]))
    for reason, jobs in most[:MAX_REASONS]:
        if len(jobs) == 1:
            yield say("sim.never_ran", who=who, job=jobs[0], reason=reason)
        else:
            many = count("job", len(jobs))
            yield say("sim.never_ran.many", who=who, jobs=many, job=jobs[0], reason=reason)
    if rest := sum(len(jobs) for _, jobs in most[MAX_REASONS:]):
        yield say("sim.never_ran.more", who=who, jobs=count("job", rest))


def _lead(names: Sequence[str]) -> list[str]:
    """The columns that identify the run."""
    return [name for name in names if name in ("policy", "gpus", "seed")]


def _tables(names: Sequence[str], runs: Runs) -> Iterator[str]:
    """The comparison, split into stacked tables if the terminal is too narrow."""
    lead, width = _lead(names), get_terminal_size((MAX_WIDTH, 24)).columns
    shown = {name: [COLUMNS[name](run) for run in runs] for name in names}
    wide = {name: max(len(cell) for cell in [_title(name), *shown[name]]) + 2 for name in names}
    rest = [name for name in names if name not in lead]
    narrow = sum(wide.values()) > width + 2
    while rest:
        mine, room = list(lead), width + 2 - sum(wide[name] for name in lead)
        while rest and (room >= wide[rest[0]] or mine == lead):
            if narrow and rest[0] == "allocated" and mine != lead:
                break  # times above, shares below
            room -= wide[rest[0]]
            mine.append(rest.pop(0))
        rows = [[shown[name][i] for name in mine] for i in range(len(runs))]
        yield table([_title(name) for name in mine], rows, right=range(1, len(mine)))


def _enough(runs: Runs) -> dict[str, int | None]:
    """By policy, the fewest GPUs on which all jobs finish and gangs of every size are delayed little."""
    found: dict[str, int | None] = {}
    for run in sorted(runs, key=lambda run: -run["gpus"]):
        found.setdefault(run["policy"], None)
        mine = [r for r in runs if (r["policy"], r["gpus"]) == (run["policy"], run["gpus"])]  # all seeds
        if all(_is_enough(each) for each in mine):
            found[run["policy"]] = run["gpus"]
    return found


def _is_enough(run: dict[str, Any]) -> bool:
    """A mean over all jobs hides wide gangs: they are few, and preemption may delay them for days."""
    shares = [run["delay_share"], *[size["delay_share"] for size in run["by_size"].values()]]
    return run["finished"] == run["jobs"] and all(s is not None and s <= ENOUGH_DELAY for s in shares)


def _enough_text(enough: dict[str, int | None]) -> str:
    most = Percent(ENOUGH_DELAY)
    said = [
        say("sim.enough", policy=policy, gpus=count("gpu", gpus), most=most)
        if gpus
        else say("sim.enough.none", policy=policy, most=most)
        for policy, gpus in enough.items()
    ]
    return "\n".join(line for each in said for line in wrapped("", each))


def _size_table(runs: Runs) -> str:
    """Delay as a share of JCT by gang size, which decides whether a fleet is enough."""
    lead, sizes = _lead(_columns(runs, swept=True)), list(runs[0]["by_size"])
    rows = [
        [COLUMNS[name](run) for name in lead]
        + [_share(run["delay_share"])]
        + [_share(run["by_size"][size]["delay_share"]) for size in sizes]
        for run in runs
    ]
    header = [_title(name) for name in (*lead, "delay_share")]
    header += [told(count("gpu", 1)) if size == "1" else words("sim.col_size", size=size) for size in sizes]
    return table(header, rows, right=range(1, len(header)))


Shown = Callable[[float | None], str]


def _or_none(show: Callable[[float], str]) -> Shown:
    return lambda value: words("sim.none") if value is None else show(value)


_time: Shown = _or_none(lambda hours: told(Seconds(hours * HOUR_S)))
_usd: Shown = _or_none(lambda dollars: f"${dollars:,.2f}")
_times: Shown = _or_none(lambda value: f"{told(Number(value, 2))}x")
_share: Shown = _or_none(lambda value: told(Percent(value, 1)))
