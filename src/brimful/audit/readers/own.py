"""brimful's own log (the database of `brimful up`), a watched site, and samples of a Meter."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from brimful.audit.readers.slurm import LAST_S
from brimful.audit.records import Down, Outcome, Paid, Part, Parts, Records, Run, Wait
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobHeld,
    LeaseEnded,
    LeaseGranted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    from_record,
)
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.state import Fleet
from brimful.meter.idle import GAP_S, Spans
from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, read_samples
from brimful.units import HOUR_S

if TYPE_CHECKING:
    from brimful.adapters.capabilities import SeenJob

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SQLITE = b"SQLite format 3\0"


def read_database(path: Path, records: Records) -> bool:
    """Whether it is a server's database. Opened read-only: the file is not ours to change."""
    log = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    with closing(log):
        if not log.execute("SELECT 1 FROM sqlite_master WHERE name = 'brimful'").fetchone():
            return False
        rows = log.execute("SELECT kind, version, body FROM events ORDER BY seq")
        read_log((from_record(kind, version, json.loads(body)) for kind, version, body in rows), records)
    return True


class OwnLog:
    """The log so far: `records` has what has ended; the state knows what has started and not yet ended.

    It is the same state that the server itself keeps, so that both agree on what waiting and holding mean.
    """

    def __init__(self, records: Records) -> None:
        self.records, self.fleet, self.at_s = records, Fleet(), 0
        self.nodes: dict[str, tuple[int, NodeJoined]] = {}
        self.drained: dict[str, int] = {}
        self.taken_s: dict[tuple[str, int], int] = {}  # node, card -> until when a share of it was counted

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self.at_s = max(self.at_s, event.at_s)
            self.take(event)

    def until(self, now_s: int) -> Records:
        """Everything, as if what has not ended did so now. The log may continue after that."""
        old = self.records
        ended = replace(
            old, runs=[*old.runs], waits=[*old.waits], paid=[*old.paid], downs=[*old.downs], knows_queue=True
        )
        later = OwnLog(ended)
        later.fleet, later.taken_s = self.fleet, dict(self.taken_s)
        later.nodes, later.drained = dict(self.nodes), dict(self.drained)
        later.end_all(max(self.at_s, now_s))
        return ended

    def end_all(self, at_s: int) -> None:
        """Does not change the state."""
        for lease in list(self.fleet.open_leases.values()):
            self.end(lease, LeaseEnded(at_s=at_s, lease=lease.lease, exit_code=None))
        for state in self.fleet.waiting.values():
            self.stop_waiting(state, at_s)
        for node in list(self.nodes):
            self.leave(node, at_s)

    def leave(self, node: str, at_s: int) -> None:
        if node in self.nodes:
            since_s, joined = self.nodes.pop(node)
            self.resume(node, at_s)
            rate, seconds = joined.microusd_per_gpu_hour, at_s - since_s
            cost = (rate * joined.gpus * seconds + HOUR_S // 2) // HOUR_S if rate else None
            self.records.paid.append(
                Paid(place=node, gpu=joined.gpu, gpus=joined.gpus, start_s=since_s, end_s=at_s, microusd=cost)
            )

    def resume(self, node: str, at_s: int) -> None:
        if node in self.drained:
            since_s = self.drained.pop(node)
            leaf = "out_of_service.planned"
            self.records.downs.append(Down(place=node, start_s=since_s, end_s=at_s, leaf=leaf))

    def take(self, event: Event) -> None:
        """What an event ends is counted before the state forgets it."""
        match event:
            case NodeJoined():
                self.leave(event.node, event.at_s)
                self.nodes[event.node] = (event.at_s, event)
            case NodeLeft():
                self.leave(event.node, event.at_s)
            case NodeDrained():
                self.drained.setdefault(event.node, event.at_s)
            case NodeResumed():
                self.resume(event.node, event.at_s)
            case LeaseGranted() | JobHeld() | CancelRequested():
                self.stop_waiting(self.fleet.jobs[event.job], event.at_s)
            case LeaseEnded():
                self.end(self.fleet.open_leases[event.lease], event)
            case _:
                pass
        self.fleet.apply(event)

    def stop_waiting(self, state: JobState, at_s: int) -> None:
        job, since_s = state.job, state.waiting_since_s
        if state.phase == "waiting" and since_s < at_s and job.gpus:
            only = job.gpu_types[0] if len(job.gpu_types) == 1 else ""
            need = job.gpus if job.within in ("node", "nvlink") else 1
            self.records.waits.append(
                Wait(start_s=since_s, end_s=at_s, gpus=job.gpus, per_node=need, gpu=only, wall=job.queue)
            )

    def end(self, lease: Lease, event: LeaseEnded) -> None:
        """Held from the grant on, whether it had started or not."""
        kept_s = lease.granted_s
        if event.exit_code == 0:
            kept_s = event.at_s
        elif event.kept_work_s and lease.started_s is not None:
            kept_s = min(event.at_s, lease.started_s + int(event.kept_work_s))
        spans: list[tuple[int, int, Outcome]] = [
            (lease.granted_s, kept_s, "kept"),
            (kept_s, event.at_s, "lost"),
        ]
        if event.exit_code is None and event.kept_work_s is None:
            spans = [(lease.granted_s, event.at_s, "unknown")]
        for since_s, parts in self._own(lease, event.at_s).items():
            for start_s, end_s, outcome in spans:
                if max(start_s, since_s) < end_s:
                    self._ran(lease, parts, max(start_s, since_s), end_s, outcome)

    def _own(self, lease: Lease, at_s: int) -> dict[int, list[Part]]:
        """Its cards, with when each became its own: a shared card belongs to the first job until it ends."""
        found: defaultdict[int, list[Part]] = defaultdict(list)
        for node, gpus in lease.parts:
            older = takewhile(lambda other: other is not lease, self.fleet.leases_on[node].values())
            theirs = {(n, card) for other in older for n, cards in other.parts for card in cards}
            by_start: defaultdict[int, list[int]] = defaultdict(list)
            for card in gpus:
                if (node, card) not in theirs:
                    by_start[max(lease.granted_s, self.taken_s.get((node, card), 0))].append(card)
                    self.taken_s[node, card] = at_s
            for since_s, cards in by_start.items():
                found[since_s].append(Part(place=node, gpus=len(cards), cards=tuple(cards)))
        return found

    def _ran(self, lease: Lease, parts: list[Part], start_s: int, end_s: int, outcome: Outcome) -> None:
        state = self.fleet.jobs[lease.job]
        job = state.job
        self.records.runs.append(
            Run(
                job=lease.job,
                start_s=start_s,
                end_s=end_s,
                parts=tuple(parts),
                outcome=outcome,
                user=job.user or job.submitter,
                team=job.tenant,
                wall=job.queue,
                submit_s=state.waiting_since_s if start_s == lease.granted_s else start_s,
                name=job.name,
                deferrable=job.deferrable,
            )
        )


def read_log(events: Iterable[Event], records: Records, *, now_s: int | None = None) -> None:
    """Nodes are paid from joining to leaving, leases are runs, what waits is demand.

    What has not ended continues until `now_s`, or until the last event.
    """
    log = OwnLog(records)
    log.add(events)
    log.end_all(max(log.at_s, now_s or 0))
    records.knows_queue = True


def read_observed(found: Mapping[str, Any], records: Records) -> None:
    """A site in observe mode (adapters/observed.py): nodes are paid while we were watching.

    If a node did not accept jobs for a while, the site had a reason that is not recorded.
    """
    from brimful.adapters.observed import record_from

    record = record_from(found)
    for name, node in record.nodes.items():
        rate, there = node.microusd_per_gpu_hour, sorted(map(tuple, node.spans))
        for start_s, end_s in record.looked:
            if start_s < end_s:
                cost = (rate * node.gpus * (end_s - start_s) + HOUR_S // 2) // HOUR_S if rate else None
                paid = Paid(
                    place=name, gpu=node.gpu, gpus=node.gpus, start_s=start_s, end_s=end_s, microusd=cost
                )
                records.paid.append(paid)
            for gone_s, back_s in _gaps(there, start_s, end_s):
                records.downs.append(
                    Down(place=name, start_s=gone_s, end_s=back_s, leaf="out_of_service.unknown")
                )
    last_s = record.looked[-1][1] if record.looked else 0
    for job in record.jobs.values():
        _add_seen(job, records, last_s)
    records.knows_queue = True


def _gaps(spans: Sequence[tuple[int, ...]], start_s: int, end_s: int) -> Iterator[tuple[int, int]]:
    """The gaps that the spans leave in [start, end)."""
    at_s = start_s
    for since_s, until_s in spans:
        if at_s < min(since_s, end_s):
            yield at_s, min(since_s, end_s)
        at_s = max(at_s, until_s)
    if at_s < end_s:
        yield at_s, end_s


def _add_seen(job: SeenJob, records: Records, now_s: int) -> None:
    end_s = now_s if job.ended_s is None else job.ended_s
    nodes = max(1, job.nodes)
    if not job.gpus:
        records.left_out["no_gpu_job"] += 1
        return
    waited_s = end_s if job.started_s is None else job.started_s
    if job.submitted_s < waited_s and not job.held:
        need = -(-job.gpus // nodes)
        wait = Wait(
            start_s=job.submitted_s, end_s=waited_s, gpus=job.gpus, per_node=need, job=job.job, gpu=job.gpu
        )
        records.waits.append(wait)
    if job.started_s is None or end_s <= job.started_s:
        return
    even, more = divmod(job.gpus, len(job.places) or 1)
    records.left_out["uneven_gang"] += bool(more)
    parts = (Part(place=name, gpus=even + (i < more)) for i, name in enumerate(job.places or ("",)))
    records.runs.append(
        Run(
            job=job.job,
            start_s=job.started_s,
            end_s=end_s,
            parts=tuple(part for part in parts if part.gpus),
            gpu=job.gpu,
            outcome=next((each for each in OUTCOMES if each == job.outcome), "unknown"),
            user=job.user,
            submit_s=job.submitted_s,
        )
    )


def read_meter(path: Path, records: Records) -> None:
    """Steps are work, five minutes without one is idle; a step says how long it waited for input or links."""
    every = list(read_samples(path))
    samples = sorted((each for each in every if _is_sound(each)), key=lambda each: each.at_s)
    records.left_out["bad_sample"] += len(every) - len(samples)
    run = next((each for each in samples if isinstance(each, RunSample)), None)
    steps = [each for each in samples if isinstance(each, StepSample)]
    if run is None or not steps or not run.device.startswith("cuda"):
        records.left_out["meter_file"] += 1
        return
    card = run.device.partition(":")[2] or "0"
    job = run.job or str(run.more.get("slurm_job", ""))
    key = (job, run.host, int(card))
    # A second try on the same card writes a separate file.
    records.activity[key] = sorted([*records.activity.get(key, ()), *_worked(run, steps, samples)])
    if job:
        _measured(job, steps, records)
        card_bytes = next((s.memory_total_bytes for s in samples if isinstance(s, GpuSample)), None)
        for step in steps:
            if step.peak_reserved_bytes is not None:
                records.saw_memory(job, step.peak_reserved_bytes, card_bytes)


def _is_sound(sample: Sample) -> bool:
    """Its time is valid, and the numbers of a step are not negative, infinite or NaN."""
    numbers = [sample.at_s]
    if isinstance(sample, StepSample):
        numbers += [sample.step_s, sample.data_s, sample.comm_s or 0.0, sample.mfu or 0.0]
    return all(0 <= number < LAST_S for number in numbers)


def _measured(job: str, steps: list[StepSample], records: Records) -> None:
    parts = records.parts.setdefault(job, Parts())
    for step in steps:
        parts.whole_s += step.step_s
        parts.input_wait_s += step.data_s
        parts.communication_s += step.comm_s or 0.0
        if step.mfu is not None:
            parts.measured_s += step.step_s
            parts.peak_s += step.mfu * step.step_s


def _worked(run: RunSample, steps: list[StepSample], samples: list[Sample]) -> Spans:
    spans: Spans = []
    at = int(run.at_s)
    for step in steps:
        start, end = int(step.at_s - step.step_s), int(step.at_s)
        if start - at >= GAP_S or (not spans and start > at):
            spans.append((at, start, "idle"))
        else:
            start = at
        if spans and spans[-1][2] == "working":
            spans[-1] = (spans[-1][0], end, "working")
        elif start < end:
            spans.append((start, end, "working"))
        at = max(at, end)
    last = int(samples[-1].at_s)
    if last > at:
        spans.append((at, last, "idle"))
    return spans
