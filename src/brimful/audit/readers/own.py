"""brimful's own log (the database of `brimful up`), a site it only watches, and samples of a Meter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from brimful.audit.readers.slurm import LAST_S
from brimful.audit.records import Down, Outcome, Paid, Part, Parts, Records, Run, Wait
from brimful.fleet.events import (
    ArraySubmitted,
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    LeaseEnded,
    LeaseGranted,
    LeaseStarted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
)
from brimful.fleet.job import Job
from brimful.meter.idle import GAP_S, Spans
from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, read_samples
from brimful.units import HOUR_S

if TYPE_CHECKING:
    from brimful.adapters.capabilities import SeenJob

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SQLITE = b"SQLite format 3\0"


def read_database(path: Path, records: Records) -> None:
    from brimful.adapters.stores.sql import SqlStore

    store = SqlStore(f"sqlite:///{path}")
    try:
        seq, events = 0, list[Event]()
        while more := store.since(seq):
            events += more
            seq += len(more)
    finally:
        store.close()
    read_log(events, records)


class OwnLog:
    """The log so far: in `records` what has ended, here what has begun and not yet ended."""

    def __init__(self, records: Records) -> None:
        self.records, self.at_s = records, 0
        self.nodes: dict[str, tuple[int, NodeJoined]] = {}
        self.drained: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        self.waiting: dict[str, int] = {}
        self.asked: dict[str, int] = {}  # since when the job's next lease could have begun
        self.leases: dict[str, tuple[int, LeaseGranted]] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self.at_s = max(self.at_s, event.at_s)
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
                case _:
                    self.job_event(event)

    def until(self, now_s: int) -> Records:
        """Everything, as if what has not ended did so now. The log may go on after that."""
        old = self.records
        ended = replace(
            old, runs=[*old.runs], waits=[*old.waits], paid=[*old.paid], downs=[*old.downs], knows_queue=True
        )
        later = OwnLog(ended)
        later.jobs, later.asked = self.jobs, dict(self.asked)
        later.nodes, later.drained = dict(self.nodes), dict(self.drained)
        later.leases, later.waiting = dict(self.leases), dict(self.waiting)
        later.end_all(max(self.at_s, now_s))
        return ended

    def end_all(self, at_s: int) -> None:
        for lease in list(self.leases):
            self.end(LeaseEnded(at_s=at_s, lease=lease, exit_code=None))
        for name in list(self.waiting):
            self.stop_waiting(name, at_s)
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

    def stop_waiting(self, name: str, at_s: int) -> None:
        since_s = self.waiting.pop(name, at_s)
        job = self.jobs[name]
        if since_s < at_s and job.gpus:
            only = job.gpu_types[0] if len(job.gpu_types) == 1 else ""
            need = job.gpus if job.within in ("node", "nvlink") else 1
            self.records.waits.append(
                Wait(start_s=since_s, end_s=at_s, gpus=job.gpus, per_node=need, gpu=only, wall=job.queue)
            )

    def job_event(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                self.jobs[event.job.job] = event.job
                self.waiting[event.job.job] = self.asked[event.job.job] = event.at_s
            case ArraySubmitted():
                for task in event.tasks():
                    self.jobs[task.job] = task
                    self.waiting[task.job] = self.asked[task.job] = event.at_s
            case JobHeld() if event.job in self.jobs:
                self.stop_waiting(event.job, event.at_s)
            case JobReleased() if event.job in self.jobs:
                self.waiting[event.job] = self.asked[event.job] = event.at_s
            case LeaseGranted():
                self.stop_waiting(event.job, event.at_s)
                self.leases[event.lease] = (event.at_s, event)
            case LeaseStarted() if event.lease in self.leases:
                self.leases[event.lease] = (event.at_s, self.leases[event.lease][1])
            case LeaseEnded() if event.lease in self.leases:
                self.end(event)
            case _:
                pass

    def end(self, event: LeaseEnded) -> None:
        started_s, granted = self.leases.pop(event.lease)
        job = self.jobs[granted.job]
        kept_s = min(event.at_s, started_s + int(event.kept_work_s or 0))
        if event.exit_code == 0:
            kept_s = event.at_s
        spans: list[tuple[int, int, Outcome]] = [(started_s, kept_s, "kept"), (kept_s, event.at_s, "lost")]
        if event.exit_code is None and event.kept_work_s is None:
            spans = [(started_s, event.at_s, "unknown")]
        parts = [(granted.node, granted.gpus), *granted.rest]
        for start_s, end_s, outcome in spans:
            if start_s < end_s:
                self.records.runs.append(
                    Run(
                        job=granted.job,
                        start_s=start_s,
                        end_s=end_s,
                        parts=tuple(Part(place=n, gpus=len(g), cards=tuple(g)) for n, g in parts),
                        outcome=outcome,
                        user=job.user or job.submitter,
                        team=job.tenant,
                        wall=job.queue,
                        submit_s=self.asked.get(granted.job) if start_s == started_s else start_s,
                        name=job.name,
                        deferrable=job.deferrable,
                    )
                )
        if event.requeue:
            self.waiting[granted.job] = self.asked[granted.job] = event.at_s


def read_log(events: Iterable[Event], records: Records, *, now_s: int | None = None) -> None:
    """Nodes are paid from joining to leaving, leases are runs, what waits is demand unless it is held.

    What has not ended goes on until `now_s`, or until the last event.
    """
    log = OwnLog(records)
    log.add(events)
    log.end_all(max(log.at_s, now_s or 0))
    records.knows_queue = True


def read_observed(found: Mapping[str, Any], records: Records) -> None:
    """A site in observe mode (adapters/observed.py): nodes are paid while somebody looked.

    Where a node was not among those that take jobs, the site itself gave a reason that is not kept.
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
    """What the spans leave of [start, end)."""
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
    """Steps are work, none for five minutes is idle; a step tells what of it waited for input or links."""
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
    records.activity[job, run.host, int(card)] = _worked(run, steps, samples)
    if job:
        _measured(job, steps, records)
        card_bytes = next((s.memory_total_bytes for s in samples if isinstance(s, GpuSample)), None)
        for step in steps:
            if step.peak_reserved_bytes is not None:
                records.saw_memory(job, step.peak_reserved_bytes, card_bytes)


def _is_sound(sample: Sample) -> bool:
    """Its time is one, and the numbers of a step are neither negative nor endless, nor NaN."""
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
