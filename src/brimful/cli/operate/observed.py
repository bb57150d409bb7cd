"""`brimful admin observed`: what brimful would have done at a site that it only watches."""

from __future__ import annotations

import argparse
import re
import time

from brimful.adapters.observed import FACTS, FLEET, TRACE, read_record
from brimful.cli.commands import Answer
from brimful.client.settings import read_settings
from brimful.errors import BadInput, NotFound
from brimful.fleet.metrics import mean, percentile
from brimful.language import Number, Quoted, Seconds, Usd, say, words
from brimful.scheduler.policies import DEFAULT, read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.report import report
from brimful.sim.traces.read import read
from brimful.sim.world import rehearse
from brimful.units import HOUR_S, MICROUSD

EXAMPLE = """brimful admin observed hpc
brimful admin observed hpc --policy fifo"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", metavar="SITE")
    parser.add_argument("--policy", default=DEFAULT)


def _money(sooner_s: float, saved_usd: float | None) -> str:
    """What the fleet costs during the time by which the same work would have finished earlier."""
    if saved_usd is None:
        return words("operate.observed_no_price")
    if abs(sooner_s) < 0.5:  # Slurm counts in whole seconds
        return words("operate.observed_same")
    code = "operate.observed_saved" if saved_usd > 0 else "operate.observed_not_saved"
    return words(code, sooner=Seconds(abs(sooner_s)), usd=Usd(round(abs(saved_usd) * MICROUSD)))


def run(args: argparse.Namespace) -> Answer:
    """Replays the recorded jobs through the same `tick`, with the same result as `brimful simulate`."""
    sites = read_settings().engines_folder / "sites"
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", args.site):
        raise BadInput(say("operate.not_observed", site=Quoted(args.site[:60]), folder=sites))
    folder = sites / args.site
    record = read_record(folder)
    jobs = record.jobs
    now_s = record.looked[-1][1] if record.looked else 0
    begun = [job for job in jobs.values() if job.started_s is not None and job.gpus]
    if not begun or not (folder / TRACE).exists():
        raise NotFound(say("operate.not_observed", site=Quoted(args.site), folder=sites))
    nodes = parse_fleet(str(folder / FLEET))
    types = {node.gpu for node in nodes}
    trace, _ = read([str(folder / TRACE)], lenient=False, gpu_types=types, otherwise=types)
    began = time.process_time()
    outcome = rehearse(trace.arrivals, nodes, read_policy(args.policy).rules)
    cpu_s = time.process_time() - began
    figures = report(outcome, trace.arrivals, nodes, policy=args.policy, seed=0, cpu_s=cpu_s)
    waits_s = [float((job.started_s or 0) - job.submitted_s) for job in begun]
    mean_s, p99_s = mean(waits_s) or 0.0, percentile(waits_s, 99) or 0.0
    done_s = max(job.ended_s or now_s for job in begun) - min(job.submitted_s for job in begun)
    seen = {
        "mean_first_wait_h": mean_s / HOUR_S,
        "p99_first_wait_h": p99_s / HOUR_S,
        "makespan_h": done_s / HOUR_S,
    }
    sooner_h = done_s / HOUR_S - (figures["makespan_h"] or 0.0)
    microusd_per_hour = sum(node.gpus * node.microusd_per_gpu_hour for node in nodes)
    saved_usd = sooner_h * microusd_per_hour / MICROUSD if microusd_per_hour else None
    waiting = sum(job.started_s is None and job.ended_s is None for job in jobs.values())
    data = {
        "site": args.site,
        "jobs": len(begun),
        "still_waiting": waiting,
        "gpus": sum(node.gpus for node in nodes),
        "observed": seen,
        "rehearsed": figures,
        "saved_usd": saved_usd,
    }
    would_s = (figures["mean_first_wait_h"] or 0.0) * HOUR_S
    lines = [
        words("operate.observed_jobs", site=args.site, jobs=Number(len(begun)), gpus=Number(data["gpus"])),
        *([words("operate.observed_waiting", jobs=Number(waiting))] if waiting else ()),
        words("operate.observed_waited", wait=Seconds(mean_s)),
        words(
            "operate.observed_would",
            policy=args.policy,
            wait=Seconds(would_s),
        ),
        _money(sooner_h * HOUR_S, saved_usd),
        words("operate.observed_audit", record=folder / FACTS),
    ]
    return Answer(data, "\n".join(lines))
