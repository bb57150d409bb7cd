"""`brimful simulate`: a trace of jobs through the real scheduler on a virtual clock."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.cli.commands import Answer
from brimful.cli.render import bar, table
from brimful.errors import BadInput
from brimful.fleet.state import Node
from brimful.scheduler.cycle import Rules
from brimful.scheduler.policies.order import ORDERS
from brimful.sim.report import report
from brimful.sim.traces.own import read_trace
from brimful.sim.world import SITE, rehearse
from brimful.units import HOUR_S, microusd_from_usd, show_seconds

EXAMPLE = """brimful simulate examples/small.csv
brimful simulate examples/small.csv --fleet 2x4@1.50 --policy fifo --policy priority"""

MAX_NODES = 100_000
MAX_GPUS_PER_NODE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="CSV with the columns job, submit_s, run_s, gpus")
    parser.add_argument(
        "--fleet",
        default="2x4",
        metavar="NxG[:TYPE][@USD]",
        help="N nodes of G GPUs, their type and price per GPU-hour: 2x8:h100-sxm-80gb@2.50 (default 2x4)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=sorted(ORDERS),
        help="whose turn it is; give it twice to compare (default priority)",
    )


def run(args: argparse.Namespace) -> Answer:
    nodes = parse_fleet(args.fleet)
    arrivals = read_trace(Path(args.trace))
    runs = []
    for policy in args.policy or ["priority"]:
        began = time.process_time()
        outcome = rehearse(arrivals, nodes, Rules(order=policy), progress=_progress)
        runs.append(report(outcome, policy=policy, cpu_s=time.process_time() - began))
    gpus = sum(node.gpus for node in nodes)
    return Answer({"gpus": gpus, "nodes": len(nodes), "runs": runs}, _text(args.trace, nodes, runs))


def parse_fleet(text: str) -> list[Node]:
    """'2x8:h100-sxm-80gb@2.50' -> two nodes of eight."""
    found = re.fullmatch(
        r"(\d{1,9})x(\d{1,9})(?::([A-Za-z0-9._-]{1,64}))?(?:@(\$?[0-9.]{1,20}))?", text.strip()
    )
    price = microusd_from_usd(found[4] or "0") if found else None
    if found is None or price is None:
        raise BadInput(
            f"--fleet {text!r} is not understood", hint="write NODESxGPUS[:TYPE][@USD], e.g. 2x8@2.50"
        )
    count, gpus = int(found[1]), int(found[2])
    if not (1 <= count <= MAX_NODES and 1 <= gpus <= MAX_GPUS_PER_NODE):
        raise BadInput(
            f"--fleet {text!r} asks for {count:,} nodes of {gpus:,} GPUs",
            hint=f"from 1 to {MAX_NODES:,} nodes and from 1 to {MAX_GPUS_PER_NODE:,} GPUs a node",
        )
    return [
        Node(
            site=SITE,
            node=f"node-{i}",
            gpu=found[3] or "gpu",
            gpus=gpus,
            microusd_per_gpu_hour=price,
            declared=True,
        )
        for i in range(count)
    ]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done == total or done % 500 == 0):
        end = "\r\x1b[K" if done == total else ""
        sys.stderr.write(f"\r{bar(done / total)} {done:,} of {total:,} jobs{end}")
        sys.stderr.flush()


def _text(trace: str, nodes: Sequence[Node], runs: Sequence[dict[str, Any]]) -> str:
    gpus = sum(node.gpus for node in nodes)
    shape = f"{len(nodes):,} x {nodes[0].gpus} {nodes[0].gpu}"
    lines = [f"{runs[0]['jobs']:,} jobs of {trace} on {gpus:,} GPUs ({shape})", ""]
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
    lines.append(table(header, rows, right=range(1, len(header))))
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
