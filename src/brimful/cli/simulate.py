"""`brimful simulate`: a trace of jobs through the real scheduler on a virtual clock."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import bar, table
from brimful.errors import BadInput
from brimful.fleet.node import Node
from brimful.scheduler.cycle import Rules
from brimful.scheduler.policies.order import ORDERS
from brimful.sim.fleets import parse_fleet, show_fleet
from brimful.sim.report import fill_report, report
from brimful.sim.traces.read import read
from brimful.sim.traces.reading import Skips, Trace
from brimful.sim.world import Arrival, rehearse
from brimful.units import HOUR_S, show_seconds

__all__ = ["EXAMPLE", "add_arguments", "parse_fleet", "run"]

EXAMPLE = """brimful simulate examples/small.csv
brimful simulate examples/small.csv --fleet 2x4@1.50 --policy fifo --policy priority
brimful simulate examples/fill_nodes.csv examples/fill_pods.csv --fill 1.3 --policy best-fit --policy brim"""

# Kept here in words, because the placement kernels need NumPy and `--help` must not load it.
FILL_POLICIES = ("random", "dot-product", "clustering", "packing", "best-fit", "fgd", "brim")
MAX_SEEDS = 1000
MAX_FILL = 100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="TRACE",
        nargs="+",
        help="a trace: brimful's own CSV or a public format, plain or gzip; a node list may stand beside it",
    )
    parser.add_argument(
        "--fleet",
        metavar="FLEET",
        help="NxG[:TYPE][@USD], several joined by +, or a .toml file: 2x8:h100-sxm-80gb@2.50 is two nodes of "
        "eight GPUs at 2.50 USD per GPU-hour (default: the trace's own nodes, else 2x4)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help=f"whose turn it is: {', '.join(sorted(ORDERS))} (default priority); with --fill, where it goes: "
        f"{', '.join(FILL_POLICIES)} (default brim). Give it twice to compare",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what chance does (default 0)")
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="run K seeds, from --seed on")
    parser.add_argument(
        "--fill",
        type=float,
        metavar="X",
        help="only fill: tasks come in random order and stay, until they ask for X times the fleet's GPUs",
    )
    parser.add_argument(
        "--lenient", action="store_true", help="leave out rows that cannot be used, and say how many"
    )


def run(args: argparse.Namespace) -> Answer:
    if not (0 <= args.seed < 2**31 and 1 <= args.seeds <= MAX_SEEDS):
        raise BadInput(
            f"--seed {args.seed} with --seeds {args.seeds} is out of range",
            hint=f"a seed from 0 on, and from 1 to {MAX_SEEDS:,} of them",
        )
    fleet = parse_fleet(args.fleet) if args.fleet else []
    trace, skips = read(args.trace, lenient=args.lenient, gpu_types={node.gpu for node in fleet})
    if not trace.arrivals:
        raise BadInput(f"{' '.join(args.trace)} holds no jobs", hint="give the job list beside the node list")
    nodes = fleet or trace.nodes or parse_fleet("2x4")
    runs = _fill(args, trace, nodes) if args.fill is not None else _rehearse(args, trace, nodes)
    data = {
        "gpus": sum(node.gpus for node in nodes),
        "nodes": len(nodes),
        "format": trace.format,
        "skipped": {"rows": skips.count, "first": skips.first},
        "notes": trace.notes,
        "runs": runs,
    }
    text = _fill_text(runs) if args.fill is not None else _text(runs)
    return Answer(data, "\n".join([_heading(args.trace, trace, nodes, skips), "", text]))


def _policies(args: argparse.Namespace, known: Sequence[str], default: str) -> list[str]:
    wanted = args.policy or [default]
    for policy in wanted:
        if policy not in known:
            raise BadInput(f"--policy {policy} is not known here", hint=f"one of {', '.join(known)}")
    return list(dict.fromkeys(wanted))


def _rehearse(args: argparse.Namespace, trace: Trace, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    arrivals = _spread(trace.arrivals, nodes) if trace.gangs_may_spread else trace.arrivals
    runs = []
    for policy in _policies(args, sorted(ORDERS), "priority"):
        began = time.process_time()
        outcome = rehearse(arrivals, nodes, Rules(order=policy), progress=_progress("jobs"))
        runs.append(report(outcome, policy=policy, seed=args.seed, cpu_s=time.process_time() - began))
    return runs


def _fill(args: argparse.Namespace, trace: Trace, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    if not 0 < args.fill <= MAX_FILL:
        raise BadInput(
            f"--fill {args.fill:g} is out of range", hint=f"from above 0 to {MAX_FILL:g}; 1.3 is usual"
        )
    policies = _policies(args, FILL_POLICIES, "brim")
    try:
        from brimful.sim.fill import fill, gpu_types_of, workload_of
    except ImportError as error:
        raise BadInput("--fill needs NumPy", hint="pip install 'brimful[sim]'") from error
    workload = workload_of([arrival.job for arrival in trace.arrivals], gpu_types_of(nodes))
    runs = []
    for policy in policies:
        for seed in range(args.seed, args.seed + args.seeds):
            began = time.process_time()
            filled = fill(
                nodes, workload, policy=policy, seed=seed, until=args.fill, progress=_progress("tasks")
            )
            runs.append(fill_report(filled, cpu_s=time.process_time() - began))
    return runs


def _spread(arrivals: Sequence[Arrival], nodes: Sequence[Node]) -> list[Arrival]:
    """Where the trace does not say how close a gang must be: one larger than any node may use several."""
    largest = max(node.gpus for node in nodes)
    return [
        replace(arrival, job=replace(arrival.job, within="any")) if arrival.job.gpus > largest else arrival
        for arrival in arrivals
    ]


def _progress(what: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty() and (done == total or done % 500 == 0):
            end = "\r\x1b[K" if done == total else ""
            sys.stderr.write(f"\r{bar(done / total)} {done:,} of {total:,} {what}{end}")
            sys.stderr.flush()

    return show


def _heading(names: Sequence[str], trace: Trace, nodes: Sequence[Node], skips: Skips) -> str:
    gpus = sum(node.gpus for node in nodes)
    jobs = len(trace.arrivals)
    lines = [f"{jobs:,} jobs of {' and '.join(names)} on {gpus:,} GPUs ({show_fleet(nodes)})"]
    if skips.count:
        lines.append(f"{skips.count:,} rows left out, such as: {skips.first[0]}")
    lines += trace.notes
    return "\n".join(lines)


def _fill_text(runs: Sequence[dict[str, Any]]) -> str:
    points = list(runs[0]["allocation_at"])
    header = ["policy", "seeds", "placed", *[f"at {point} %" for point in points], "CPU"]
    rows = []
    for policy in dict.fromkeys(run["policy"] for run in runs):
        mine = [run for run in runs if run["policy"] == policy]
        placed = fmean(run["placed"] / run["jobs"] for run in mine)
        rows.append(
            [
                policy,
                f"{len(mine)}",
                f"{placed:.1%}",
                *[_mean_percent([run["allocation_at"][point] for run in mine]) for point in points],
                f"{sum(run['cpu_s'] for run in mine):.1f} s",
            ]
        )
    note = (
        "At N %: GPUs allocated, of all, when tasks asking for N % of them have arrived. "
        "A task that fits is placed;\none that does not is gone. Nothing ends and nothing moves."
    )
    return f"{table(header, rows, right=range(1, len(header)))}\n\n{note}"


def _mean_percent(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{fmean(there):.2f} %" if there else "none"


def _text(runs: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            run["policy"],
            f"{run['finished']:,}/{run['jobs']:,}",
            _time(run["mean_wait_h"]),
            _time(run["mean_jct_h"]),
            _time(run["p99_jct_h"]),
            _time(run["makespan_h"]),
            _share(run["allocation_rate"]),
            "no price" if run["cost_usd"] is None else f"${run['cost_usd']:,.2f}",
        ]
        for run in runs
    ]
    header = ["policy", "finished", "mean wait", "mean JCT", "p99 JCT", "makespan", "allocated", "cost"]
    lines = [table(header, rows, right=range(1, len(header)))]
    for run in runs:
        for job, reason in list(run["never_ran"].items())[:10]:
            lines.append(f"\n{run['policy']}: {job} never ran: {reason}")
    lines += [
        "",
        "JCT: from submit to finish. Allocated: leased GPU time of all GPU time until the last finish.",
    ]
    return "\n".join(lines)


def _time(hours: float | None) -> str:
    return "none" if hours is None else show_seconds(hours * HOUR_S)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"
