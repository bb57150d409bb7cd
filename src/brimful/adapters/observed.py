"""What was seen at a site that is only watched: its jobs, as a trace that can be rehearsed.

observed.json   every job seen, with its submit, start and end times, and every node: for `audit`
observed.csv    the jobs that have started, in brimful's trace format (sim/traces/own.py)
fleet.toml      the site's nodes, for `brimful simulate --fleet`
"""

from __future__ import annotations

import csv
import io
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.capabilities import SeenJob, WatchesJobs
from brimful.adapters.engines.worker import Order, Worker
from brimful.adapters.files import read_json, write_json
from brimful.files import write_whole
from brimful.fleet.state import Node
from brimful.scheduler.ports import CannotStart, Failures
from brimful.units import MICROUSD

FACTS, TRACE, FLEET = "observed.json", "observed.csv", "fleet.toml"
VERSION = 2
WRITE_S = 60  # how often to write when nothing has changed
LOOK_S = 5.0  # between two looks
MOST_JOBS = 200_000  # the oldest finished jobs are dropped first


class Observer:
    """Only looks and records."""

    def __init__(self, engine: WatchesJobs, folder: Path, clock: Callable[[], float]) -> None:
        self.site = engine.site
        self._engine, self._folder, self._clock = engine, folder, clock
        self._record = read_record(folder)
        self._last_s: int | None = None  # our last look; before that nothing is known
        self._fleet, self._written_s = "", 0

    def look(self) -> None:
        nodes, seen = self._engine.nodes(), self._engine.seen_jobs()
        now_s, record = int(self._clock()), self._record
        before = dict(record.jobs)
        for job in seen:
            record.jobs[job.job] = _joined(record.jobs.get(job.job), job, now_s=now_s)
        self._end_vanished({job.job for job in seen})
        while len(record.jobs) > MOST_JOBS:
            del record.jobs[next(iter(record.jobs))]
        _extend(record.looked, self._last_s, now_s)
        for node in nodes:
            known = record.nodes.get(node.node)
            facts = SeenNode(node.gpu, node.gpus, node.microusd_per_gpu_hour, known.spans if known else [])
            record.nodes[node.node] = facts
            _extend(facts.spans, self._last_s, now_s)
        self._last_s = now_s
        fleet = fleet_text(nodes)
        if record.jobs != before or fleet != self._fleet or now_s - self._written_s >= WRITE_S:
            write_json(self._folder / FACTS, _as_json(record), mode=0o600)
            trace = trace_text(record.jobs.values(), now_s=now_s)
            write_whole(self._folder / TRACE, trace, mode=0o600)
            self._written_s = now_s
        if fleet != self._fleet:
            write_whole(self._folder / FLEET, fleet, mode=0o600)
            self._fleet = fleet

    def _end_vanished(self, seen: Collection[str]) -> None:
        """The site forgot them before we saw their end: they were still there at the previous look."""
        looked = self._record.looked
        seen_s = looked[-1][1] if looked else 0
        for name, job in self._record.jobs.items():
            if job.ended_s is None and name not in seen:
                ended_s = max(seen_s, job.started_s or 0)
                self._record.jobs[name] = job._replace(ended_s=ended_s, outcome="unknown")


class WatchWorker(Worker):
    """Lets an observer look, off the loop, when the loop asks: while this server leads."""

    certain = CannotStart  # no order is ever given

    def __init__(self, observer: Observer, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(observer.site, clock=clock)
        self._observer = observer
        self._wanted = None  # nothing is looked at before the loop asks
        self._asked = float("-inf")  # when it last did

    def check(self) -> None:
        """WorldFailed if the last look failed, or takes too long."""
        with self._lock:
            now = self._clock()
            if now - self._asked >= LOOK_S:
                self._asked = now
                self._ask_for_look()
            self._check_heard(is_known=True)

    def _ask_world(self) -> None:
        with self._timed("look"):
            self._observer.look()

    def _keep(self, found: None, *, at: float) -> bool:  # noqa: ARG002
        return False

    def _act(self, orders: Sequence[Order]) -> Failures:
        raise AssertionError(orders)


class SeenNode(NamedTuple):
    gpu: str
    gpus: int
    microusd_per_gpu_hour: int
    spans: list[list[int]]  # when it accepted jobs: from, to


class Record(NamedTuple):
    """Everything seen at a site."""

    jobs: dict[str, SeenJob]
    nodes: dict[str, SeenNode]
    looked: list[list[int]]  # when we were watching: from, to


def _joined(before: SeenJob | None, now: SeenJob, *, now_s: int) -> SeenJob:
    """A job's estimated start may change until it has started; a finished job's data stays.

    A held job counts as submitted when it was released.
    """
    if before is None:
        return now
    if before.ended_s is not None:
        return before
    let_go = before.held and not now.held
    came_s = min(now_s, now.started_s or now_s) if let_go else before.submitted_s
    return now._replace(submitted_s=came_s)


def _extend(spans: list[list[int]], last_s: int | None, now_s: int) -> None:
    """What was there at two looks in a row was there in between."""
    if spans and last_s is not None and spans[-1][1] == last_s:
        spans[-1][1] = now_s
    else:
        spans.append([now_s, now_s])


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "observed": VERSION,
        "looked": record.looked,
        "nodes": {name: list(node) for name, node in record.nodes.items()},
        "jobs": [list(job) for job in record.jobs.values()],
    }


def read_record(folder: Path) -> Record:
    return record_from(read_json(folder / FACTS, most_bytes=1 << 30) or {})


def record_from(found: Mapping[str, Any]) -> Record:
    """From an `observed.json`, also of an older release, which had only jobs."""
    jobs = {row[0]: _seen_job(row) for row in found.get("jobs", [])}
    nodes = {name: SeenNode(*row) for name, row in found.get("nodes", {}).items()}
    return Record(jobs, nodes, found.get("looked", []))


def _seen_job(row: Sequence[Any]) -> SeenJob:
    job = SeenJob(*row)
    return job._replace(places=tuple(job.places))


def read_jobs(folder: Path) -> dict[str, SeenJob]:
    return read_record(folder).jobs


def trace_text(jobs: Iterable[SeenJob], *, now_s: float) -> str:
    """One row per started job; a running job up to now."""
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
