"""What was seen at a site that is only watched: its jobs, as a trace that can be rehearsed.

observed.json   every job that was seen, with when it came, began and ended
observed.csv    those that have begun, in brimful's own trace format (sim/traces/own.py)
fleet.toml      the site's nodes, as `brimful simulate --fleet` takes them
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from brimful.adapters.capabilities import SeenJob, WatchesJobs
from brimful.adapters.files import read_json, write_json
from brimful.files import write_whole
from brimful.fleet.state import Node
from brimful.units import MICROUSD

FACTS, TRACE, FLEET = "observed.json", "observed.csv", "fleet.toml"
MOST_JOBS = 200_000  # of those that are over, the oldest are forgotten first


class Observer:
    """Looks, writes down, and does nothing else."""

    def __init__(self, engine: WatchesJobs, folder: Path, clock: Callable[[], float]) -> None:
        self._engine, self._folder, self._clock = engine, folder, clock
        self._jobs = read_jobs(folder)
        self._fleet = ""

    def look(self) -> None:
        nodes, seen = self._engine.nodes(), self._engine.seen_jobs()
        found = {job.job: _joined(self._jobs.get(job.job), job) for job in seen}
        if any(self._jobs.get(name) != job for name, job in found.items()):
            self._jobs |= found
            while len(self._jobs) > MOST_JOBS:
                del self._jobs[next(iter(self._jobs))]
            write_json(self._folder / FACTS, {"jobs": [list(job) for job in self._jobs.values()]}, mode=0o600)
        fleet = fleet_text(nodes)
        if fleet != self._fleet:
            write_whole(self._folder / FLEET, fleet, mode=0o600)
            self._fleet = fleet
        write_whole(self._folder / TRACE, trace_text(self._jobs.values(), now_s=self._clock()), mode=0o600)


def _joined(before: SeenJob | None, now: SeenJob) -> SeenJob:
    """An estimate of its start may change until it has begun; what was seen of a job that is over stays."""
    return before if before is not None and before.ended_s is not None else now


def read_jobs(folder: Path) -> dict[str, SeenJob]:
    found: list[list[Any]] = (read_json(folder / FACTS, most_bytes=1 << 30) or {}).get("jobs", [])
    return {row[0]: SeenJob(*row) for row in found}


def trace_text(jobs: Iterable[SeenJob], *, now_s: float) -> str:
    """One row for each that has begun: one that runs still, as far as it has come."""
    begun = [job for job in jobs if job.started_s is not None and job.gpus > 0]
    first_s = min((job.submitted_s for job in begun), default=0)
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["job", "submit_s", "run_s", "gpus", "tenant", "gpu", "within"])
    for job in sorted(begun, key=lambda each: (each.submitted_s, each.job)):
        end_s = int(now_s) if job.ended_s is None else job.ended_s
        run_s = max(1, end_s - (job.started_s or 0))
        within = "node" if job.nodes == 1 else "site"
        rows.writerow([job.job, job.submitted_s - first_s, run_s, job.gpus, job.user, job.gpu, within])
    return out.getvalue()


def fleet_text(nodes: Sequence[Node]) -> str:
    kinds = Counter((node.gpus, node.gpu, node.microusd_per_gpu_hour, node.tier) for node in nodes)
    return "\n".join(
        f'[[nodes]]\ncount = {count}\ngpus = {gpus}\ngpu = "{gpu}"\n'
        f'usd_per_gpu_hour = "{microusd / MICROUSD:.6f}"\ntier = "{tier}"\n'
        for (gpus, gpu, microusd, tier), count in sorted(kinds.items())
    )
